"""Queries of the pages. Each function takes a read-only connection and plain arguments."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mapo.measure.stats import MIN_ROWS, Interval, bootstrap, reportable
from mapo.types import StopReason
from mapo.view.index.entries import query_of

ANY_FAULT = "any"
PAGE = 50
"""Dialogues per page of the list."""
MATCHES = 10_000
"""The most dialogues a search returns; the latest ones."""


# ---- runs


def run_row(row: sqlite3.Row) -> dict[str, Any]:
    return {
        **json.loads(row["facts"]),
        **{k: row[k] for k in ("key", "name", "state", "changed", "dialogues")},
    }


def runs(db: sqlite3.Connection, text: str = "", state: str = "") -> list[dict[str, Any]]:
    """Return the runs, newest first. `text` is part of a name, model, method, judge, kind or domain."""
    rows = [run_row(row) for row in db.execute("SELECT * FROM runs ORDER BY changed DESC, key")]
    wanted = text.casefold()
    return [
        row
        for row in rows
        if (not state or row["state"] == state) and (not wanted or wanted in _searchable(row))
    ]


def _searchable(row: dict[str, Any]) -> str:
    columns = ("name", "model", "method", "kind", "domain", "judge")
    return " ".join([*(row[column] for column in columns), row["context"]["judge"]]).casefold()


def run_named(db: sqlite3.Connection, key: str) -> dict[str, Any] | None:
    row = db.execute("SELECT * FROM runs WHERE key = ?", (key,)).fetchone()
    return run_row(row) if row else None


def parts_of(db: sqlite3.Connection, run: str) -> dict[str, int]:
    """Return the sets of dialogues of a run (train, before, after, validation_00010) and their sizes."""
    rows = db.execute(
        "SELECT part, count(*) FROM dialogues WHERE run = ? GROUP BY part ORDER BY part", (run,)
    )
    sizes = dict(tuple(row) for row in rows)
    first = [part for part in ("train", "before", "after") if part in sizes]
    return {part: sizes[part] for part in [*first, *(p for p in sizes if p not in first)]}


def played_in_step(db: sqlite3.Connection, run: str, step: int) -> int:
    """Return how many training dialogues of a step have been recorded."""
    row = db.execute(
        "SELECT count(*) FROM dialogues WHERE run = ? AND part = 'train' AND step = ? AND counts", (run, step)
    ).fetchone()
    return int(row[0])


def problems_of(db: sqlite3.Connection, run: str) -> list[dict[str, Any]]:
    """Return damaged lines and incomplete last lines of a run's dialogue files."""
    rows = db.execute(
        "SELECT f.key, p.line, p.problem FROM problems p JOIN files f ON f.id = p.file WHERE f.run = ?"
        " ORDER BY f.key, p.line LIMIT 500",
        (run,),
    )
    damaged = [{"file": r["key"], "line": r["line"], "problem": r["problem"]} for r in rows]
    torn = db.execute("SELECT key, size - done AS left FROM files WHERE run = ? AND size > done", (run,))
    return damaged + [
        {"file": r["key"], "line": None, "problem": f"incomplete last line ({r['left']:,} bytes)"}
        for r in torn
    ]


# ---- dialogues


@dataclass(frozen=True, slots=True)
class DialogueFilter:
    """Conditions on dialogues. Empty and None values are not conditions."""

    run: str = ""
    part: str = ""
    step: int | None = None
    scenario: str = ""
    ending: str = ""
    low: float | None = None
    high: float | None = None
    fault: str = ""
    """A role that was at fault, or "any"."""
    words: str = ""
    sort: str = "newest"
    page: int = 1


_SELECT = (
    "SELECT d.*, f.key AS place, f.path, r.name FROM dialogues d JOIN files f ON f.id = d.file"
    " JOIN runs r ON r.key = d.run"
)
SORTS = {
    "newest": "d.step IS NULL, d.step DESC, d.n",
    "oldest": "d.step, d.n",
    "reward": "d.reward IS NULL, d.reward DESC, d.n",
    "reward-up": "d.reward IS NULL, d.reward, d.n",
    "epm_q": "d.epm_q IS NULL, d.epm_q DESC, d.n",
    "epm_q-up": "d.epm_q IS NULL, d.epm_q, d.n",
    "turns": "d.turns DESC, d.n",
    "turns-up": "d.turns, d.n",
    "scenario": "d.id DESC, d.n",
    "scenario-up": "d.id, d.n",
    "ending": "d.ending DESC, d.n",
    "ending-up": "d.ending, d.n",
    "unscored": "d.unscored DESC, d.n",
    "unscored-up": "d.unscored, d.n",
}
"""Orders of the list of dialogues; "-up" is ascending."""


