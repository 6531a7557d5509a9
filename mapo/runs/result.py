"""What a result.json of `mapo eval emobench` or `eqbench` says, in points of 100: for viewer and report.

EmoBench writes shares, EQ-Bench points; people read points. A run that lacks items has no score: those that
are missing may be the hard ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mapo.runs.contents import number

HEADLINES = {"emobench": "Overall", "eqbench3": "EQ-Bench", "eqbench_v2": "EQ-Bench v2"}
"""The one score that stands for a benchmark."""
_SHARES = {"languages", "parse_rate", "baselines"}
"""EmoBench's details that are shares of 1; the others are counts."""


def scores_in_points(result: Mapping[str, Any]) -> dict[str, float | None]:
    """Every score by its name; None where it is no number, and all of an incomplete run."""
    return {
        name: in_points(result, value) if result.get("complete") is True else None
        for name, value in _object(result.get("scores")).items()
    }


def intervals_in_points(result: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """The intervals of the scores that have both."""
    found = {}
    for name, pair in _object(result.get("intervals")).items():
        ends = [in_points(result, end) for end in pair] if isinstance(pair, list) and len(pair) == 2 else []
        if ends and ends[0] is not None and ends[1] is not None and result.get("complete") is True:
            found[name] = (ends[0], ends[1])
    return found


def headline(result: Mapping[str, Any]) -> float | None:
    """The benchmark's score; None of an incomplete run, and of a benchmark that is not known here."""
    name = HEADLINES.get(str(result.get("benchmark")))
    return scores_in_points(result).get(name) if name else None


def details_in_points(result: Mapping[str, Any]) -> dict[str, Any]:
    """`details` with shares as points."""
    details = _object(result.get("details"))
    if result.get("benchmark") != "emobench":
        return details
    return {k: _times_100(v, 0) if k in _SHARES else v for k, v in details.items()}


def in_points(result: Mapping[str, Any], value: object) -> float | None:
    found = number(value)
    return found if found is None or result.get("benchmark") != "emobench" else 100 * found


def _times_100(value: Any, depth: int) -> Any:
    if isinstance(value, dict):
        return {k: _times_100(v, depth + 1) for k, v in value.items()} if depth < 8 else None
    found = number(value)
    return value if found is None else 100 * found


def _object(data: object) -> dict[str, Any]:
    return data if isinstance(data, dict) else {}
