"""Runs under two judges, side by side: scores, paired differences, and whether their order stays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from mapo.errors import InputError
from mapo.evals.compare.comparison import paired, read_run
from mapo.evals.compare.entries import Entry
from mapo.judges.audit.report import number, spread
from mapo.measure.agreement import spearman
from mapo.measure.stats import Interval
from mapo.show.tables import Table, markdown_table, markdown_text
from mapo.store import RunDir, write_atomic

SCORE, PASSES = "EPM-Q", "passes"


@dataclass(frozen=True, slots=True)
class Side:
    """One run under one judge."""

    judge: str
    score: Entry
    passes: Entry


@dataclass(frozen=True, slots=True)
class Row:
    """One run under both judges: `difference` is the new judge's EPM-Q minus the old one's, case by case."""

    run: str
    old: Side
    new: Side
    difference: float
    interval: Interval | None
    p: float


@dataclass(frozen=True, slots=True)
class Step:
    """Two runs that are neighbours under the old judge: by how much the upper one leads under each."""

    upper: str
    lower: str
    old: float
    old_interval: Interval | None
    new: float
    new_interval: Interval | None

    @property
    def stays(self) -> bool:
        return self.new > 0 or (self.new == 0 and self.old == 0)


@dataclass(frozen=True, slots=True)
class Swapped:
    rows: list[Row]
    steps: list[Step]

    @property
    def same_order(self) -> bool:
        return all(step.stays for step in self.steps)

    @property
    def ranks(self) -> float | None:
        return spearman([_value(r.old.score) for r in self.rows], [_value(r.new.score) for r in self.rows])

    def as_json(self) -> dict[str, Any]:
        return {
            "schema": "mapo.swap/1",
            "runs": [
                {
                    "run": row.run,
                    **{
                        name: {
                            "judge": side.judge,
                            "epm_q": _value(side.score),
                            "interval": side.score.interval,
                            "passes": side.passes.passes,
                            "n": side.score.n,
                            "notes": list(side.score.notes),
                        }
                        for name, side in (("old", row.old), ("new", row.new))
                    },
                    "difference": row.difference,
                    "difference_interval": row.interval,
                    "p": row.p,
                }
                for row in self.rows
            ],
            "order": [{**asdict(step), "stays": step.stays} for step in self.steps],
            "same_order": self.same_order,
            "rank_correlation": self.ranks,
        }


def swapped(pairs: Sequence[tuple[str, Path | str, Path]]) -> Swapped:
    """(name, old run as `mapo compare` takes it, folder of the new one), for every run."""
    rows = [
        _row(name, _side(read_run(str(old)), name), _side(read_run(str(new)), name))
        for name, old, new in pairs
    ]
    order = sorted(rows, key=lambda row: -_value(row.old.score))
    return Swapped(rows, [_step(a, b) for a, b in pairwise(order)])


def _side(entries: Sequence[Entry], name: str) -> Side:
    """Of a training run, "RUN/before" is the row "..., before"."""
    when = name.rpartition("/")[2] if name.endswith(("/before", "/after")) else ""
    mine = [e for e in entries if not when or e.model.endswith(f", {when}")]
    found = {entry.name: entry for entry in mine}
    if len(mine) != len(found) or SCORE not in found:
        raise InputError(f"'{name}' is not one result of EMPA", fix="Name the folders one by one")
    return Side(found[SCORE].meaning["judge"], found[SCORE], found[PASSES])


def _row(run: str, old: Side, new: Side) -> Row:
    return Row(run, old, new, *_differ(new.score, old.score))


def _step(upper: Row, lower: Row) -> Step:
    old, old_interval, _ = _differ(upper.old.score, lower.old.score)
    new, new_interval, _ = _differ(upper.new.score, lower.new.score)
    return Step(upper.run, lower.run, old, old_interval, new, new_interval)


def _differ(a: Entry, b: Entry) -> tuple[float, Interval | None, float]:
    common = [case for case in a.cases if case in b.cases]
    if not common:
        raise InputError(
            f"{a.source} and {b.source} have no case in common", fix="Swap runs of the same cases"
        )
    return paired([a.cases[case] for case in common], [b.cases[case] for case in common])


def _value(entry: Entry) -> float:
    """The mean over cases; complete or not, both judges saw the same dialogues."""
    scores = [case.score for case in entry.cases.values()]
    return sum(scores) / len(scores)


# ---- tables


def tables(found: Swapped) -> list[Table]:
    judges = f"{found.rows[0].old.judge} -> {found.rows[0].new.judge}"
    rows = [
        [
            row.run,
            *(spread(_value(side.score), side.score.interval, ".1f") for side in (row.old, row.new)),
            spread(row.difference, row.interval, "+.1f"),
            *(f"{side.passes.passes}/{side.passes.n}" for side in (row.old, row.new)),
            "; ".join(row.new.score.notes) or "-",
        ]
        for row in found.rows
    ]
    head = ["run", "EPM-Q, old", "EPM-Q, new", "new - old", "passes, old", "new", "of the new"]
    steps = [
        [
            f"{step.upper} - {step.lower}",
            spread(step.old, step.old_interval, "+.1f"),
            spread(step.new, step.new_interval, "+.1f"),
            "stays" if step.stays else "turns round",
        ]
        for step in found.steps
    ]
    told = "The order of the runs stays." if found.same_order else "The order of the runs does not stay."
    ranks = "" if found.ranks is None else f" Rank correlation of the runs: {number(found.ranks, '.2f')}."
    return [
        Table(
            head,
            rows,
            title=f"Judged again: {judges}",
            note="Differences case by case, with 95 % intervals over cases.",
        ),
        Table(["runs", "old judge", "new judge", ""], steps, title="Order", note=told + ranks, left=4),
    ]


def write(found: Swapped, out: Path) -> None:
    text = json.dumps(found.as_json(), ensure_ascii=False, allow_nan=False, indent=1)
    write_atomic(RunDir(out).swap, text + "\n")
    parts = [f"# Judged again by {markdown_text(found.rows[0].new.judge)}"]
    parts += [markdown_table(table, 2) for table in tables(found) if table.rows]
    parts.append(
        "The dialogues are as they were played, under the old judge: one that the new judge would have ended "
        "earlier is cut there, one that it would have gone on with is not over and no pass."
    )
    write_atomic(RunDir(out).swap_markdown, "\n\n".join(parts) + "\n")
