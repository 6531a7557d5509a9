"""Turn rewards -> turn advantages. NumPy in, NumPy out.

Every critic-free estimator is "a turn's worth, normalised among its peers"; they differ only in what
the worth is and who is a peer. A *group* is the set of dialogues played from one scenario (siblings).
G_t = sum over k >= t of gamma^(k-t) r_k is the Monte Carlo return, discounted per turn.

    method            worth         peers
    mapo              turn_weight * turn part + (1 - turn_weight) * batch part     arXiv:2603.06194
    turn              G_t           the siblings at the same turn index
    batch             r_t           all turns of all siblings (scope "batch": of the whole batch)
    grpo              sum of r      the siblings; one value for all turns          arXiv:2402.03300
    reinforce++       G_0           all dialogues of the batch; one value          arXiv:2501.03262
    reinforce++_turn  r_t           all turns of the whole batch

Normalising is the z-score with the population standard deviation, 1e-8 added to it; where a peer set
has fewer than two members or no spread, the result is 0. By Samuelson's inequality no z-score of n
peers exceeds sqrt(n - 1).

Which turns count, for mapo, turn and batch, is the *horizon*: "available", a turn index counts while
at least two siblings reach it; "shortest", it counts up to the length of the group's
shortest dialogue (of those with any scored turn). A turn that does not count is out of the statistics
and masked out of the loss, but its reward still reaches the returns of the turns before it: it
happened. The other methods compare whole dialogues or do without siblings, and use every scored turn.

An unscored turn (None or NaN) is missing data. It is out of the statistics and masked out of the loss.
In the returns of earlier turns it adds nothing and the discount keeps running, so they are known up to
what the judge failed to say. A dialogue without any scored turn is nobody's peer.

With dialogues of unequal length, adding a constant to every reward does change the turn part: longer
dialogues collect the constant more often. Rewards that are always negative (`adr`) therefore favour
whatever ends a dialogue early; `idr` has no such drift.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from mapo.errors import RewardError
from mapo.ragged import Bools, Floats, Ints, Ragged, sums

SCOPES = ("group", "batch")
HORIZONS = ("available", "shortest")
EPS = 1e-8


@dataclass(frozen=True, slots=True)
class Advantages:
    """Per dialogue one array, per turn one entry.

    `mixed` is the advantage that trains, whatever the method; `turn` and `batch` are the parts it was
    made of, 0 where the method has no such part. Where `mask` is False, all three are 0.
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
    """Advantages of every turn of every dialogue; see the module's text for what each method does.

    `rewards` holds one sequence of turn rewards a dialogue, of any lengths, None or NaN where a turn is
    unscored. `groups` names each dialogue's scenario; siblings need not be adjacent.
    """
    _check_options(method, gamma, turn_weight, scope, horizon)
    batch = Ragged.of(rewards, groups)
    r, scored = np.where(batch.scored, batch.values, 0.0), batch.scored
    returns = _returns(r, batch, gamma)

    work = _Work(batch, r, returns, scored, turn_weight, scope)
    if method in ("mapo", "turn", "batch"):
        work = replace(work, mask=scored & _horizon(batch, horizon))
    turn, part, mixed = ESTIMATORS[method](work)
    return Advantages(*batch.split(turn, part, mixed, returns, work.mask))


@dataclass(frozen=True, slots=True)
class _Work:
    """What every estimator gets: all turns end to end, and which of them count."""

    batch: Ragged
    r: Floats
    returns: Floats
    mask: Bools
    turn_weight: float
    scope: str

    @property
    def nothing(self) -> Floats:
        return np.zeros_like(self.r)


_Parts = tuple[Floats, Floats, Floats]


def _mapo(w: _Work) -> _Parts:
    turn, part = _turn_part(w), _batch_part(w)
    return turn, part, w.turn_weight * turn + (1.0 - w.turn_weight) * part


def _turn_only(w: _Work) -> _Parts:
    turn = _turn_part(w)
    return turn, w.nothing, turn


