"""Turn rewards -> turn advantages. NumPy in, NumPy out.

Every critic-free estimator compares a value per turn with that of its peers. The estimators differ in the
value, in the peers and in how differences are scaled. A *group* is the set of dialogues played from the same
scenario (siblings), r_t the reward of turn t, G_t = sum over k >= t of gamma^(k-t) r_k its Monte Carlo
return, discounted per turn, and z the difference from the peers' mean in standard deviations.

    method            advantage                                                    arXiv
    mapo              a z(G_t, siblings at turn t) + (1 - a) z(r_t, siblings' turns)   2603.06194
    turn, batch       one of the two alone
    grpo              z(sum of r, siblings)                                        2402.03300
    reinforce++       z(G_1, all dialogues of the batch)                           2501.03262
    reinforce++_turn  z(r_t, all turns of the batch)
    kevin             z(G_t, all turns of the siblings)                            2507.11948, 2511.14846
    rloo              sum of r - its mean over the other siblings                  2402.14740
    rloo_turn         G_t - its mean over the other siblings at turn t
    turn_gae          GAE with V_t = the siblings' mean of G_t as the critic       1506.02438
    mt_grpo           z(outcome, siblings) + c z(r_t, siblings at turn t)          2505.11821
    gigpo             z(sum of r, siblings) + c z(G_t, siblings' turns in the same state)  2505.10978
    gdpo              z(sum over axes of w_k z(sum of r_k, siblings), all dialogues)       2601.05242

with a = turn_weight and c = step_weight. Where a value belongs to a dialogue, all its turns get it.

Scale. "std": z as above, with the population standard deviation plus 1e-8. "none": the bare difference (Dr.
GRPO, 2503.20783). "batch": the difference divided by the standard deviation of all differences in the batch
(REINFORCE++-baseline, 2501.03262). The default is that of each method's paper: "none" for rloo and rloo_turn,
"batch" for turn_gae, "std" for the others. With fewer than two peers, or with nothing to divide by, the
result is 0. By Samuelson's inequality, |z| <= sqrt(n - 1) for n peers.

Endings. An ending cuts off future reward: siblings that go on collect more, good or bad. With "cut", as
published, the turn that wins a dialogue looks worse than those of its siblings that still earn, and a
dialogue that collapses early looks better than one that goes on failing. With "continued" (default), a
dialogue that ended before its longest peer earns, in the statistics only, the mean reward of its last five
scored turns for each turn up to the peer's length. The continued turns are part of the returns and sums, and
the reward of the last turn becomes the mean of itself and the continued turns. "held" repeats the last scored
reward instead, for rewards that are levels and not movements (`adr`). A dialogue whose only reward comes with
its last turn has an outcome and no pace; it is never continued. docs/method.md has the argument and the
measurements.

Horizon. For mapo, turn, batch, rloo_turn and turn_gae, `horizon` selects the turns that count. "available": a
turn index counts while at least two siblings reach it. "shortest": it counts up to the length of the group's
shortest dialogue (among those with a scored turn). Turns that do not count are excluded from the statistics
and masked in the loss, but their rewards remain part of the returns of earlier turns. The other methods use
every scored turn.

Missing data. Unscored turns (None or NaN) are excluded from the statistics and masked in the loss. In the
returns of earlier turns they count as 0 and the discount still advances. A dialogue without a scored turn
belongs to no peer set.

Excluded turns, such as replies to a faulty user message, are masked in the loss and belong to no set of peer
turns. Their rewards remain part of returns and sums: what they led to did happen.

Drift. With `endings="cut"`, adding a constant to all rewards changes comparisons of returns if dialogues
differ in length, because longer dialogues collect the constant more often. With "continued" or "held" all
siblings have equally many turns, and the constant cancels where every turn is scored and turns of one index
are compared.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from mapo.errors import RewardError
from mapo.estimators.inputs import check_needs, excluded_turns, outcomes, state_codes, with_axes
from mapo.estimators.methods import (
    EPS,
    ESTIMATORS,
    Batch,
    continuation,
    continued_return,
    discounted_sums,
    settled,
    totals,
)
from mapo.estimators.ragged import Bools, Floats, Ragged

__all__ = ["ENDINGS", "EPS", "HORIZONS", "METHODS", "SCALES", "SCOPES", "Advantages", "advantages"]

SCOPES = ("group", "batch")
HORIZONS = ("available", "shortest")
SCALES = ("std", "none", "batch")
ENDINGS = ("continued", "held", "cut")
METHODS = tuple(ESTIMATORS)


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantages of a batch: each field has one array per dialogue, with one entry per turn.

    `mixed` is the advantage used for training, whatever the method. `turn` and `batch` are its turn-level and
    batch-level parts, 0 if the method has no such part. `returns` are the returns that were compared. Where
    `mask` is False, the three advantages are 0.
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
    endings: str = "continued",
    scale: str | None = None,
    lam: float = 0.95,
    step_weight: float = 1.0,
    outcome: Sequence[float] | ArrayLike | None = None,
    states: Sequence[Sequence[Hashable]] | None = None,
    axes: Sequence[Mapping[str, Sequence[float | None]]] | None = None,
    axis_weights: Mapping[str, float] | None = None,
    excluded: Sequence[Sequence[bool]] | None = None,
) -> Advantages:
    """Return the advantage of every turn of every dialogue. The module docstring describes the methods.

    `rewards` has one sequence of turn rewards per dialogue; lengths may differ, and None or NaN marks an
    unscored turn. `groups` names the group of each dialogue; siblings need not be adjacent.

    Some methods need more, one entry per dialogue: mt_grpo the `outcome`, a number; gigpo the `states` before
    each turn, equal values for equal states and None for unknown ones; gdpo the rewards of each turn on each
    of the `axes`. `axis_weights` weighs the axes, 1 by default. `excluded` marks turns that are not trained.
    """
    _check_options(method, gamma, turn_weight, scope, horizon, endings, scale, lam, step_weight)
    estimator = ESTIMATORS[method]
    ragged = Ragged.of(rewards, groups)
    check_needs(method, estimator, outcome=outcome, states=states, axes=axes, dialogues=len(rewards))
    r, mask = np.where(ragged.scored, ragged.values, 0.0), ragged.scored
    more = continuation(ragged, endings, estimator.siblings)
    rest = continued_return(more.pace, more.turns, gamma)
    if estimator.horizon:
        mask = mask & _within_horizon(ragged, horizon)
    if excluded is not None:
        mask = mask & ~excluded_turns(excluded, ragged)
    batch = Batch(
        ragged=ragged,
        settled=settled(r, ragged, more),
        returns=_returns(r, rest, ragged, gamma),
        totals=totals(r, ragged, more),
        mask=mask,
        gamma=gamma,
        turn_weight=turn_weight,
        scope=scope,
        scale=scale or estimator.scale,  # type: ignore[arg-type]
        lam=lam,
        step_weight=step_weight,
    )
    if estimator.needs == "outcome":
        batch = replace(batch, outcome=outcomes(() if outcome is None else outcome, ragged))
    if estimator.needs == "states":
        batch = replace(batch, states=state_codes(() if states is None else states, ragged))
    if estimator.needs == "axes":
        batch = with_axes(batch, () if axes is None else axes, axis_weights, more)
    turn_level, batch_level, mixed = estimator.estimate(batch)
    return Advantages(*ragged.split(turn_level, batch_level, mixed, batch.returns, mask))


def _returns(r: Floats, rest: Floats, ragged: Ragged, gamma: float) -> Floats:
    returns = discounted_sums(r, rest, ragged, gamma)
    if not (np.abs(returns) < 1e150).all():  # squares must stay finite
        raise RewardError("the rewards are too large to compute a variance", fix="Scale them down")
    return returns


def _within_horizon(ragged: Ragged, horizon: str) -> Bools:
    """Return which turns lie within the horizon."""
    if horizon == "shortest":
        shortest = np.full(ragged.group_of_dialogue.max(initial=-1) + 1, np.iinfo(np.intp).max)
        np.minimum.at(
            shortest, ragged.group_of_dialogue[ragged.has_scored], ragged.lengths[ragged.has_scored]
        )
        return np.asarray(ragged.turn_index < shortest[ragged.group_of_turn])
    return np.asarray(np.bincount(ragged.cell)[ragged.cell] >= 2)


def _check_options(
    method: str,
    gamma: float,
    turn_weight: float,
    scope: str,
    horizon: str,
    endings: str,
    scale: str | None,
    lam: float,
    step_weight: float,
) -> None:
    for name, value, known in (
        ("method", method, METHODS),
        ("scope", scope, SCOPES),
        ("horizon", horizon, HORIZONS),
        ("endings", endings, ENDINGS),
        ("scale", "std" if scale is None else scale, SCALES),
    ):
        if not isinstance(value, str) or value not in known:
            raise RewardError(f"unknown {name} {value!r}", fix=f"Use one of: {', '.join(known)}")
    for name, number in (("gamma", gamma), ("turn_weight", turn_weight), ("lam", lam)):
        if not isinstance(number, int | float | np.number) or not 0.0 <= number <= 1.0:
            raise RewardError(f"{name} is {number!r}", fix="Use a number from 0 to 1")
    if not isinstance(step_weight, int | float | np.number) or not 0.0 <= step_weight < np.inf:
        raise RewardError(f"step_weight is {step_weight!r}", fix="Use a number that is not negative")