def dialogues(db: sqlite3.Connection, wanted: DialogueFilter) -> tuple[list[sqlite3.Row], int]:
    """Return one page of the matching dialogues, and the number of all of them."""
    tests: list[tuple[str, object]] = []
    for test, value in (
        ("d.run = ?", wanted.run),
        ("d.part = ?", wanted.part),
        ("d.ending = ?", wanted.ending),
        ("instr(lower(d.scenario), lower(?))", wanted.scenario),
        ("d.step = ?", wanted.step),
        ("d.reward >= ?", wanted.low),
        ("d.reward <= ?", wanted.high),
    ):
        if value not in ("", None):
            tests.append((test, value))
    if wanted.fault == ANY_FAULT:
        tests.append(("d.faults <> ?", ""))
    elif wanted.fault:
        tests.append(("instr(d.faults, ?)", wanted.fault))
    if wanted.words.strip():
        matches = _matches(db, wanted.words, wanted.run)
        tests.append(("d.n IN (SELECT value FROM json_each(?))", json.dumps(matches)))
    where = f"WHERE {' AND '.join(t for t, _ in tests)}" if tests else ""
    values = [value for _, value in tests]
    total = db.execute(f"SELECT count(*) FROM dialogues d {where}", values).fetchone()[0]  # noqa: S608
    order = SORTS.get(wanted.sort, SORTS["newest"])
    at = [*values, (max(1, wanted.page) - 1) * PAGE]
    picked = db.execute(f"SELECT d.n FROM dialogues d {where} ORDER BY {order} LIMIT {PAGE} OFFSET ?", at)  # noqa: S608
    rows = [db.execute(f"{_SELECT} WHERE d.n = ?", (n,)).fetchone() for (n,) in picked.fetchall()]
    return rows, total


def blame_by_part(db: sqlite3.Connection, run: str) -> list[dict[str, Any]]:
    """Return, for each set of a run, its failed dialogues by the role they are attributed to; nothing for a
    run without recorded faults."""
    if not db.execute("SELECT 1 FROM dialogues WHERE run = ? AND faults <> '' LIMIT 1", (run,)).fetchone():
        return []
    counts: dict[str, dict[str, int]] = {}
    for part, role, n in db.execute(
        f"SELECT part, blame, count(*) FROM dialogues WHERE run = ? AND {COUNTED} AND blame <> ''"  # noqa: S608
        " GROUP BY part, blame",
        (run,),
    ):
        counts.setdefault(part, {})[role] = n
    return [
        {"part": part, "failed": sum(roles.values()), "roles": roles}
        for part, roles in sorted(counts.items())
    ]


def _matches(db: sqlite3.Connection, words: str, run: str) -> list[int]:
    """Return the numbers of the latest MATCHES dialogues that contain the words."""
    query = query_of(words)
    of = "WHERE run = ?" if run else ""
    first, last = db.execute(
        f"SELECT (SELECT min(n) FROM dialogues {of}), (SELECT max(n) FROM dialogues {of})",  # noqa: S608
        (run, run) if run else (),
    ).fetchone()
    if not query or first is None:
        return []
    rows = db.execute(
        "SELECT rowid FROM words WHERE words MATCH ? AND rowid BETWEEN ? AND ? ORDER BY rowid DESC LIMIT ?",
        (query, first, last, MATCHES),
    )
    return [row[0] for row in rows]


def endings(db: sqlite3.Connection, run: str) -> list[str]:
    """Return the endings in a run, or all possible ones if no run is given."""
    if not run:
        return [*(reason.value for reason in StopReason), "unfinished"]
    return [
        row[0] for row in db.execute("SELECT DISTINCT ending FROM dialogues WHERE run = ? ORDER BY 1", (run,))
    ]


def scenarios(db: sqlite3.Connection, run: str) -> list[str]:
    rows = db.execute("SELECT DISTINCT scenario FROM dialogues WHERE run = ? ORDER BY 1 LIMIT 500", (run,))
    return [row[0] for row in rows]


