"""The advantage estimators: a value per turn, compared with that of its peers.

`mapo.advantage` describes them. Every estimator is a function from a `Batch` to the turn-level part, the
batch-level part and the advantage that is trained on. `ESTIMATORS` lists them with what they need and where
they come from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from mapo.estimators.ragged import Bools, Floats, Ints, Ragged, segment_sums

Scale = Literal["std", "none", "batch"]
Need = Literal["outcome", "states", "axes"]

EPS = 1e-8
TIE = 1e-6
"""A sum of z-scores below this is rounding: the axes cancel, and dividing by its spread would magnify it."""
PACE_TURNS = 5
"""A dialogue that ended is continued at the mean reward of this many last scored turns."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The input of every estimator: all turns of a batch as flat arrays.

    Where dialogues are continued after their end, the values include the continued turns: `settled` are the
    rewards, with the last one averaged over them, `returns` the returns G_t and `totals` the summed reward of
    each dialogue. `mask` says which turns count. `states` has one code per turn, `outcome` one number per
    dialogue, `axes` the summed reward of each dialogue on each axis.
    """

    ragged: Ragged
    settled: Floats
    returns: Floats
    totals: Floats
    mask: Bools
    gamma: float
    turn_weight: float
    scope: str
    scale: Scale
    lam: float
    step_weight: float
    outcome: Floats | None = None
    states: Ints | None = None
    axes: Floats | None = None
    axis_weights: Floats | None = None

    @property
    def zeros(self) -> Floats:
        return np.zeros_like(self.settled)


Estimate = tuple[Floats, Floats, Floats]
"""Turn-level, batch-level and mixed advantage of every turn."""


@dataclass(frozen=True, slots=True)
class Estimator:
    """An estimator, and what is particular to it.

    `siblings` is False if dialogues are compared across groups, `horizon` says whether turns without peers
    are left out, `scale` is the scaling of its paper, `needs` the additional input it cannot do without.
    """

    estimate: Callable[[Batch], Estimate]
    formula: str
    paper: str
    siblings: bool = True
    horizon: bool = False
    scale: Scale = "std"
    needs: Need | None = None


# ---- returns


def discounted_sums(x: Floats, last: Floats, ragged: Ragged, factor: float) -> Floats:
    """Return S_t = x_t + factor * S_{t+1} for all dialogues at once, with S = `last` after the last turn.

    With dialogues sorted by decreasing length, those that reach a turn index form a prefix, so the work is
    proportional to the number of turns, however uneven the lengths.
    """
    sums = x.copy()
    order = np.argsort(-ragged.lengths, kind="stable")
    starts, lengths = ragged.starts[order], ragged.lengths[order]
    played = lengths > 0
    sums[starts[played] + lengths[played] - 1] += factor * last[order][played]
    reaching = np.searchsorted(-lengths, -np.arange(lengths.max(initial=0)), side="left")
    with np.errstate(over="ignore", invalid="ignore"):
        for t in range(len(reaching) - 2, -1, -1):
            position = starts[: reaching[t + 1]] + t
            sums[position] += factor * sums[position + 1]
    return sums


@dataclass(frozen=True, slots=True)
class Continuation:
    """How each dialogue goes on after its end: for so many turns, at this pace, the mean of the last `window`
    scored turns.
    """

    turns: Ints
    pace: Floats
    window: int


def continuation(ragged: Ragged, endings: str, siblings: bool) -> Continuation:
    """Return how dialogues are continued to their longest peer; for 0 turns if endings are "cut"."""
    window = 1 if endings == "held" else PACE_TURNS
    if endings == "cut":
        return Continuation(np.zeros_like(ragged.lengths), np.zeros(len(ragged.lengths)), window)
    values = np.where(ragged.scored, ragged.values, 0.0)
    turns = np.where(_has_pace(values, ragged), remaining_turns(ragged, siblings), 0)
    return Continuation(turns, pace(values, ragged, window), window)


def _has_pace(values: Floats, ragged: Ragged) -> Bools:
    """Return whether a dialogue earned anything before its last turn. One reward at the end is an outcome: it
    says nothing about the turns that might have followed.
    """
    earlier = values != 0
    played = ragged.lengths > 1
    earlier[(ragged.starts + ragged.lengths - 1)[played]] = False
    return segment_sums(earlier, ragged.starts, ragged.lengths) > 0


def totals(values: Floats, ragged: Ragged, more: Continuation) -> Floats:
    """Return the sum of each dialogue's values, those of the turns that continue it included."""
    played = segment_sums(values, ragged.starts, ragged.lengths)
    return played + pace(values, ragged, more.window) * more.turns


