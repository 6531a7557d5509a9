"""The advantage (credit) of every turn of a batch, and the numbers it was computed from.

Records hold rewards, not advantages. Advantages depend on the whole batch and the run's settings, and are
computed here with the function that the trainer uses.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mapo.advantage import Advantages
from mapo.config import Advantage
from mapo.runs.contents import credit

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Peers:
    """Mean, standard deviation and number of the values that a value is compared with."""

    mean: float
    std: float
    n: int


@dataclass(frozen=True, slots=True)
class TurnCredit:
    """The credit of one turn. Where `counts` is False the turn is masked in the loss and its parts are 0."""

    ret: float
    turn: float
    batch: float
    mixed: float
    counts: bool
    turn_peers: Peers | None
    batch_peers: Peers | None


@dataclass(frozen=True, slots=True)
class Credit:
    """The credit of a batch by the number of the dialogue; `problem` says why there is none."""

    settings: Advantage | None
    turns: dict[int, list[TurnCredit]]
    problem: str = ""

    def largest_of(self, numbers: Iterable[int]) -> float:
        """Return the largest part in these dialogues, the scale of the bars."""
        turns = [turn for n in numbers for turn in self.turns.get(n, ())]
        return max((abs(x) for t in turns for x in (t.turn, t.batch, t.mixed)), default=0.0)


def credit_of(rows: Sequence[sqlite3.Row], settings: Advantage | None, problem: str = "") -> Credit:
    """Return the credit of a batch without broken dialogues. Without settings there is none but `problem`."""
    if settings is None:
        return Credit(None, {}, problem)
    usable = [row for row in rows if not row["error"]]
    rewards = [json.loads(row["rewards"]) for row in usable]
    groups = [row["grp"] for row in usable]
    computed = credit(rewards, groups, settings)
    if isinstance(computed, str):
        return Credit(settings, {}, computed)
    values = [np.array([np.nan if r is None else r for r in row], dtype=np.float64) for row in rewards]
    turns = {row["n"]: _turns(i, computed, values, groups, settings.scope) for i, row in enumerate(usable)}
    return Credit(settings, turns)


def _turns(
    i: int, computed: Advantages, rewards: Sequence[Floats], groups: Sequence[str], scope: str
) -> list[TurnCredit]:
    siblings = [k for k, group in enumerate(groups) if group == groups[i]]
    peers = siblings if scope == "group" else range(len(groups))
    every = _peers([rewards[k][t] for k in peers for t in np.flatnonzero(computed.mask[k])])
    return [
        TurnCredit(
            ret=float(computed.returns[i][t]),
            turn=float(computed.turn[i][t]),
            batch=float(computed.batch[i][t]),
            mixed=float(computed.mixed[i][t]),
            counts=bool(computed.mask[i][t]),
            turn_peers=_peers(
                [
                    computed.returns[k][t]
                    for k in siblings
                    if t < len(computed.mask[k]) and computed.mask[k][t]
                ]
            ),
            batch_peers=every,
        )
        for t in range(len(rewards[i]))
    ]


def _peers(values: Sequence[float]) -> Peers | None:
    if not values:
        return None
    array = np.asarray(values, dtype=np.float64)
    return Peers(float(array.mean()), float(array.std()), len(array))
