"""The explanation of a turn's credit: what was compared, with whom, and the result, for every method."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mapo.advantage import Advantages
from mapo.config import Advantage
from mapo.credit import outcome_of, states_of
from mapo.estimators.methods import (
    ESTIMATORS,
    Continuation,
    Scale,
    compare,
    continuation,
    continued_return,
    settled,
    totals,
)
from mapo.estimators.ragged import Floats, Ragged
from mapo.measure.axes import axis_rewards
from mapo.measure.rubric import Rubric
from mapo.show.numbers import num, signed
from mapo.text import plural
from mapo.types import Dialogue


@dataclass(frozen=True, slots=True)
class Peers:
    """Mean, standard deviation and number of the values that a value is compared with."""

    mean: float
    std: float
    n: int


@dataclass(frozen=True, slots=True)
class Continued:
    """How a dialogue that ended before its longest peer is continued: for so many turns, at this pace, which
    is the mean reward of the `last` scored turns."""

    turns: int
    pace: float
    last: int
    longest: str


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an advantage; `kind` is the look of its bar."""

    name: str
    value: float
    kind: str


@dataclass(frozen=True, slots=True)
class Reason:
    """One step of the explanation of an advantage, and its result."""

    text: str
    result: float


@dataclass(frozen=True, slots=True)
class TurnCredit:
    """The credit of one turn. Where `counts` is False the turn is masked in the loss and its parts are 0.

    `ret` is the return that is compared, and `total` the summed reward, for methods that compare it.
    """

    ret: float
    turn: float
    batch: float
    mixed: float
    counts: bool
    turn_peers: Peers | None
    total: float | None = None
    parts: tuple[Part, ...] = ()
    why: tuple[Reason, ...] = ()


