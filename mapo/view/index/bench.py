"""Benchmarks: sets of dialogues scored by category, axis and difficulty; result files of the others.

A *set* is what was played at once for a score: an EMPA run, or a training's test or validation. It is named
RUN|PART in addresses.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from mapo.runs.contents import details_in_points, intervals_in_points, number, scores_in_points
from mapo.runs.files import read_small
from mapo.store import RunDir
from mapo.text import printable
from mapo.view.index.files import RunFiles
from mapo.view.index.queries import COUNTED, Mean, mean_of

BY = ("category", "axis", "difficulty")
COLUMNS = ("epm_q", "outcome", "efficiency", "stability")
MOST = 6
"""Sets drawn in one figure."""


def sets(db: sqlite3.Connection, run: str = "") -> list[dict[str, Any]]:
    """Every set, the newest run first; a training's own dialogues are none."""
    of_run = "AND d.run = ?" if run else ""
    sums = ", ".join(f"sum(d.{c}) AS {c}" for c in (*COLUMNS, "turns", "passed"))
    rows = db.execute(
        "SELECT d.run, d.part, d.scenario, max(r.name) AS name, max(r.changed) AS changed,"  # noqa: S608 (above)
        f" max(d.model) AS model, count(*) AS n, count(d.epm_q) AS scored, {sums}"
        " FROM dialogues d JOIN runs r ON r.key = d.run"
        f" WHERE d.part <> 'train' AND d.counts = 1 AND d.error = 0 {of_run}"
        " GROUP BY d.run, d.part, d.scenario ORDER BY d.run, d.part, min(d.n)",
        (run,) if run else (),
    ).fetchall()
    groups: dict[tuple[str, str], list[sqlite3.Row]] = {}
    for row in rows:
        groups.setdefault((row["run"], row["part"]), []).append(row)
    found = [_set(key, part, members) for (key, part), members in groups.items()]
    return sorted(found, key=lambda s: (-s["changed"], s["run"], _order(s["part"])))


def _order(part: str) -> tuple[int, str]:
    return {"before": 0, "after": 1}.get(part, 2), part


def _set(key: str, part: str, members: Sequence[sqlite3.Row]) -> dict[str, Any]:
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
        "scores": means,
    }


def _mean(column: str, members: Sequence[sqlite3.Row]) -> Mean:
    """With an interval for EPM-Q, the one that is shown with it."""
    sums = [(m[column], m["scored"]) for m in members]
    if column == "epm_q":
        return mean_of(sums)
    n = sum(count for _, count in sums)
    return sum(total for total, _ in sums) / n, None, None, n


def by_group(db: sqlite3.Connection, key: str, by: str) -> dict[str, Mean]:
    """EPM-Q of a set for each category, axis or difficulty."""
    if by not in BY:
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
    return {name: mean_of(found) for name, found in sorted(groups.items())}


def result_of(run: RunFiles) -> dict[str, Any] | None:
    """A result.json as a page shows it; None where there is none that can be read."""
    data, _ = read_small(RunDir(run.root).result) if run.has(RunDir.result) else (None, "")
    if not isinstance(data, dict) or not isinstance(data.get("scores"), dict):
        return None
    ends = intervals_in_points(data)
    rows = []
    for name, value in list(scores_in_points(data).items())[:100]:
        low, high = ends.get(name, (None, None))
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
    """Every group of numbers in `details`, however deep, as a small table."""
    if not isinstance(details, dict):
        return []
    here = [(printable(str(k))[:80], v) for k, raw in details.items() if (v := number(raw)) is not None]
    found = [(title or "details", here)] if here else []
    for name, inner in details.items():
        label = f"{title} / {name}" if title else str(name)
        found += _tables(inner, printable(label)[:120]) if label.count("/") < 4 else []
    return found
