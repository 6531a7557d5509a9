"""Why a turn was credited as it was: the credit of a batch, and the numbers it was made of.

Records hold rewards, not advantages; those follow from the whole batch and the run's settings, so they are
computed here with the very function the trainer calls.
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
    """Among whom a number was compared: their mean and spread, and how many they are."""

    mean: float
    std: float
    n: int


@dataclass(frozen=True, slots=True)
class TurnCredit:
    """One turn. `counts` is False where the turn is out of the loss: then the parts are 0."""

    ret: float
    turn: float
    batch: float
    mixed: float
    counts: bool
    turn_peers: Peers | None
    batch_peers: Peers | None


@dataclass(frozen=True, slots=True)
class Credit:
    """A batch's credit by the dialogues' numbers; `problem` says why there is none."""

    settings: Advantage | None
    turns: dict[int, list[TurnCredit]]
    problem: str = ""

    def largest_of(self, numbers: Iterable[int]) -> float:
        """The largest part any of these dialogues has: what bars are measured by."""
        turns = [turn for n in numbers for turn in self.turns.get(n, ())]
        return max((abs(x) for t in turns for x in (t.turn, t.batch, t.mixed)), default=0.0)


def credit_of(rows: Sequence[sqlite3.Row], settings: Advantage | None, why: str = "") -> Credit:
    """The credit of a batch's dialogues, broken ones left out; without settings there is none, and `why`."""
    if settings is None:
        return Credit(None, {}, why)
    usable = [row for row in rows if not row["error"]]
    rewards = [json.loads(row["rewards"]) for row in usable]
    groups = [row["grp"] for row in usable]
    found = credit(rewards, groups, settings)
    if isinstance(found, str):
        return Credit(settings, {}, found)
    values = [np.array([np.nan if r is None else r for r in row], dtype=np.float64) for row in rewards]
    turns = {row["n"]: _turns(i, found, values, groups, settings.scope) for i, row in enumerate(usable)}
    return Credit(settings, turns)


def _turns(
    i: int, found: Advantages, rewards: Sequence[Floats], groups: Sequence[str], scope: str
) -> list[TurnCredit]:
    siblings = [k for k, group in enumerate(groups) if group == groups[i]]
    peers = siblings if scope == "group" else range(len(groups))
    every = _peers([rewards[k][t] for k in peers for t in np.flatnonzero(found.mask[k])])
    return [
        TurnCredit(
            ret=float(found.returns[i][t]),
            turn=float(found.turn[i][t]),
            batch=float(found.batch[i][t]),
            mixed=float(found.mixed[i][t]),
            counts=bool(found.mask[i][t]),
            turn_peers=_peers(
                [found.returns[k][t] for k in siblings if t < len(found.mask[k]) and found.mask[k][t]]
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