def settled(r: Floats, ragged: Ragged, more: Continuation) -> Floats:
    """Return the rewards, each dialogue's last one averaged with those of the turns that continue it."""
    result = r.copy()
    continued = np.flatnonzero(more.turns)
    last = (ragged.starts + ragged.lengths - 1)[continued]
    n = more.turns[continued]
    result[last] = (r[last] + more.pace[continued] * n) / (1 + n)
    return result


def remaining_turns(ragged: Ragged, siblings: bool) -> Ints:
    """Return how many turns each dialogue ended before its longest peer: a sibling, or any dialogue."""
    peers = ragged.group_of_dialogue if siblings else np.zeros_like(ragged.group_of_dialogue)
    lengths = np.where(ragged.has_scored, ragged.lengths, 0)  # dialogues without a scored turn have no peers
    longest = np.zeros(peers.max(initial=-1) + 1, np.intp)
    np.maximum.at(longest, peers, lengths)
    return np.asarray(np.where(ragged.has_scored, longest[peers] - lengths, 0))


def pace(values: Floats, ragged: Ragged, window: int) -> Floats:
    """Return the mean of each dialogue's last `window` scored values; 0 if it has none."""
    count = np.cumsum(ragged.scored)
    in_dialogue = segment_sums(ragged.scored, ragged.starts, ragged.lengths).astype(np.intp)
    before_end = np.repeat(np.cumsum(in_dialogue), ragged.lengths) - count  # scored turns after this one
    last = np.zeros(len(in_dialogue))
    final = ragged.scored & (before_end == 0)
    last[np.repeat(np.arange(len(last)), ragged.lengths)[final]] = values[final]
    # Subtracting the last value first makes the mean of equal values exact.
    recent = ragged.scored & (before_end < window)
    difference = np.where(recent, values - np.repeat(last, ragged.lengths), 0.0)
    sums = segment_sums(difference, ragged.starts, ragged.lengths)
    return np.asarray(last + sums / np.maximum(np.minimum(in_dialogue, window), 1))


def continued_return(value: Floats, turns: Ints, gamma: float) -> Floats:
    """Return value + gamma * value + ..., with so many terms, summed in the order of `discounted_sums`."""
    order = np.argsort(-turns, kind="stable")
    reaching = np.searchsorted(-turns[order], -np.arange(turns.max(initial=0)), side="left")
    total, ordered = np.zeros_like(value), value[order]
    for n in reaching:  # of dialogues that go on for more than 0, 1, 2, ... turns
        total[:n] = ordered[:n] + gamma * total[:n]
    result = np.zeros_like(value)
    result[order] = total
    return result


# ---- comparisons


def compare(x: Floats, peers: Ints, member: Bools, scale: Scale, *, leave_one_out: bool = False) -> Floats:
    """Return how x differs from the mean of the members with the same peer code, scaled; 0 for others.

    With `leave_one_out` the mean is that of the other members. The scale "std" divides by the standard
    deviation of the peers, "batch" by that of all differences, "none" by nothing. Where there is nothing to
    compare with, or no variance to divide by, the result is 0.
    """
    if not member.all():
        result = np.zeros_like(x)
        result[member] = compare(x[member], peers[member], member[member], scale, leave_one_out=leave_one_out)
        return result
    n = np.bincount(peers)
    count = np.maximum(n, 1)
    # Subtracting one member first makes the difference of equal values exactly 0, however large they are.
    reference = np.zeros(len(n))
    reference[peers] = x
    x = x - reference[peers]
    difference = x - (np.bincount(peers, weights=x) / count)[peers]
    if scale == "std":
        std = np.sqrt(np.bincount(peers, weights=difference * difference) / count)
        inverse = np.where(std > 0, 1.0 / (std + EPS), 0.0)[peers]
    else:
        inverse = np.ones_like(difference)
    if leave_one_out:
        difference = difference * (count / np.maximum(count - 1, 1))[peers]
    difference = np.where(n[peers] > 1, difference, 0.0)
    return over_batch(difference) if scale == "batch" else np.asarray(difference * inverse)