def dialogue_row(db: sqlite3.Connection, run: str, file: str, line: int) -> sqlite3.Row | None:
    """Return the dialogue at a URL."""
    row: sqlite3.Row | None = db.execute(
        f"{_SELECT} WHERE f.run = ? AND f.key = ? AND d.line = ?",
        (run, file, line),
    ).fetchone()
    return row


def path_of(row: sqlite3.Row) -> Path:
    return Path(os.fsdecode(row["path"]))


def batch_of(db: sqlite3.Connection, row: sqlite3.Row) -> list[sqlite3.Row]:
    """Return all dialogues of the same step or evaluation. Of a dialogue that was played again, only the
    record that counts is included, so `row` may be missing."""
    return db.execute(
        f"{_SELECT} WHERE d.run = ? AND d.part = ? AND d.step IS ? AND d.counts ORDER BY d.id, d.n",
        (row["run"], row["part"], row["step"]),
    ).fetchall()


def set_rows(db: sqlite3.Connection, run: str, part: str) -> list[sqlite3.Row]:
    """Return the dialogues of a set that count."""
    return db.execute(
        f"{_SELECT} WHERE d.run = ? AND d.part = ? AND d.counts ORDER BY f.key, d.line",
        (run, part),
    ).fetchall()


# ---- numbers


Mean = tuple[float, float | None, float | None, int]
"""Mean, ends of its 95 % interval (None with too few scenarios), and number of dialogues or turns."""
COUNTED = "counts = 1 AND error = 0"
"""Condition for dialogues that enter into numbers: neither broken nor superseded."""


def means_by_step(db: sqlite3.Connection, run: str, part: str, column: str) -> dict[int, Mean]:
    """Return the mean reward per turn, or the mean EPM-Q per dialogue, at each step, with its interval over
    scenarios."""
    sums = {"reward": ("reward_sum", "scored_turns"), "epm_q": ("epm_q", "epm_q IS NOT NULL")}
    if column not in sums:
        raise ValueError(column)
    value, weight = sums[column]
    rows = db.execute(
        f"SELECT step, sum({value}), sum({weight}) FROM dialogues"  # noqa: S608 (names above)
        f" WHERE run = ? AND (part = ? OR (? = 'validation' AND part LIKE 'validation~_%' ESCAPE '~'))"
        f" AND {COUNTED} AND {value} IS NOT NULL AND {weight} AND step IS NOT NULL"
        f" GROUP BY step, scenario ORDER BY step, min(n)",
        (run, part, part),
    )
    by_step: dict[int, list[tuple[float, int]]] = {}
    for step, total, n in rows:
        by_step.setdefault(step, []).append((total, n))
    return {step: mean_of(groups, by_turn=column == "reward") for step, groups in by_step.items()}


def mean_of(groups: Sequence[tuple[float, int]], *, by_turn: bool = False) -> Mean:
    """Return the mean over scenarios. Each group is a sum and the number of dialogues or turns in it."""
    n = sum(count for _, count in groups)
    ends = interval(tuple(groups), by_turn) or (None, None)
    return sum(total for total, _ in groups) / n, *ends, n


@lru_cache(maxsize=16384)
def interval(groups: tuple[tuple[float, int], ...], by_turn: bool) -> Interval | None:
    """Return the interval of a mean, resampling scenarios, because dialogues of one scenario are correlated.
    In a mean over turns, longer scenarios weigh more."""
    if len(groups) < MIN_ROWS:
        return None
    rows = np.array(groups) if by_turn else np.array([(total / n, 1.0) for total, n in groups])
    ends = bootstrap(rows, lambda sample: sample[..., :1] / sample[..., 1:])
    return None if ends is None else reportable(*ends[0], rows=len(groups))


def endings_by_step(db: sqlite3.Connection, run: str) -> dict[str, dict[int, int]]:
    counts: dict[str, dict[int, int]] = {}
    for ending, step, n in db.execute(
        "SELECT ending, step, count(*) FROM dialogues WHERE run = ? AND part = 'train' AND step IS NOT NULL"  # noqa: S608
        f" AND {COUNTED} GROUP BY ending, step",
        (run,),
    ):
        counts.setdefault(ending, {})[step] = n
    return counts
