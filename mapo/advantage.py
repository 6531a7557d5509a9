"""Turn rewards -> turn advantages. NumPy in, NumPy out.

Every critic-free estimator normalises a value per turn within a set of peers. The estimators differ only in
the value and in the peers. A *group* is the set of dialogues played from the same scenario (siblings), r_t
the reward of turn t, and G_t = sum over k >= t of gamma^(k-t) r_k its Monte Carlo return, discounted per
turn.

    method            value       peers
    turn              G_t         the siblings' turns with the same index
    batch             r_t         all turns of all siblings (scope "batch": all turns of the batch)
    mapo              turn_weight * (turn) + (1 - turn_weight) * (batch)               arXiv:2603.06194
    grpo              sum of r    the siblings; one value for all turns of a dialogue  arXiv:2402.03300
    reinforce++       G_1         all dialogues of the batch; one value per dialogue   arXiv:2501.03262
    reinforce++_turn  r_t         all turns of the batch

Normalisation. z = (x - mean) / (std + 1e-8), with the population standard deviation. If a peer set has fewer
than two members or no variance, z = 0. By Samuelson's inequality, |z| <= sqrt(n - 1) for n peers.

Horizon. For mapo, turn and batch, `horizon` selects the turns that count. "available": a turn index counts
while at least two siblings reach it. "shortest": it counts up to the length of the group's shortest dialogue
(among those with a scored turn). Turns that do not count are excluded from the statistics and masked in the
loss, but their rewards remain part of the returns of earlier turns. The other methods do not compare turns of
siblings and use every scored turn.

Missing data. Unscored turns (None or NaN) are excluded from the statistics and masked in the loss. In the
returns of earlier turns they count as 0 and the discount still advances. A dialogue without a scored turn
belongs to no peer set.

Drift. If dialogues differ in length, adding a constant to all rewards changes the turn-level advantage,
because longer dialogues collect the constant more often. Rewards that are always negative (`adr`) therefore
favour whatever ends a dialogue early; `idr` has no such constant.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from mapo.errors import RewardError
from mapo.ragged import Bools, Floats, Ints, Ragged, segment_sums

SCOPES = ("group", "batch")
HORIZONS = ("available", "shortest")
EPS = 1e-8


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantages of a batch: each field has one array per dialogue, with one entry per turn.

    `mixed` is the advantage used for training, whatever the method. `turn` and `batch` are its turn-level and
    batch-level parts, 0 if the method has no such part. Where `mask` is False, all three are 0.
    """

    turn: list[Floats]
    batch: list[Floats]
    mixed: list[Floats]
    returns: list[Floats]
    mask: list[Bools]


def advantages(
    rewards: Sequence[Sequence[float | None] | ArrayLike],
    groups: Sequence[Hashable] | ArrayLike,
    method: str = "mapo",
    *,
    gamma: float = 1.0,
    turn_weight: float = 0.5,
    scope: str = "group",
    horizon: str = "available",
) -> Advantages:
    """Return the advantage of every turn of every dialogue. The module docstring describes the methods.

    `rewards` has one sequence of turn rewards per dialogue; lengths may differ, and None or NaN marks an
    unscored turn. `groups` names the group of each dialogue; siblings need not be adjacent.
    """
    _check_options(method, gamma, turn_weight, scope, horizon)
    batch = Ragged.of(rewards, groups)
    r, scored = np.where(batch.scored, batch.values, 0.0), batch.scored
    returns = _returns(r, batch, gamma)

    inputs = _Inputs(batch, r, returns, scored, turn_weight, scope)
    if method in ("mapo", "turn", "batch"):
        inputs = replace(inputs, mask=scored & _within_horizon(batch, horizon))
    turn_level, batch_level, mixed = ESTIMATORS[method](inputs)
    return Advantages(*batch.split(turn_level, batch_level, mixed, returns, inputs.mask))


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Input of every estimator: all turns of the batch as flat arrays, and which of them count (`mask`)."""

    batch: Ragged
    r: Floats
    returns: Floats
    mask: Bools
    turn_weight: float
    scope: str

    @property
    def zeros(self) -> Floats:
        return np.zeros_like(self.r)


_Estimate = tuple[Floats, Floats, Floats]
"""Turn-level, batch-level and mixed advantage of every turn."""


def _mapo(x: _Inputs) -> _Estimate:
    """A = a * z(G_t among siblings at turn t) + (1 - a) * z(r_t among all turns), with a = turn_weight."""
    turn_level, batch_level = _turn_level(x), _batch_level(x)
    return turn_level, batch_level, x.turn_weight * turn_level + (1.0 - x.turn_weight) * batch_level


def _turn_only(x: _Inputs) -> _Estimate:
    turn_level = _turn_level(x)
    return turn_level, x.zeros, turn_level


def _batch_only(x: _Inputs) -> _Estimate:
    batch_level = _batch_level(x)
    return x.zeros, batch_level, batch_level


def _grpo(x: _Inputs) -> _Estimate:
    """A = z(sum of r among siblings), the same for all turns of a dialogue."""
    total = segment_sums(x.r, x.batch.starts, x.batch.lengths)
    return x.zeros, x.zeros, _per_dialogue(x, total, x.batch.group_of_dialogue)


def _reinforce(x: _Inputs) -> _Estimate:
    """A = z(G_1 among all dialogues of the batch), the same for all turns of a dialogue."""
    first_return = np.zeros(len(x.batch.lengths))
    first_return[x.batch.has_scored] = x.returns[x.batch.starts[x.batch.has_scored]]
    return x.zeros, x.zeros, _per_dialogue(x, first_return, np.zeros(len(first_return), np.intp))


def _reinforce_turn(x: _Inputs) -> _Estimate:
    return _batch_only(replace(x, scope="batch"))


ESTIMATORS: dict[str, Callable[[_Inputs], _Estimate]] = {
    "mapo": _mapo,
    "turn": _turn_only,
    "batch": _batch_only,
    "grpo": _grpo,
    "reinforce++": _reinforce,
    "reinforce++_turn": _reinforce_turn,
}
METHODS = tuple(ESTIMATORS)


def _turn_level(x: _Inputs) -> Floats:
    """z(G_t) among the siblings' turns with the same index."""
    return _zscore(x.returns, x.batch.cell, x.mask)


