"""Turn rewards: (state before, state after) -> a number. Higher is always better.

The default, `idr`, rewards movement: by how much the turn reduced the distance D to the target zone
(incremental distance reward, arXiv:2603.06194). Without discounting it telescopes: the rewards of a dialogue
sum to D_0 - D_T, so moving back and forth earns nothing. `adr` (absolute distance reward) rewards the state
itself. It also charges each turn for the turns before it, and because every turn costs something, ending a
dialogue early looks favourable.

A reward is one number per turn. The movement on each axis, and regression on its own, are in
`mapo.measure.axes`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mapo.errors import InputError
from mapo.measure.potential import Trajectory, origin_distance
from mapo.measure.rubric import Rubric
from mapo.types import Ending, PotentialState, StopReason

Distance = Literal["zone", "origin"]


@dataclass(frozen=True, slots=True)
class Measure:
    """The geometry in which rewards are computed. Only the reward `potential` uses `gamma` and `scale`."""

    rubric: Rubric
    distance: Distance = "zone"
    gamma: float = 1.0
    scale: float = 10.0

    def distance_of(self, state: PotentialState) -> float:
        """Return D: the distance of `state` from the target zone, or from the origin."""
        return state.distance if self.distance == "zone" else origin_distance(state.position, self.rubric)

    def phi(self, state: PotentialState) -> float:
        """Return the potential Phi(P) = scale / (scale + ||P||), which is 1 at the origin."""
        return self.scale / (self.scale + origin_distance(state.position, self.rubric))


@dataclass(frozen=True, slots=True)
class RecordedReward:
    """The reward that a record's turns carry, written as NAME/DISTANCE, for `potential` also /GAMMA.

    Records of `potential` without a gamma were computed with 1.
    """

    name: str
    distance: Distance = "zone"
    gamma: float = 1.0

    def __str__(self) -> str:
        discount = f"/{self.gamma!r}" if self.name == "potential" and self.gamma != 1 else ""
        return f"{self.name}/{self.distance}{discount}"

    @classmethod
    def read(cls, text: str) -> RecordedReward:
        """Read what `str` wrote. The name may be unknown; other parts that make no sense are defaults."""
        name, distance, gamma = [*text.split("/", 2), "", ""][:3]
        try:
            discount = float(gamma) if gamma else 1.0
        except ValueError:
            discount = 1.0
        return cls(
            name, "origin" if distance == "origin" else "zone", discount if 0 <= discount <= 1 else 1.0
        )


Reward = Callable[[Measure, PotentialState, PotentialState, Ending | None], float]
"""(measure, before, after, ending) -> reward. `ending` is None except on the last scored turn."""


def idr(m: Measure, before: PotentialState, after: PotentialState, _: Ending | None) -> float:
    """Incremental distance reward: r_t = D_{t-1} - D_t."""
    return m.distance_of(before) - m.distance_of(after)


def adr(m: Measure, _: PotentialState, after: PotentialState, __: Ending | None) -> float:
    """Absolute distance reward: r_t = -D_t."""
    return -m.distance_of(after)


def potential(m: Measure, before: PotentialState, after: PotentialState, _: Ending | None) -> float:
    """Potential-based shaping: r_t = gamma * Phi(P_t) - Phi(P_{t-1})."""
    return m.gamma * m.phi(after) - m.phi(before)


def increment(m: Measure, before: PotentialState, after: PotentialState, _: Ending | None) -> float:
    """Weighted sum of the step vector: r_t = sum over axes of w * (P_t - P_{t-1}). Surplus counts as well."""
    moves = zip(m.rubric.weights, before.position, after.position, strict=True)
    return sum(w * (b - a) for w, a, b in moves)


def outcome(_: Measure, __: PotentialState, ___: PotentialState, ending: Ending | None) -> float:
    """Outcome reward: 1 on the last scored turn of a successful dialogue, 0 otherwise."""
    return float(ending is not None and ending.reason is StopReason.SUCCESS)


REWARDS: dict[str, Reward] = {
    "idr": idr,
    "adr": adr,
    "potential": potential,
    "increment": increment,
    "outcome": outcome,
}


RANK = "rank"
"""The reward that compares siblings. It does not depend on states: a pass over finished dialogues sets it
(`mapo.sandbox.ranking`), and until then turns have no reward."""


def rewards_of(
    trajectory: Trajectory,
    name: str = "idr",
    *,
    distance: Distance = "zone",
    gamma: float = 1.0,
    scale: float = 10.0,
    ending: Ending | None = None,
) -> list[float | None]:
    """Return the rewards of all turns of a finished dialogue, None for unscored turns.

    `ending` is needed only if the dialogue did not end by the rules of its trajectory (if the director ended
    it, for example).
    """
    _check(name, distance)
    ending = ending or trajectory.ending()
    last_scored = max((s.turn for s in trajectory.states if s.step is not None), default=0)
    return [
        turn_reward(
            trajectory,
            turn,
            name,
            distance=distance,
            gamma=gamma,
            scale=scale,
            ending=ending if turn == last_scored else None,
        )
        for turn in range(1, len(trajectory.states))
    ]


def turn_reward(
    trajectory: Trajectory,
    turn: int,
    name: str = "idr",
    *,
    distance: Distance = "zone",
    gamma: float = 1.0,
    scale: float = 10.0,
    ending: Ending | None = None,
) -> float | None:
    """Return the reward of one turn, counted from 1, or None if it is unscored.

    Pass the `ending` of the dialogue for its last scored turn, and None for all other turns.
    """
    _check(name, distance)
    before, after = trajectory.states[turn - 1], trajectory.states[turn]
    if after.step is None or name == RANK:
        return None
    return REWARDS[name](Measure(trajectory.rubric, distance, gamma, scale), before, after, ending)


def _check(name: str, distance: str) -> None:
    if name not in (*REWARDS, RANK):
        raise InputError(f"unknown reward '{name}'", fix=f"Use one of: {', '.join((*REWARDS, RANK))}")
    if distance not in ("zone", "origin"):
        raise InputError(f"unknown distance '{distance}'", fix="Use 'zone' or 'origin'")
