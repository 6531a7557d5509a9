"""(state before, state after) -> the turn's reward. One sign everywhere: higher is better.

The default, `idr`, pays for movement: by how much the turn shortened the distance to "nothing more
needed". With gamma = 1 it telescopes: a dialogue's rewards sum to D_0 - D_T, so nothing can be earned
by moving back and forth. `adr` pays for where the person stands; each turn then also pays for all the
turns before it, and every turn costs, so ending a dialogue early looks good.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Literal

from mapo.errors import InputError
from mapo.sandbox.potential import Path, origin_distance
from mapo.sandbox.rubric import Rubric
from mapo.types import Ending, PotentialState, StopReason

Distance = Literal["zone", "origin"]
Reward = Callable[[PotentialState, PotentialState, Ending | None], float]
"""(before, after, ending): `ending` is None on every turn but the last."""

REWARDS = ("idr", "adr", "potential", "increment", "outcome")


def reward_named(
    name: str,
    rubric: Rubric,
    *,
    distance: Distance = "zone",
    gamma: float = 1.0,
    scale: float = 10.0,
) -> Reward:
    """The reward function `name`. `gamma` and `scale` matter to `potential` alone.

    idr        D_before - D_after
    adr        -D_after
    potential  gamma * Phi(after) - Phi(before), Phi(P) = scale / (scale + ||P||)
    increment  the step's weighted sum over axes, surplus included
    outcome    1 on the last turn of a dialogue that succeeded, 0 otherwise
    """
    if distance not in ("zone", "origin"):
        raise InputError(f"unknown distance '{distance}'", fix="Use 'zone' or 'origin'")

    def far(state: PotentialState) -> float:
        return state.distance if distance == "zone" else origin_distance(state.position, rubric)

    def idr(before: PotentialState, after: PotentialState, _: Ending | None) -> float:
        return far(before) - far(after)

    def adr(_: PotentialState, after: PotentialState, __: Ending | None) -> float:
        return -far(after)

    def potential(before: PotentialState, after: PotentialState, _: Ending | None) -> float:
        def phi(state: PotentialState) -> float:
            return scale / (scale + origin_distance(state.position, rubric))

        return gamma * phi(after) - phi(before)

    def increment(before: PotentialState, after: PotentialState, _: Ending | None) -> float:
        moves = zip(rubric.weights, before.position, after.position, strict=True)
        return sum(w * (b - a) for w, a, b in moves)

    def outcome(_: PotentialState, __: PotentialState, ending: Ending | None) -> float:
        return float(ending is not None and ending.reason is StopReason.SUCCESS)

    table: dict[str, Reward] = dict(zip(REWARDS, (idr, adr, potential, increment, outcome), strict=True))
    if name not in table:
        raise InputError(f"unknown reward '{name}'", fix=f"Use one of: {', '.join(REWARDS)}")
    return table[name]


def rewards_of(path: Path, reward: Reward) -> list[float | None]:
    """The rewards of a finished path, None for each turn that nobody could judge."""
    last, ending = len(path.states) - 1, path.ending()
    return [
        None if after.step is None else reward(before, after, ending if after.turn == last else None)
        for before, after in pairwise(path.states)
    ]