def _batch_level(x: _Inputs) -> Floats:
    """z(r_t) among all turns of the group, or of the whole batch."""
    group = x.batch.group_of_turn
    return _zscore(x.r, group if x.scope == "group" else np.zeros_like(group), x.mask)


def _per_dialogue(x: _Inputs, values: Floats, peers: Ints) -> Floats:
    """Normalise one value per dialogue and assign it to all turns of the dialogue that count."""
    normalised = _zscore(values, peers, x.batch.has_scored)
    return np.where(x.mask, np.repeat(normalised, x.batch.lengths), 0.0)


def _check_options(method: str, gamma: float, turn_weight: float, scope: str, horizon: str) -> None:
    for name, value, known in (
        ("method", method, METHODS),
        ("scope", scope, SCOPES),
        ("horizon", horizon, HORIZONS),
    ):
        if not isinstance(value, str) or value not in known:
            raise RewardError(f"unknown {name} {value!r}", fix=f"Use one of: {', '.join(known)}")
    for name, number in (("gamma", gamma), ("turn_weight", turn_weight)):
        if not isinstance(number, int | float | np.number) or not 0.0 <= number <= 1.0:
            raise RewardError(f"{name} is {number!r}", fix="Use a number from 0 to 1")


def _returns(r: Floats, batch: Ragged, gamma: float) -> Floats:
    """Return G_t = r_t + gamma * G_{t+1} for all dialogues at once, from the last turn index to the first.

    With dialogues sorted by decreasing length, those that reach a turn index form a prefix, so the work is
    proportional to the number of turns, however uneven the lengths.
    """
    returns = r.copy()
    order = np.argsort(-batch.lengths, kind="stable")
    starts = batch.starts[order]
    reaching = np.searchsorted(-batch.lengths[order], -np.arange(batch.lengths.max(initial=0)), side="left")
    with np.errstate(over="ignore", invalid="ignore"):
        for t in range(len(reaching) - 2, -1, -1):
            position = starts[: reaching[t + 1]] + t
            returns[position] += gamma * returns[position + 1]
    if not (np.abs(returns) < 1e150).all():  # squares must stay finite
        raise RewardError("the rewards are too large to compute a variance", fix="Scale them down")
    return returns


def _within_horizon(batch: Ragged, horizon: str) -> Bools:
    """Return which turns lie within the horizon."""
    if horizon == "shortest":
        shortest = np.full(batch.group_of_dialogue.max(initial=-1) + 1, np.iinfo(np.intp).max)
        np.minimum.at(shortest, batch.group_of_dialogue[batch.has_scored], batch.lengths[batch.has_scored])
        return np.asarray(batch.turn_index < shortest[batch.group_of_turn])
    return np.asarray(np.bincount(batch.cell)[batch.cell] >= 2)


def _zscore(x: Floats, peers: Ints, member: Bools) -> Floats:
    """Return (x - mean) / (std + EPS) among members with the same peer code, 0 for peer sets without
    variance.
    """
    if not member.all():
        result = np.zeros_like(x)
        result[member] = _zscore(x[member], peers[member], member[member])
        return result
    n = np.bincount(peers)
    count = np.maximum(n, 1)
    # Subtracting one member first makes the deviation of equal values exactly 0, however large they are.
    reference = np.zeros(len(n))
    reference[peers] = x
    x = x - reference[peers]
    deviation = x - (np.bincount(peers, weights=x) / count)[peers]
    std = np.sqrt(np.bincount(peers, weights=deviation * deviation) / count)
    return np.asarray(deviation * np.where(std > 0, 1.0 / (std + EPS), 0.0)[peers])