def _above_mean(x: Floats, peers: Ints, member: Bools) -> Floats:
    """Return every x minus the mean of the members with its peer code; 0 if there are none."""
    n = np.bincount(peers, weights=member) if len(peers) else np.zeros(0)
    reference = np.zeros(len(n))
    reference[peers[member]] = x[member]  # makes the difference of equal values exactly 0
    x = x - reference[peers]
    mean = np.bincount(peers, weights=np.where(member, x, 0.0)) / np.maximum(n, 1) if len(peers) else n
    return np.where(n[peers] > 0, x - mean[peers], 0.0)


def over_batch(x: Floats) -> Floats:
    """Divide by the standard deviation of all values; 0 if there is none."""
    std = x.std() if len(x) else 0.0
    return np.asarray(x / (std + EPS) if std > 0 else np.zeros_like(x))


def _to_turns(x: Batch, values: Floats) -> Floats:
    """Assign one value per dialogue to all turns of the dialogue that count."""
    return np.where(x.mask, np.repeat(values, x.ragged.lengths), 0.0)


def _among_siblings(x: Batch, values: Floats, *, leave_one_out: bool = False) -> Floats:
    """Compare one value per dialogue with those of its siblings."""
    peers, member = x.ragged.group_of_dialogue, x.ragged.has_scored
    return compare(values, peers, member, x.scale, leave_one_out=leave_one_out)


# ---- estimators


def _turn_level(x: Batch) -> Floats:
    """Compare G_t with the siblings' turns of the same index."""
    return compare(x.returns, x.ragged.cell, x.mask, x.scale)


def _batch_level(x: Batch) -> Floats:
    """Compare r_t with all turns of the group, or of the whole batch."""
    group = x.ragged.group_of_turn
    return compare(x.settled, group if x.scope == "group" else np.zeros_like(group), x.mask, x.scale)


def mapo(x: Batch) -> Estimate:
    turn_level, batch_level = _turn_level(x), _batch_level(x)
    return turn_level, batch_level, x.turn_weight * turn_level + (1.0 - x.turn_weight) * batch_level


def turn_only(x: Batch) -> Estimate:
    turn_level = _turn_level(x)
    return turn_level, x.zeros, turn_level


def batch_only(x: Batch) -> Estimate:
    batch_level = _batch_level(x)
    return x.zeros, batch_level, batch_level


def grpo(x: Batch) -> Estimate:
    return x.zeros, x.zeros, _to_turns(x, _among_siblings(x, x.totals))


def reinforce(x: Batch) -> Estimate:
    first_return = np.zeros(len(x.ragged.lengths))
    first_return[x.ragged.has_scored] = x.returns[x.ragged.starts[x.ragged.has_scored]]
    everyone = np.zeros(len(first_return), np.intp)
    return x.zeros, x.zeros, _to_turns(x, compare(first_return, everyone, x.ragged.has_scored, x.scale))


def reinforce_turn(x: Batch) -> Estimate:
    return batch_only(replace(x, scope="batch"))


def kevin(x: Batch) -> Estimate:
    advantage = compare(x.returns, x.ragged.group_of_turn, x.mask, x.scale)
    return x.zeros, x.zeros, advantage


def rloo(x: Batch) -> Estimate:
    return x.zeros, x.zeros, _to_turns(x, _among_siblings(x, x.totals, leave_one_out=True))


def rloo_turn(x: Batch) -> Estimate:
    turn_level = compare(x.returns, x.ragged.cell, x.mask, x.scale, leave_one_out=True)
    return turn_level, x.zeros, turn_level


