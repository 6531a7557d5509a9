"""What the pages ask the index. Each function takes a read-only connection and plain arguments."""

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

from mapo.measure.stats import FEWEST, Interval, bootstrap, told
from mapo.types import StopReason
from mapo.view.index.entries import query_of

PAGE = 50
"""Dialogues a page of the list shows."""
MATCHES = 10_000
"""Dialogues a search finds at most, the latest ones."""
Row = sqlite3.Row


# ---- runs


def run_row(row: Row) -> dict[str, Any]:
    return {
        **json.loads(row["facts"]),
        **{k: row[k] for k in ("key", "name", "state", "changed", "dialogues")},
    }


def runs(db: sqlite3.Connection, text: str = "", state: str = "") -> list[dict[str, Any]]:
    """The newest first; `text` is part of a name, model or method."""
    rows = [run_row(row) for row in db.execute("SELECT * FROM runs ORDER BY changed DESC, key")]
    low = text.casefold()
    return [
        row
        for row in rows
        if (not state or row["state"] == state)
        and (
            not low
            or low in f"{row['name']} {row['model']} {row['method']} {row['kind']} {row['domain']}".casefold()
        )
    ]


def run_named(db: sqlite3.Connection, key: str) -> dict[str, Any] | None:
    row = db.execute("SELECT * FROM runs WHERE key = ?", (key,)).fetchone()
    return run_row(row) if row else None


def parts_of(db: sqlite3.Connection, run: str) -> dict[str, int]:
    """The sets of dialogues a run holds (train, before, after, validation_00010), and how many of each."""
    rows = db.execute(
        "SELECT part, count(*) FROM dialogues WHERE run = ? GROUP BY part ORDER BY part", (run,)
    )
    found = dict(tuple(row) for row in rows)
    first = [part for part in ("train", "before", "after") if part in found]
    return {part: found[part] for part in [*first, *(p for p in found if p not in first)]}


def problems_of(db: sqlite3.Connection, run: str) -> list[dict[str, Any]]:
    """Damaged lines and unfinished ends of a run's dialogue files."""
    rows = db.execute(
        "SELECT f.key, p.line, p.problem FROM problems p JOIN files f ON f.id = p.file WHERE f.run = ?"
        " ORDER BY f.key, p.line LIMIT 500",
        (run,),
    )
    found = [{"file": r["key"], "line": r["line"], "problem": r["problem"]} for r in rows]
    torn = db.execute("SELECT key, size - done AS left FROM files WHERE run = ? AND size > done", (run,))
    return found + [
        {"file": r["key"], "line": None, "problem": f"unfinished last line ({r['left']:,} bytes)"}
        for r in torn
    ]


