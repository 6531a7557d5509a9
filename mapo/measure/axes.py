"""Movement per axis: what the judge's form says before it is collapsed to one distance.

The reward of an axis is the part of its deficit that the turn removed; a surplus beyond the zone counts
for nothing, as in the zone distance. Regression is kept apart as well, because a reply that helps on one axis
and harms on another can look neutral in the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from mapo.errors import InputError
from mapo.measure.potential import Trajectory
from mapo.measure.rubric import Rubric
from mapo.types import Dialogue, Levels, Turn, Vector

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


# ---- means


@dataclass(frozen=True, slots=True)
class Movement:
    """Means over scored turns: the reward on each axis, the weighted regression, and the share of turns with
    any regression. None if no turn is scored.
    """

    axes: dict[str, float | None] = field(default_factory=dict)
    regression: float | None = None
    regressed: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the fields as they are named in metrics.jsonl and in scores."""
        return {"axis_rewards": self.axes, REGRESSION: self.regression, "regressed": self.regressed}


def movement_of(dialogues: Iterable[Dialogue], rubric: Rubric) -> Movement:
    """Return the mean movement of recorded dialogues."""
    rewards: dict[str, list[float]] = {key: [] for key in rubric.keys}
    harm: list[float] = []
    for dialogue in dialogues:
        for key, row in axis_rewards(dialogue, rubric).items():
            rewards[key] += [value for value in row if value is not None]
        harm += [value for value in regressions(dialogue, rubric) if value is not None]
    return _means(rewards, harm)


def movement_of_paths(paths: Iterable[Trajectory]) -> Movement:
    """Return the mean movement of recomputed dialogues of one rubric."""
    rewards: dict[str, list[float]] = {}
    harm: list[float] = []
    for path in paths:
        for key in path.rubric.keys:
            rewards.setdefault(key, [])
        for before, after in pairwise(path.states):
            if after.step is not None:
                removed = _removed(before.position, after.position, path.rubric)
                for key, value in zip(path.rubric.keys, removed, strict=True):
                    rewards[key].append(value)
        harm += [_weighted_regression(levels, path.rubric) for levels in path.forms]
    return _means(rewards, harm)


def _means(rewards: dict[str, list[float]], harm: list[float]) -> Movement:
    return Movement(
        {key: _mean(values) for key, values in rewards.items()},
        _mean(harm),
        _mean([float(value < 0) for value in harm]),
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _removed(before: Sequence[float], after: Sequence[float], rubric: Rubric) -> list[float]:
    if not len(before) == len(after) == len(rubric.axes):
        raise InputError(
            f"the positions {list(before)} and {list(after)} do not fit the rubric '{rubric.name}'",
            fix="Use the rubric with which the dialogue was judged",
        )
    return [
        max(0.0, -rubric.zone - a) - max(0.0, -rubric.zone - b) for a, b in zip(before, after, strict=True)
    ]


def _regression(turn: Turn, rubric: Rubric) -> float | None:
    if turn.levels is None or turn.reward is None:
        return None
    return _weighted_regression(turn.levels, rubric)


def _weighted_regression(levels: Levels, rubric: Rubric) -> float:
    return sum(w * x for w, x in zip(rubric.weights, rubric.regression(levels), strict=True))
