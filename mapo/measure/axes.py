"""Movement per axis: what the judge's form says before it is collapsed to one distance.

The reward of an axis is the part of its deficit that the turn removed; a surplus beyond the zone counts
for nothing, as in the zone distance. Regression is kept apart as well, because a reply that helps on one axis
and harms on another can look neutral in the sum.
"""

from __future__ import annotations

from collections.abc import Sequence

from mapo.measure.rubric import Rubric
from mapo.types import Dialogue, Turn, Vector

REGRESSION = "regression"
"""The name of the column beside the axes."""


def axis_rewards(dialogue: Dialogue, rubric: Rubric) -> dict[str, list[float | None]]:
    """Return, for every axis, the deficit that each turn removed; None for unscored turns."""
    rows = [
        None if turn.state is None or turn.reward is None else _removed(before, turn.state.position, rubric)
        for before, turn in zip(positions_before(dialogue), dialogue.turns, strict=True)
    ]
    return {key: [None if row is None else row[k] for row in rows] for k, key in enumerate(rubric.keys)}


def regressions(dialogue: Dialogue, rubric: Rubric) -> list[float | None]:
    """Return the weighted regression of each turn, 0 or negative; None for unscored turns."""
    return [_regression(turn, rubric) for turn in dialogue.turns]


def positions_before(dialogue: Dialogue) -> list[Vector]:
    """Return the position before each turn."""
    positions, position = [], dialogue.start
    for turn in dialogue.turns:
        positions.append(position)
        position = turn.state.position if turn.state is not None else position
    return positions


def _removed(before: Sequence[float], after: Sequence[float], rubric: Rubric) -> list[float]:
    return [
        max(0.0, -rubric.zone - a) - max(0.0, -rubric.zone - b) for a, b in zip(before, after, strict=True)
    ]


def _regression(turn: Turn, rubric: Rubric) -> float | None:
    if turn.levels is None or turn.reward is None:
        return None
    harm = rubric.regression(turn.levels)
    return sum(w * x for w, x in zip(rubric.weights, harm, strict=True))
