"""(state before, state after) -> the turn's reward. One sign everywhere: higher is better.

The default, `idr`, pays for movement: by how much the turn shortened the distance to "nothing more
needed". With gamma = 1 it telescopes: a dialogue's rewards sum to D_0 - D_T, so nothing can be earned
by moving back and forth. `adr` pays for where the person stands; each turn then also pays for all the
turns before it, and every turn costs, so ending a dialogue early looks good.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from mapo.errors import InputError
from mapo.measure.potential import Trajectory, origin_distance
from mapo.measure.rubric import Rubric
from mapo.types import Ending, PotentialState, StopReason

Distance = Literal["zone", "origin"]


@dataclass(frozen=True, slots=True)
class Measure:
    """What the reward functions measure with. `gamma` and `scale` matter to `potential` alone."""

    rubric: Rubric
    distance: Distance = "zone"
    gamma: float = 1.0
    scale: float = 10.0

    def far(self, state: PotentialState) -> float:
        return state.distance if self.distance == "zone" else origin_distance(state.position, self.rubric)

    def phi(self, state: PotentialState) -> float:
        return self.scale / (self.scale + origin_distance(state.position, self.rubric))


Reward = Callable[[Measure, PotentialState, PotentialState, Ending | None], float]
"""(measure, before, after, ending): `ending` is None on every turn but the last judged one."""


def idr(m: Measure, before: PotentialState, after: PotentialState, _: Ending | None) -> float:
    """Incremental distance: D_before - D_after."""
    return m.far(before) - m.far(after)


def adr(m: Measure, _: PotentialState, after: PotentialState, __: Ending | None) -> float:
    """Absolute distance: -D_after."""
    return -m.far(after)


def potential(m: Measure, before: PotentialState, after: PotentialState, _: Ending | None) -> float:
    """gamma * Phi(after) - Phi(before), Phi(P) = scale / (scale + ||P||)."""
    return m.gamma * m.phi(after) - m.phi(before)


def increment(m: Measure, before: PotentialState, after: PotentialState, _: Ending | None) -> float:
    """The step's weighted sum over axes, surplus included."""
    moves = zip(m.rubric.weights, before.position, after.position, strict=True)
    return sum(w * (b - a) for w, a, b in moves)


def outcome(_: Measure, __: PotentialState, ___: PotentialState, ending: Ending | None) -> float:
    """1 on the last judged turn of a dialogue that succeeded, 0 otherwise."""
    return float(ending is not None and ending.reason is StopReason.SUCCESS)


REWARDS: dict[str, Reward] = {
    "idr": idr,
    "adr": adr,
    "potential": potential,
    "increment": increment,
    "outcome": outcome,
}


def rewards_of(
    path: Trajectory,
    name: str = "idr",
    *,
    distance: Distance = "zone",
    gamma: float = 1.0,
    scale: float = 10.0,
    ending: Ending | None = None,
) -> list[float | None]:
    """Return the rewards of a finished dialogue, None for each turn that was not judged.

    `ending` is how it ended, if not by the rules of its trajectory (a director's decision, say).
    """
    reward, measure = _reward_named(name), _measure(path, distance, gamma, scale)
    ending = ending or path.ending()
    last = max((s.turn for s in path.states[1:] if s.step is not None), default=0)
    return [
        None if after.step is None else reward(measure, before, after, ending if after.turn == last else None)
        for before, after in pairwise(path.states)
    ]


def turn_reward(
    path: Trajectory,
    turn: int,
    name: str = "idr",
    *,
    distance: Distance = "zone",
    gamma: float = 1.0,
    scale: float = 10.0,
    ending: Ending | None = None,
) -> float | None:
    """Return the reward of one turn, counted from 1; None if it was not judged.

    `ending` is how the dialogue ended, where this is its last judged turn; None while it goes on.
    """
    before, after = path.states[turn - 1], path.states[turn]
    if after.step is None:
        return None
    return _reward_named(name)(_measure(path, distance, gamma, scale), before, after, ending)


def _reward_named(name: str) -> Reward:
    if name not in REWARDS:
        raise InputError(f"unknown reward '{name}'", fix=f"Use one of: {', '.join(REWARDS)}")
    return REWARDS[name]


def _measure(path: Trajectory, distance: Distance, gamma: float, scale: float) -> Measure:
    if distance not in ("zone", "origin"):
        raise InputError(f"unknown distance '{distance}'", fix="Use 'zone' or 'origin'")
    return Measure(path.rubric, distance, gamma, scale)