def _batch_only(w: _Work) -> _Parts:
    part = _batch_part(w)
    return w.nothing, part, part


def _grpo(w: _Work) -> _Parts:
    total = sums(w.r, w.batch.starts, w.batch.lengths)
    return w.nothing, w.nothing, _whole(w, total, w.batch.group_of_dialogue)


def _reinforce(w: _Work) -> _Parts:
    first = np.zeros(len(w.batch.lengths))
    first[w.batch.alive] = w.returns[w.batch.starts[w.batch.alive]]
    return w.nothing, w.nothing, _whole(w, first, np.zeros(len(first), np.intp))


def _reinforce_turn(w: _Work) -> _Parts:
    return _batch_only(replace(w, scope="batch"))


ESTIMATORS: dict[str, Callable[[_Work], _Parts]] = {
    "mapo": _mapo,
    "turn": _turn_only,
    "batch": _batch_only,
    "grpo": _grpo,
    "reinforce++": _reinforce,
    "reinforce++_turn": _reinforce_turn,
}
METHODS = tuple(ESTIMATORS)


def _turn_part(w: _Work) -> Floats:
    return _zscore(w.returns, w.batch.cell, w.mask)


def _batch_part(w: _Work) -> Floats:
    group = w.batch.group_of_turn
    return _zscore(w.r, group if w.scope == "group" else np.zeros_like(group), w.mask)


def _whole(w: _Work, worth: Floats, peers: Ints) -> Floats:
    """One value a dialogue, on all of its turns that count."""
    value = _zscore(worth, peers, w.batch.alive)
    return np.where(w.mask, np.repeat(value, w.batch.lengths), 0.0)


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
            raise RewardError(f"{name} is {number!r}", fix=f"{name} is a number between 0 and 1")


def _returns(r: Floats, batch: Ragged, gamma: float) -> Floats:
    """G_t = r_t + gamma G_{t+1}, all dialogues at once, from the last turn index to the first.

    With the dialogues sorted by length, those that reach a turn index are a prefix, so the work is
    proportional to the number of turns however uneven the lengths.
    """
    returns = r.copy()
    order = np.argsort(-batch.lengths, kind="stable")
    starts = batch.starts[order]
    reach = np.searchsorted(-batch.lengths[order], -np.arange(batch.lengths.max(initial=0)), side="left")
    with np.errstate(over="ignore", invalid="ignore"):
        for t in range(len(reach) - 2, -1, -1):
            here = starts[: reach[t + 1]] + t
            returns[here] += gamma * returns[here + 1]
    if not (np.abs(returns) < 1e150).all():  # their squares must stay finite
        raise RewardError("the rewards are too large to take a variance of", fix="Scale them down")
    return returns


def _horizon(batch: Ragged, horizon: str) -> Bools:
    if horizon == "shortest":
        shortest = np.full(batch.group_of_dialogue.max(initial=-1) + 1, np.iinfo(np.intp).max)
        np.minimum.at(shortest, batch.group_of_dialogue[batch.alive], batch.lengths[batch.alive])
        return np.asarray(batch.turn_index < shortest[batch.group_of_turn])
    return np.asarray(np.bincount(batch.cell)[batch.cell] >= 2)


def _zscore(x: Floats, peers: Ints, member: Bools) -> Floats:
    """(x - mean) / (std + eps) among members with the same peer code; 0 where there is nothing to compare."""
    if not member.all():
        result = np.zeros_like(x)
        result[member] = _zscore(x[member], peers[member], member[member])
        return result
    n = np.bincount(peers)
    count = np.maximum(n, 1)
    # Measured from any one member, equal values have a spread of exactly 0, however large they are.
    one = np.zeros(len(n))
    one[peers] = x
    x = x - one[peers]
    deviation = x - (np.bincount(peers, weights=x) / count)[peers]
    std = np.sqrt(np.bincount(peers, weights=deviation * deviation) / count)
    return np.asarray(deviation * np.where(std > 0, 1.0 / (std + EPS), 0.0)[peers])
