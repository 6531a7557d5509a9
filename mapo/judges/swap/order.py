"""Runs under two judges side by side: scores, paired differences, and whether the ranking changes."""

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
from mapo.judges.audit.report import estimate, number
from mapo.measure.agreement import spearman
from mapo.measure.stats import Interval
from mapo.show.tables import Cell, Table, markdown_table, markdown_text
from mapo.store import RunDir, write_atomic

SCORE, PASSES = "EPM-Q", "passes"


@dataclass(frozen=True, slots=True)
class RunScore:
    """Result of one run under one judge."""

    judge: str
    score: Entry
    passes: Entry


@dataclass(frozen=True, slots=True)
class SwappedRun:
    """One run under both judges. `difference` is the mean over cases of new minus old EPM-Q."""

    run: str
    old: RunScore
    new: RunScore
    difference: float
    interval: Interval | None
    p: float


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Two runs adjacent in the old judge's ranking, and the lead of the upper one under each judge."""

    upper: str
    lower: str
    old: float
    old_interval: Interval | None
    new: float
    new_interval: Interval | None

    @property
    def separated(self) -> bool:
        """Whether an interval of one of the judges excludes 0."""
        ends = [interval for interval in (self.old_interval, self.new_interval) if interval is not None]
        return any(low > 0 or high < 0 for low, high in ends)

    @property
    def stays(self) -> bool:
        """Whether the new judge ranks them in the same order."""
        return self.new > 0 or (self.new == 0 and self.old == 0)


