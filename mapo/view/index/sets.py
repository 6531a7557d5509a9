"""Evaluation sets: their scores by category, axis, difficulty and scenario, and result files of benchmarks.

A *set* holds the dialogues of one evaluation: an EMPA run, or an evaluation of a training run. URLs name it
RUN|PART.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from mapo.runs.contents import details_in_points, intervals_in_points, number, scores_in_points
from mapo.runs.files import read_small
from mapo.store import RunDir
from mapo.text import printable
from mapo.view.index.context import PLAYERS, context_of
from mapo.view.index.files import RunFiles
from mapo.view.index.queries import COUNTED, Mean, mean_of

GROUPINGS = ("category", "axis", "difficulty")
COLUMNS = ("epm_q", "outcome", "efficiency", "stability")
MOST_DRAWN = 6
"""Sets in one chart."""
TIE = 0.05
"""A difference of EPM-Q that is shown as 0.0 counts as a tie."""


def sets(db: sqlite3.Connection, run: str = "") -> list[dict[str, Any]]:
    """Return every set, newest run first. Training dialogues are not a set."""
    of_run = "AND d.run = ?" if run else ""
    sums = ", ".join(f"sum(d.{c}) AS {c}" for c in (*COLUMNS, "turns", "passed"))
    rows = db.execute(
        "SELECT d.run, d.part, d.scenario, max(r.name) AS name, max(r.changed) AS changed,"  # noqa: S608 (above)
        f" max(r.facts) AS facts, max(d.model) AS model, count(*) AS n, count(d.epm_q) AS scored, {sums}"
        " FROM dialogues d JOIN runs r ON r.key = d.run"
        f" WHERE d.part <> 'train' AND d.counts = 1 AND d.error = 0 {of_run}"
        " GROUP BY d.run, d.part, d.scenario ORDER BY d.run, d.part, min(d.n)",
        (run,) if run else (),
    ).fetchall()
    groups: dict[tuple[str, str], list[sqlite3.Row]] = {}
    for row in rows:
        groups.setdefault((row["run"], row["part"]), []).append(row)
    summaries = [_set(db, key, part, members) for (key, part), members in groups.items()]
    return sorted(summaries, key=lambda s: (-s["changed"], s["run"], _order(s["part"])))


def _order(part: str) -> tuple[int, str]:
    return {"before": 0, "after": 1}.get(part, 2), part


def _set(db: sqlite3.Connection, key: str, part: str, members: Sequence[sqlite3.Row]) -> dict[str, Any]:
    n = sum(m["n"] for m in members)
    scored = [m for m in members if m["scored"]]
    means = {c: _mean(c, scored) if scored else None for c in COLUMNS}
    first = members[0]
    return {
        "key": f"{key}|{part}",
        "run": key,
        "part": part,
        "name": first["name"],
        "model": first["model"],
        "changed": first["changed"],
        "n": n,
        "passes": sum(m["passed"] for m in members),
        "turns": sum(m["turns"] for m in members) / n,
        "incomplete": json.loads(first["facts"])["incomplete"] if part == "empa" else "",
        "scores": means,
        "context": context_of(db.execute(PLAYERS, (key, part)).fetchall()),
    }


def _mean(column: str, members: Sequence[sqlite3.Row]) -> Mean:
    """Return the mean of a column; EPM-Q has an interval."""
    sums = [(m[column], m["scored"]) for m in members]
    if column == "epm_q":
        return mean_of(sums)
    n = sum(count for _, count in sums)
    return sum(total for total, _ in sums) / n, None, None, n


def by_group(db: sqlite3.Connection, key: str, by: str) -> dict[str, Mean]:
    """Return the EPM-Q of a set for each category, axis or difficulty."""
    if by not in GROUPINGS:
        raise ValueError(by)
    run, _, part = key.partition("|")
    rows = db.execute(
        f"SELECT {by} AS name, sum(epm_q) AS total, count(epm_q) AS n FROM dialogues"  # noqa: S608 (a name above)
        f" WHERE run = ? AND part = ? AND {COUNTED} AND epm_q IS NOT NULL"
        f" GROUP BY {by}, scenario ORDER BY min(dialogues.n)",
        (run, part),
    ).fetchall()
    groups: dict[str, list[tuple[float, int]]] = {}
    for row in rows:
        groups.setdefault(row["name"] or "unknown", []).append((row["total"], row["n"]))
    return {name: mean_of(sums) for name, sums in sorted(groups.items())}


# ---- scenario by scenario


def by_scenario(db: sqlite3.Connection, key: str) -> dict[str, dict[str, Any]]:
    """Return EPM-Q, passes and length of a set for each scenario. EPM-Q is None where nothing was scored."""
    run, _, part = key.partition("|")
    rows = db.execute(
        "SELECT scenario, avg(epm_q) AS epm_q, sum(passed) AS passes, count(*) AS n, avg(turns) AS turns,"  # noqa: S608
        " max(category) AS category, max(difficulty) AS difficulty FROM dialogues"
        f" WHERE run = ? AND part = ? AND {COUNTED} GROUP BY scenario ORDER BY scenario LIMIT 5000",
        (run, part),
    ).fetchall()
    return {row["scenario"]: dict(row) for row in rows}


def scenario_table(db: sqlite3.Connection, first: str, second: str = "") -> dict[str, Any]:
    """Return one row per scenario of a set or of two sets, and how often the second set scores higher."""
    left, right = by_scenario(db, first), by_scenario(db, second) if second else {}
    rows = []
    for name in dict.fromkeys([*left, *right]):
        a, b = left.get(name), right.get(name)
        known = a and b and a["epm_q"] is not None and b["epm_q"] is not None
        difference = b["epm_q"] - a["epm_q"] if a and b and known else None
        rows.append(
            {
                "scenario": name,
                "a": a,
                "b": b,
                "category": (a or b or {}).get("category", ""),
                "difficulty": (a or b or {}).get("difficulty", ""),
                "difference": difference,
                "result": _result(difference),
            }
        )
    differences = [row["difference"] for row in rows if row["difference"] is not None]
    results = [row["result"] for row in rows]
    return {
        "rows": rows,
        "mean": mean_of([(d, 1) for d in differences]) if differences else None,
        **{f"{word}": results.count(word) for word in ("win", "loss", "tie")},
    }


def _result(difference: float | None) -> str:
    if difference is None:
        return ""
    return "tie" if abs(difference) < TIE else "win" if difference > 0 else "loss"


# ---- result files


def result_of(run: RunFiles) -> dict[str, Any] | None:
    """Return a result.json for display; None if there is none that can be read."""
    data, _ = read_small(RunDir(run.root).result) if run.has(RunDir.result) else (None, "")
    if not isinstance(data, dict) or not isinstance(data.get("scores"), dict):
        return None
    intervals = intervals_in_points(data)
    rows = []
    for name, value in list(scores_in_points(data).items())[:100]:
        low, high = intervals.get(name, (None, None))
        rows.append({"name": printable(name)[:80], "value": value, "low": low, "high": high})
    notes = data.get("notes")
    return {
        "benchmark": printable(str(data.get("benchmark", "")))[:40],
        "model": printable(str(data.get("model", "")))[:200],
        "judge": printable(str(data.get("judge") or "")),
        "complete": data.get("complete") is True,
        "n": data.get("n"),
        "of": data.get("of"),
        "scores": rows,
        "tables": list(_tables(details_in_points(data)))[:12],
        "notes": [printable(str(note))[:500] for note in notes[:20]] if isinstance(notes, list) else [],
    }


def _tables(details: object, title: str = "") -> list[tuple[str, list[tuple[str, float]]]]:
    """Return every group of numbers in `details`, at any depth, as a small table."""
    if not isinstance(details, dict):
        return []
    numbers = [(printable(str(k))[:80], v) for k, raw in details.items() if (v := number(raw)) is not None]
    tables = [(title or "details", numbers)] if numbers else []
    for name, inner in details.items():
        label = f"{title} / {name}" if title else str(name)
        tables += _tables(inner, printable(label)[:120]) if label.count("/") < 4 else []
    return tables