def turn_gae(x: Batch) -> Estimate:
    """Generalised advantage estimation; the value of a turn index is the siblings' mean return there."""
    ragged, cell = x.ragged, x.ragged.cell
    # d_t = r_t + gamma V_{t+1} - V_t = e_t - gamma e_{t+1}, where e_t = G_t - V_t and e is 0 after the end
    error = _above_mean(x.returns, cell, ragged.scored)
    following = np.zeros_like(error)
    following[:-1] = error[1:]
    following[(ragged.starts + ragged.lengths - 1)[ragged.lengths > 0]] = 0.0
    delta = error - x.gamma * following
    advantage = discounted_sums(delta, np.zeros(len(ragged.lengths)), ragged, x.gamma * x.lam)
    advantage = np.where(x.mask, advantage, 0.0)
    if x.scale == "batch":
        advantage[x.mask] = over_batch(advantage[x.mask])
    elif x.scale == "std":
        advantage = compare(advantage, cell, x.mask, "std")
    return advantage, x.zeros, advantage


def mt_grpo(x: Batch) -> Estimate:
    assert x.outcome is not None
    step = compare(x.settled, x.ragged.cell, x.mask, x.scale)
    whole = _to_turns(x, _among_siblings(x, x.outcome))
    return step, x.zeros, whole + x.step_weight * step


def gigpo(x: Batch) -> Estimate:
    assert x.states is not None
    step = compare(x.returns, x.states, x.mask, x.scale)
    whole = _to_turns(x, _among_siblings(x, x.totals))
    return step, x.zeros, whole + x.step_weight * step


def gdpo(x: Batch) -> Estimate:
    assert x.axes is not None
    assert x.axis_weights is not None
    total = np.zeros(len(x.ragged.lengths))
    for axis, weight in enumerate(x.axis_weights):
        total += weight * _among_siblings(x, x.axes[:, axis])
    if x.scale == "std":
        total[np.abs(total) < TIE] = 0.0
    everyone = np.zeros(len(total), np.intp)
    return x.zeros, x.zeros, _to_turns(x, compare(total, everyone, x.ragged.has_scored, "std"))


ESTIMATORS: dict[str, Estimator] = {
    "mapo": Estimator(
        mapo,
        "a z(G_t, siblings at turn t) + (1 - a) z(r_t, all turns of the siblings)",
        "2603.06194",
        horizon=True,
    ),
    "turn": Estimator(turn_only, "z(G_t, siblings at turn t)", "2603.06194", horizon=True),
    "batch": Estimator(batch_only, "z(r_t, all turns of the siblings)", "2603.06194", horizon=True),
    "grpo": Estimator(grpo, "z(sum of r, siblings)", "2402.03300"),
    "reinforce++": Estimator(reinforce, "z(G_1, all dialogues)", "2501.03262", siblings=False),
    "reinforce++_turn": Estimator(
        reinforce_turn, "z(r_t, all turns of the batch)", "2501.03262", siblings=False
    ),
    "kevin": Estimator(kevin, "z(G_t, all turns of the siblings)", "2507.11948, 2511.14846"),
    "rloo": Estimator(rloo, "sum of r - its mean over the other siblings", "2402.14740", scale="none"),
    "rloo_turn": Estimator(
        rloo_turn,
        "G_t - its mean over the other siblings at turn t",
        "2402.14740",
        horizon=True,
        scale="none",
    ),
    "turn_gae": Estimator(
        turn_gae,
        "sum of (gamma lam)^k d_{t+k}, d_t = r_t + gamma V_{t+1} - V_t, V_t the siblings' mean of G_t",
        "1506.02438",
        horizon=True,
        scale="batch",
    ),
    "mt_grpo": Estimator(
        mt_grpo, "z(outcome, siblings) + c z(r_t, siblings at turn t)", "2505.11821", needs="outcome"
    ),
    "gigpo": Estimator(
        gigpo,
        "z(sum of r, siblings) + c z(G_t, siblings' turns in the same state)",
        "2505.10978",
        needs="states",
    ),
    "gdpo": Estimator(
        gdpo, "z(sum over axes of w_k z(sum of r_k, siblings), all dialogues)", "2601.05242", needs="axes"
    ),
}
