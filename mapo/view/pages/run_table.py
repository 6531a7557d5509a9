"""Rows of the list of runs: sorting, and runs that differ only in their seed grouped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from mapo.view.pages.site import ordered

RunRow = dict[str, Any]
COLUMNS: dict[str, Callable[[RunRow], Any]] = {
    "name": lambda run: run["name"].casefold(),
    "state": lambda run: run["state"],
    "method": lambda run: f"{run['kind']} {run['method']}",
    "judge": lambda run: run["context"]["judge"] or run["judge"],
    "scenarios": lambda run: run["context"]["scenarios"],
    "step": lambda run: run["step"],
    "score": lambda run: run["score"],
    "dialogues": lambda run: run["dialogues"],
    "changed": lambda run: run["changed"],
}
"""Columns by which the list can be sorted."""


def grouped(runs: Sequence[RunRow], sort: str, *, apart: bool = False) -> list[dict[str, Any]]:
    """Return the entries of the list: runs, and groups of runs that differ only in their seed.

    An entry has `runs`. A group also has a `label`, the mean of its scores and their range. With `apart`
    nothing is grouped.
    """
    if apart:
        return [{"runs": [run], "label": ""} for run in ordered(runs, sort, COLUMNS)]
    members: dict[object, list[RunRow]] = {}
    for run in runs:
        members.setdefault(_group_key(run), []).append(run)
    entries = [_entry(group, sort) for group in members.values()]
    columns = {name: _of_entry(column) for name, column in COLUMNS.items()}
    return ordered(entries, sort, columns) if sort else entries


def _group_key(run: RunRow) -> object:
    if run["kind"] != "train" or run["seed"] is None or run["score"] is None:
        return run["key"]
    folder = run["key"].rpartition(":")[0]
    context = run["context"]
    same = ("method", "reward", "model", "domain", "steps", "score_part", "variant")
    return (folder, context["judge"], context["scenarios"], *(run[name] for name in same))


def _entry(group: list[RunRow], sort: str) -> dict[str, Any]:
    seeds = {run["seed"] for run in group}
    if len(group) == 1 or len(seeds) < len(group):  # the same seed twice is a repetition, not a seed group
        return {"runs": ordered(group, sort, COLUMNS), "label": ""}
    group = ordered(group, sort, COLUMNS) if sort else sorted(group, key=lambda run: run["seed"])
    scores = [run["score"] for run in group]
    first = group[0]
    name = f"{first['method']}, reward {first['reward']}" if first["reward"] else first["method"]
    return {
        "runs": group,
        "label": f"{name}: {len(group)} seeds",
        "mean": fmean(scores),
        "low": min(scores),
        "high": max(scores),
    }


def _of_entry(column: Callable[[RunRow], Any]) -> Callable[[dict[str, Any]], Any]:
    def value(entry: dict[str, Any]) -> Any:
        values = [column(run) for run in entry["runs"]]
        if entry["label"] and all(isinstance(v, float) for v in values) and column is COLUMNS["score"]:
            return fmean(values)
        return values[0]

    return value