class CreditedBatch:
    """The values that a method compares, and who is compared with whom."""

    def __init__(
        self,
        rewards: Sequence[Sequence[float | None]],
        groups: Sequence[str],
        computed: Advantages,
        settings: Advantage,
        dialogues: Sequence[Dialogue],
        rubric: Rubric | None,
    ) -> None:
        self.computed, self.settings = computed, settings
        self.dialogues, self.rubric = dialogues, rubric
        self.groups, self.method = groups, settings.method
        estimator = ESTIMATORS[settings.method]
        self.scale: Scale = settings.scale or estimator.scale
        self.siblings = estimator.siblings
        self.ragged = ragged = Ragged.of([list(row) for row in rewards], list(groups))
        self.r = np.where(ragged.scored, ragged.values, 0.0)
        self.more: Continuation = continuation(ragged, settings.endings, estimator.siblings)
        self.rewards, self.settled = ragged.split(self.r, settled(self.r, ragged, self.more))
        self.totals = totals(self.r, ragged, self.more)
        self.rest = continued_return(self.more.pace, self.more.turns, settings.gamma)
        self._peers: dict[Hashable, Peers | None] = {}
        self._members: dict[str, list[int]] = {}
        for i, group in enumerate(groups):
            self._members.setdefault(group, []).append(i)
        self._states = [states_of(d, settings.states) for d in dialogues] if self.method == "gigpo" else []
        self._in_state: dict[Hashable, list[float]] = {}
        for group, states, mask, returns in zip(
            groups, self._states, computed.mask, computed.returns, strict=False
        ):
            for state, counts, value in zip(states, mask, returns, strict=True):
                if counts:
                    self._in_state.setdefault((group, state), []).append(float(value))
        self._axes = self._axis_scores() if self.method == "gdpo" else {}

    def continued(self, i: int) -> Continued | None:
        turns = int(self.more.turns[i])
        longest = "longest sibling" if self.siblings else "longest dialogue of the batch"
        if not turns:
            return None
        start = self.ragged.starts[i]
        scored = int(self.ragged.scored[start : start + self.ragged.lengths[i]].sum())
        return Continued(turns, float(self.more.pace[i]), min(scored, self.more.window), longest)

    def turns(self, i: int, *, explained: bool = True) -> list[TurnCredit]:
        """Return the credit of a dialogue's turns, with reasons if it is `explained`."""
        computed, sums = self.computed, self.method in ("grpo", "rloo", "gigpo")
        return [
            TurnCredit(
                ret=float(computed.returns[i][t]),
                turn=float(computed.turn[i][t]),
                batch=float(computed.batch[i][t]),
                mixed=float(computed.mixed[i][t]),
                counts=bool(computed.mask[i][t]),
                turn_peers=self._at_turn(i, t, computed.returns),
                total=float(self.totals[i]) if sums else None,
                parts=self._parts(i, t) if computed.mask[i][t] else (),
                why=tuple(self._why(i, t)) if explained and computed.mask[i][t] else (),
            )
            for t in range(len(self.rewards[i]))
        ]

    # ---- parts

    def _parts(self, i: int, t: int) -> tuple[Part, ...]:
        turn, batch = float(self.computed.turn[i][t]), float(self.computed.batch[i][t])
        whole = float(self.computed.mixed[i][t]) - self.settings.step_weight * turn
        return {
            "mapo": (Part("Turn-level", turn, "turnpart"), Part("Batch-level", batch, "batchpart")),
            "turn": (Part("Turn-level", turn, "turnpart"),),
            "batch": (Part("Batch-level", batch, "batchpart"),),
            "reinforce++_turn": (Part("Batch-level", batch, "batchpart"),),
            "mt_grpo": (Part("Outcome", whole, "batchpart"), Part("Turn-level", turn, "turnpart")),
            "gigpo": (Part("Dialogue", whole, "batchpart"), Part("Same state", turn, "turnpart")),
        }.get(self.method, ())

    # ---- explanations

    def _why(self, i: int, t: int) -> list[Reason]:
        """Explain the advantage of a turn that counts."""
        s, computed = self.settings, self.computed
        turn, batch, mixed = (float(x[i][t]) for x in (computed.turn, computed.batch, computed.mixed))
        whole = mixed - s.step_weight * turn
        explain = {
            "mapo": lambda: [
                self._turn_level(i, t, turn),
                self._batch_level(i, t, batch),
                Reason(
                    f"{num(s.turn_weight)} × {signed(turn)} + {num(1 - s.turn_weight)} × {signed(batch)} =",
                    mixed,
                ),
            ],
            "turn": lambda: [self._turn_level(i, t, turn)],
            "batch": lambda: [self._batch_level(i, t, batch)],
            "reinforce++_turn": lambda: [self._batch_level(i, t, batch)],
            "grpo": lambda: [self._sum(i, mixed, "Advantage")],
            "rloo": lambda: [self._sum(i, mixed, "Advantage", others=True)],
            "rloo_turn": lambda: [self._turn_level(i, t, turn, others=True)],
            "reinforce++": lambda: [self._first_return(i, mixed)],
            "kevin": lambda: [self._return_in_group(i, t, mixed)],
            "turn_gae": lambda: [self._gae(i, t, mixed)],
            "mt_grpo": lambda: [
                self._outcome(i, whole),
                self._reward_at_turn(i, t, turn),
                self._weighted(whole, turn, mixed),
            ],
            "gigpo": lambda: [
                self._sum(i, whole, "Dialogue"),
                self._same_state(i, t, turn),
                self._weighted(whole, turn, mixed),
            ],
            "gdpo": lambda: self._axis_reasons(i, mixed),
        }.get(self.method)
        return explain() if explain else []

    def _reason(
        self,
        name: str,
        what: str,
        own: float,
        note: str,
        who: str,
        peers: Peers | None,
        result: float,
        *,
        others: bool = False,
    ) -> Reason:
        """Compare a value with its peers, or with the `others` among them, in words."""
        begin = f"{name}: its {what} is {signed(own)}{note}."
        if peers is None or peers.n < 2:
            return Reason(f"{begin} There is nothing to compare it with.", result)
        mean = (peers.n * peers.mean - own) / (peers.n - 1) if others else peers.mean
        spread = f" (standard deviation {num(peers.std)})" if self.scale == "std" else ""
        scaling = {
            "std": "",
            "none": " The advantage is the difference.",
            "batch": " Differences are divided by their standard deviation over the batch.",
        }[self.scale]
        return Reason(f"{begin} {who} have a mean {what} of {signed(mean)}{spread}.{scaling}", result)

    def _turn_level(self, i: int, t: int, result: float, *, others: bool = False) -> Reason:
        returns = self.computed.returns
        peers = self._at_turn(i, t, returns)
        n = peers.n if peers else 0
        who = f"The {n} siblings at turn {t + 1}, including this one,"
        if others:
            who = f"The {plural(n - 1, 'other sibling')} at turn {t + 1}"
        own, note = float(returns[i][t]), self._return_note(i, t)
        return self._reason("Turn-level advantage", "return", own, note, who, peers, result, others=others)

    def _batch_level(self, i: int, t: int, result: float) -> Reason:
        whole = self.settings.scope == "batch" or self.method == "reinforce++_turn"
        key = "batch" if whole else self.groups[i]
        peers = self._cached(("reward", key), lambda: self._counted(self._group(i, whole), self.settled))
        who = f"All {peers.n if peers else 0} turns of {'the whole batch' if whole else 'its group'}"
        own, note = float(self.settled[i][t]), self._reward_note(i, t)
        return self._reason("Batch-level advantage", "reward", own, note, who, peers, result)

    def _reward_at_turn(self, i: int, t: int, result: float) -> Reason:
        peers = self._at_turn(i, t, self.settled)
        who = f"The {peers.n if peers else 0} siblings at turn {t + 1}, including this one,"
        own, note = float(self.settled[i][t]), self._reward_note(i, t)
        return self._reason("Turn-level part", "reward", own, note, who, peers, result)

    def _return_in_group(self, i: int, t: int, result: float) -> Reason:
        returns = self.computed.returns
        peers = self._cached(
            ("return", self.groups[i]), lambda: self._counted(self._group(i, False), returns)
        )
        who = f"All {peers.n if peers else 0} turns of its group"
        own, note = float(returns[i][t]), self._return_note(i, t)
        return self._reason("Advantage", "return", own, note, who, peers, result)

    def _sum(self, i: int, result: float, name: str, *, others: bool = False) -> Reason:
        members = self._with_score(self._group(i, False))
        peers = self._cached(("sum", self.groups[i]), lambda: _peers([self.totals[k] for k in members]))
        who = f"The {len(members)} siblings, including this one,"
        if others:
            who = f"The {plural(len(members) - 1, 'other sibling')}"
        own, note = float(self.totals[i]), self._sum_note(i)
        return self._reason(name, "summed reward", own, note, who, peers, result, others=others)

    def _first_return(self, i: int, result: float) -> Reason:
        returns = self.computed.returns
        members = self._with_score(range(len(self.groups)))
        peers = self._cached(("first",), lambda: _peers([returns[k][0] for k in members]))
        who = f"All {len(members)} dialogues of the batch"
        return self._reason(
            "Advantage",
            "return from turn 1",
            float(returns[i][0]),
            self._return_note(i, 0),
            who,
            peers,
            result,
        )

    def _gae(self, i: int, t: int, result: float) -> Reason:
        ragged, returns = self.ragged, self.computed.returns
        members = [
            k
            for k in self._group(i, False)
            if t < len(self.rewards[k]) and ragged.scored[ragged.starts[k] + t]
        ]
        peers = self._cached(
            ("value", self.groups[i], t), lambda: _peers([returns[k][t] for k in members])
        ) or Peers(0.0, 0.0, 0)
        lam = num(self.settings.lam)
        return Reason(
            f"Advantage: its return is {signed(float(returns[i][t]))}{self._return_note(i, t)}. The expected "
            f"return at turn {t + 1} is the mean of its {plural(peers.n, 'sibling')}, including this one: "
            f"{signed(peers.mean)}. The differences from what was expected, of this turn and those after "
            f"it, are summed with weights that fall by lambda {lam} and the discount.{self._gae_scaling()}",
            result,
        )

    def _gae_scaling(self) -> str:
        return {
            "batch": " The sums are divided by their standard deviation over the batch.",
            "std": " The sums are compared with those of the siblings at the same turn.",
            "none": "",
        }[self.scale]

    def _outcome(self, i: int, result: float) -> Reason:
        members = self._with_score(self._group(i, False))
        outcomes = [outcome_of(self.dialogues[k]) for k in members]
        own = outcome_of(self.dialogues[i])
        text = "success" if own else "not a success"
        share = f"{int(sum(outcomes))} of its {len(members)} siblings, including this one, succeeded."
        return Reason(f"Outcome: {text}. {share}", result)

    def _same_state(self, i: int, t: int, result: float) -> Reason:
        values = self._in_state.get((self.groups[i], self._states[i][t]), [])
        own, note = float(self.computed.returns[i][t]), self._return_note(i, t)
        if len(values) < 2:
            return Reason("Same state: no other turn of its group begins in the same state.", result)
        who = f"The {len(values)} turns of its group that begin in the same state, including this one,"
        return self._reason("Same state", "return", own, note, who, _peers(values), result)

    def _weighted(self, whole: float, step: float, result: float) -> Reason:
        return Reason(f"{signed(whole)} + {num(self.settings.step_weight)} × {signed(step)} =", result)

    def _axis_scores(self) -> dict[str, tuple[float, Floats, Floats]]:
        """Return the weight, the summed rewards and their scores among siblings, for each axis."""
        assert self.rubric is not None
        ragged, found = self.ragged, {}
        rows = [axis_rewards(d, self.rubric) for d in self.dialogues]
        for key, weight in zip(self.rubric.keys, self.rubric.weights, strict=True):
            flat = [value or 0.0 for row in rows for value in row[key]]
            values = np.where(ragged.scored, np.array(flat, dtype=np.float64), 0.0)
            sums = totals(values, ragged, self.more)
            found[key] = (
                weight,
                sums,
                compare(sums, ragged.group_of_dialogue, ragged.has_scored, self.scale),
            )
        return found

    def _axis_reasons(self, i: int, result: float) -> list[Reason]:
        members = self._with_score(self._group(i, False))
        reasons, everyone = [], np.zeros(len(self.groups))
        titles = {axis.key: axis.title for axis in self.rubric.axes} if self.rubric else {}
        for key, (weight, sums, scores) in self._axes.items():
            everyone = everyone + weight * scores
            peers = _peers([sums[k] for k in members])
            who = f"The {len(members)} siblings, including this one,"
            reasons.append(
                self._reason(
                    titles.get(key, key),
                    "summed reward",
                    float(sums[i]),
                    self._continued_words(i),
                    who,
                    peers,
                    float(scores[i]),
                )
            )
        spread = everyone[self.ragged.has_scored]
        weights = ", ".join(f"{num(weight)} × {key}" for key, (weight, _, _) in self._axes.items())
        reasons.append(
            Reason(
                f"Advantage: the weighted sum ({weights}) is {signed(float(everyone[i]))}. All {len(spread)} "
                f"dialogues of the batch have a mean of {signed(float(spread.mean()))} (standard deviation "
                f"{num(float(spread.std()))}).",
                result,
            )
        )
        return reasons

    # ---- notes on continued turns

    def _return_note(self, i: int, t: int) -> str:
        """Say how much of a return is from continued turns."""
        turns = int(self.more.turns[i])
        if not turns:
            return ""
        part = float(self.rest[i]) * self.settings.gamma ** (len(self.rewards[i]) - t)
        each = signed(float(self.more.pace[i]))
        return f", of which {signed(part)} from {plural(turns, 'continued turn')} at {each} each"

    def _sum_note(self, i: int) -> str:
        turns, pace = int(self.more.turns[i]), float(self.more.pace[i])
        if not turns:
            return ""
        each = f"from {plural(turns, 'continued turn')} at {signed(pace)} each"
        return f", of which {signed(pace * turns)} {each}"

    def _continued_words(self, i: int) -> str:
        turns = int(self.more.turns[i])
        return f", with {plural(turns, 'continued turn')}" if turns else ""

    def _reward_note(self, i: int, t: int) -> str:
        turns = int(self.more.turns[i])
        if not turns or t + 1 < len(self.rewards[i]):
            return ""
        return (
            f" (the mean of {signed(float(self.rewards[i][t]))} and {plural(turns, 'continued turn')} at "
            f"{signed(float(self.more.pace[i]))})"
        )

    # ---- peers

    def _group(self, i: int, whole: bool) -> Sequence[int]:
        return range(len(self.groups)) if whole else self._members[self.groups[i]]

    def _with_score(self, members: Iterable[int]) -> list[int]:
        return [k for k in members if self.ragged.has_scored[k]]

    def _counted(self, members: Iterable[int], values: Sequence[Any]) -> Peers | None:
        """Return the peers of all turns of `members` that count."""
        return _peers([values[k][t] for k in members for t in np.flatnonzero(self.computed.mask[k])])

    def _at_turn(self, i: int, t: int, values: Sequence[Any]) -> Peers | None:
        """Return the siblings that count at a turn."""
        mask = self.computed.mask
        return self._cached(
            ("turn", self.groups[i], t, values is self.settled),
            lambda: _peers([values[k][t] for k in self._group(i, False) if t < len(mask[k]) and mask[k][t]]),
        )

    def _cached(self, key: Hashable, compute: Callable[[], Peers | None]) -> Peers | None:
        if key not in self._peers:
            self._peers[key] = compute()
        return self._peers[key]


def _peers(values: Sequence[float]) -> Peers | None:
    if not values:
        return None
    array = np.asarray(values, dtype=np.float64)
    return Peers(float(array.mean()), float(array.std()), len(array))