# ---- dialogues


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which dialogues; what is empty or None asks for nothing."""

    run: str = ""
    part: str = ""
    step: int | None = None
    scenario: str = ""
    ending: str = ""
    low: float | None = None
    high: float | None = None
    words: str = ""
    sort: str = "newest"
    page: int = 1


_WHOLE = (
    "SELECT d.*, f.key AS place, f.path, r.name FROM dialogues d JOIN files f ON f.id = d.file"
    " JOIN runs r ON r.key = d.run"
)
SORTS = {
    "newest": "d.step IS NULL, d.step DESC, d.n",
    "oldest": "d.step, d.n",
    "reward": "d.reward IS NULL, d.reward DESC, d.n",
    "reward-up": "d.reward IS NULL, d.reward, d.n",
    "epm_q": "d.epm_q IS NULL, d.epm_q DESC, d.n",
    "turns": "d.turns DESC, d.n",
}


def dialogues(db: sqlite3.Connection, wanted: Wanted) -> tuple[list[Row], int]:
    """One page of them, and how many there are in all."""
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
    if wanted.words.strip():
        found = _matches(db, wanted.words, wanted.run)
        tests.append(("d.n IN (SELECT value FROM json_each(?))", json.dumps(found)))
    where = f"WHERE {' AND '.join(t for t, _ in tests)}" if tests else ""
    values = [value for _, value in tests]
    total = db.execute(f"SELECT count(*) FROM dialogues d {where}", values).fetchone()[0]  # noqa: S608
    order = SORTS.get(wanted.sort, SORTS["newest"])
    at = [*values, (max(1, wanted.page) - 1) * PAGE]
    picked = db.execute(f"SELECT d.n FROM dialogues d {where} ORDER BY {order} LIMIT {PAGE} OFFSET ?", at)  # noqa: S608
    rows = [db.execute(f"{_WHOLE} WHERE d.n = ?", (n,)).fetchone() for (n,) in picked.fetchall()]
    return rows, total


def _matches(db: sqlite3.Connection, words: str, run: str) -> list[int]:
    """Numbers of the dialogues that hold the words, the latest MATCHES of them."""
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
    """Those of a run; all there are where none is named."""
    if not run:
        return [*(reason.value for reason in StopReason), "unfinished"]
    return [
        row[0] for row in db.execute("SELECT DISTINCT ending FROM dialogues WHERE run = ? ORDER BY 1", (run,))
    ]


def scenarios(db: sqlite3.Connection, run: str) -> list[str]:
    rows = db.execute("SELECT DISTINCT scenario FROM dialogues WHERE run = ? ORDER BY 1 LIMIT 500", (run,))
    return [row[0] for row in rows]


def place(db: sqlite3.Connection, run: str, file: str, line: int) -> Row | None:
    """A dialogue by its address."""
    found: Row | None = db.execute(
        f"{_WHOLE} WHERE f.run = ? AND f.key = ? AND d.line = ?",
        (run, file, line),
    ).fetchone()
    return found


def path_of(row: Row) -> Path:
    return Path(os.fsdecode(row["path"]))


def batch_of(db: sqlite3.Connection, row: Row) -> list[Row]:
    """All dialogues played in the same batch: of a step, or of a test. Those that were played again count as
    they were in the end, so `row` may not be among them."""
    return db.execute(
        f"{_WHOLE} WHERE d.run = ? AND d.part = ? AND d.step IS ? AND d.counts ORDER BY d.id, d.n",
        (row["run"], row["part"], row["step"]),
    ).fetchall()


def set_rows(db: sqlite3.Connection, run: str, part: str) -> list[Row]:
    """The dialogues of a set that count."""
    return db.execute(
        f"{_WHOLE} WHERE d.run = ? AND d.part = ? AND d.counts ORDER BY f.key, d.line",
        (run, part),
    ).fetchall()


# ---- numbers


Mean = tuple[float, float | None, float | None, int]
"""Mean, the ends of its 95 % interval (None for too few scenarios), and of how many dialogues or turns."""
COUNTED = "counts = 1 AND error = 0"
"""Of all dialogues those that numbers are made of: neither broken nor played again."""


def means_by_step(db: sqlite3.Connection, run: str, part: str, column: str) -> dict[int, Mean]:
    """A column's mean at each step, over turns for the reward, over dialogues for EPM-Q; with its interval
    over scenarios."""
    sums = {"reward": ("earned", "heard"), "epm_q": ("epm_q", "epm_q IS NOT NULL")}
    if column not in sums:
        raise ValueError(column)
    value, weight = sums[column]
    rows = db.execute(
        f"SELECT step, sum({value}), sum({weight}) FROM dialogues"  # noqa: S608 (names from above)
        f" WHERE run = ? AND (part = ? OR (? = 'validation' AND part LIKE 'validation~_%' ESCAPE '~'))"
        f" AND {COUNTED} AND {value} IS NOT NULL AND {weight} AND step IS NOT NULL"
        f" GROUP BY step, scenario ORDER BY step, min(n)",
        (run, part, part),
    )
    by_step: dict[int, list[tuple[float, int]]] = {}
    for step, total, n in rows:
        by_step.setdefault(step, []).append((total, n))
    return {step: mean_of(found, by_turn=column == "reward") for step, found in by_step.items()}


def mean_of(groups: Sequence[tuple[float, int]], *, by_turn: bool = False) -> Mean:
    """Of each scenario's sum and what it is a sum of: dialogues, or turns."""
    n = sum(count for _, count in groups)
    ends = interval(tuple(groups), by_turn) or (None, None)
    return sum(total for total, _ in groups) / n, *ends, n


@lru_cache(maxsize=16384)
def interval(groups: tuple[tuple[float, int], ...], by_turn: bool) -> Interval | None:
    """Of a mean, by drawing whole scenarios: dialogues of one are alike. A longer scenario counts for more
    where the mean is over turns; `mapo score` counts each the same."""
    if len(groups) < FEWEST:
        return None
    rows = np.array(groups) if by_turn else np.array([(total / n, 1.0) for total, n in groups])
    ends = bootstrap(rows, lambda drawn: drawn[..., :1] / drawn[..., 1:])
    return None if ends is None else told(*ends[0], rows=len(groups))


def endings_by_step(db: sqlite3.Connection, run: str) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for ending, step, n in db.execute(
        "SELECT ending, step, count(*) FROM dialogues WHERE run = ? AND part = 'train' AND step IS NOT NULL"  # noqa: S608
        f" AND {COUNTED} GROUP BY ending, step",
        (run,),
    ):
        found.setdefault(ending, {})[step] = n
    return found