@dataclass(frozen=True, slots=True)
class SwapResult:
    """All runs under both judges, and the adjacent pairs of the old judge's ranking."""

    runs: list[SwappedRun]
    neighbours: list[Neighbours]

    @property
    def same_order(self) -> bool:
        """Whether both judges rank the runs in the same order."""
        return all(pair.stays for pair in self.neighbours)

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's rank correlation of the runs' scores under both judges."""
        return spearman(
            [_mean(run.old.score) for run in self.runs], [_mean(run.new.score) for run in self.runs]
        )

    def as_json(self) -> dict[str, Any]:
        """Return the content of swap.json."""
        return {
            "schema": "mapo.swap/1",
            "runs": [
                {
                    "run": run.run,
                    **{
                        name: {
                            "judge": result.judge,
                            "epm_q": _mean(result.score),
                            "interval": result.score.interval,
                            "passes": result.passes.passes,
                            "n": result.score.n,
                            "notes": list(result.score.notes),
                        }
                        for name, result in (("old", run.old), ("new", run.new))
                    },
                    "difference": run.difference,
                    "difference_interval": run.interval,
                    "p": run.p,
                }
                for run in self.runs
            ],
            "order": [{**asdict(pair), "stays": pair.stays} for pair in self.neighbours],
            "same_order": self.same_order,
            "rank_correlation": self.rank_correlation,
        }


def compare_judges(runs: Sequence[tuple[str, Path | str, Path]]) -> SwapResult:
    """Compare the runs under both judges. Each is given as its name, the original run as `mapo compare` takes
    it, and the folder with the new judgements."""
    swapped = [
        _swapped_run(name, _score(read_run(str(old)), name), _score(read_run(str(new)), name))
        for name, old, new in runs
    ]
    ranking = sorted(swapped, key=lambda run: -_mean(run.old.score))
    return SwapResult(swapped, [_neighbours(a, b) for a, b in pairwise(ranking)])


def _score(entries: Sequence[Entry], name: str) -> RunScore:
    """Return the result of a run; of a training run, "RUN/before" is the entry "..., before"."""
    test = name.rpartition("/")[2] if name.endswith(("/before", "/after")) else ""
    selected = [e for e in entries if not test or e.model.endswith(f", {test}")]
    by_name = {entry.name: entry for entry in selected}
    if len(selected) != len(by_name) or SCORE not in by_name:
        raise InputError(
            f"'{name}' is not one result of mapo eval empa",
            fix="Give the folders of the evaluations one by one",
        )
    return RunScore(by_name[SCORE].meaning["judge"], by_name[SCORE], by_name[PASSES])


def _swapped_run(run: str, old: RunScore, new: RunScore) -> SwappedRun:
    return SwappedRun(run, old, new, *_difference(new.score, old.score))


def _neighbours(upper: SwappedRun, lower: SwappedRun) -> Neighbours:
    old, old_interval, _ = _difference(upper.old.score, lower.old.score)
    new, new_interval, _ = _difference(upper.new.score, lower.new.score)
    return Neighbours(upper.run, lower.run, old, old_interval, new, new_interval)


def _difference(a: Entry, b: Entry) -> tuple[float, Interval | None, float]:
    common = [case for case in a.cases if case in b.cases]
    if not common:
        raise InputError(
            f"{a.source} and {b.source} have no case in common", fix="Swap runs that played the same cases"
        )
    return paired([a.cases[case] for case in common], [b.cases[case] for case in common])


def _mean(entry: Entry) -> float:
    """Return the mean over cases, complete or not: both judges saw the same dialogues."""
    scores = [case.score for case in entry.cases.values()]
    return sum(scores) / len(scores)


# ---- tables


def tables(result: SwapResult) -> list[Table]:
    """Return the tables for the terminal."""
    judges = f"{result.runs[0].old.judge} -> {result.runs[0].new.judge}"
    scores: list[list[Cell]] = [
        [
            run.run,
            *(estimate(_mean(side.score), side.score.interval, ".1f") for side in (run.old, run.new)),
            estimate(run.difference, run.interval, "+.1f"),
            *(f"{side.passes.passes}/{side.passes.n}" for side in (run.old, run.new)),
        ]
        for run in result.runs
    ]
    columns = ["run", "EPM-Q, old", "EPM-Q, new", "new - old", "passes, old", "passes, new"]
    notes = [[run.run, note] for run in result.runs for note in run.new.score.notes]
    order: list[list[Cell]] = [
        [
            f"{pair.upper} - {pair.lower}",
            estimate(pair.old, pair.old_interval, "+.1f"),
            estimate(pair.new, pair.new_interval, "+.1f"),
            "same" if pair.stays else "reversed",
        ]
        for pair in result.neighbours
    ]
    same = "Both judges rank the runs in the same order."
    if not any(pair.separated for pair in result.neighbours):
        same = (
            "Both judges rank the runs in the same order, but neither separates them: no interval excludes 0."
        )
    changed = "The new judge ranks the runs in a different order."
    correlation = number(result.rank_correlation, ".2f")
    ranks = "" if result.rank_correlation is None else f" Rank correlation of the runs: {correlation}."
    return [
        Table(
            columns,
            scores,
            title=f"Old and new judge: {judges}",
            note="Differences are paired by case, with 95 % intervals over cases.",
        ),
        Table(["run", "note on the new judgement"], notes, title="Notes", left=2),
        Table(
            ["EPM-Q difference of", "old judge", "new judge", "order"],
            order,
            title="Ranking",
            note=(same if result.same_order else changed) + ranks,
        ),
    ]


def write(result: SwapResult, out: Path, notice: str = "") -> None:
    """Write swap.json and swap.md; `notice` stands above the scores."""
    text = json.dumps(result.as_json(), ensure_ascii=False, allow_nan=False, indent=1)
    write_atomic(RunDir(out).swap, text + "\n")
    parts = [f"# Judged again by {markdown_text(result.runs[0].new.judge)}"]
    parts += [markdown_text(notice)] if notice else []
    parts += [markdown_table(table, 2) for table in tables(result) if table.rows]
    parts.append(
        "The dialogues are as they were played under the old judge. One that the new judge would have ended "
        "earlier is cut at that point. One that it would have continued counts as unfinished and not passed."
    )
    write_atomic(RunDir(out).swap_markdown, "\n\n".join(parts) + "\n")
