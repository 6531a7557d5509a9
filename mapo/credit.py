"""Dialogues -> the input of the advantage estimators, beyond the rewards.

Most methods need rewards only. mt_grpo needs the outcome of each dialogue, gigpo the states before each turn
and gdpo the rewards per axis; replies to faulty user messages may be excluded. All of it is read off the
records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

from mapo.advantage import Advantages, advantages
from mapo.config import Advantage
from mapo.estimators.methods import ESTIMATORS
from mapo.measure.axes import axis_rewards, positions_before
from mapo.measure.rubric import Rubric
from mapo.types import Dialogue, StopReason

STATES = ("binned", "exact")
"""What `states_of` can take as the state before a turn."""
BIN = 3.0
"""Width of the bins of a position on each axis: the largest progress of one turn in the shipped rubrics."""


def compute_credit(dialogues: Sequence[Dialogue], settings: Advantage, rubric: Rubric) -> Advantages:
    """Return the advantage of every turn of a batch of usable dialogues."""
    rewards, groups = [d.rewards for d in dialogues], [d.group for d in dialogues]
    return advantages(rewards, groups, **settings.options(), **credit_inputs(dialogues, settings, rubric))


def credit_inputs(dialogues: Sequence[Dialogue], settings: Advantage, rubric: Rubric) -> dict[str, Any]:
    """Return the keyword arguments of `mapo.advantages` that the settings need beside the rewards."""
    needs = ESTIMATORS[settings.method].needs if settings.method in ESTIMATORS else None
    inputs: dict[str, Any] = {}
    if settings.mask_faults:
        inputs["excluded"] = [[turn.user_at_fault for turn in d.turns] for d in dialogues]
    if needs == "outcome":
        inputs["outcome"] = [outcome_of(d) for d in dialogues]
    elif needs == "states":
        inputs["states"] = [states_of(d, settings.states) for d in dialogues]
    elif needs == "axes":
        inputs["axes"] = [axis_rewards(d, rubric) for d in dialogues]
        inputs["axis_weights"] = dict(zip(rubric.keys, rubric.weights, strict=True))
    return inputs


def turns_in_state(dialogues: Sequence[Dialogue], settings: Advantage, credit: Advantages) -> list[list[int]]:
    """Return, for every turn, how many trained turns of its group begin in the same state, itself included;
    0 for turns that are not trained.
    """
    keys = [[(d.group, state) for state in states_of(d, settings.states)] for d in dialogues]
    trained = [mask.tolist() for mask in credit.mask]
    counts = Counter(
        key
        for row, mask in zip(keys, trained, strict=True)
        for key, trains in zip(row, mask, strict=True)
        if trains
    )
    return [
        [counts[key] if trains else 0 for key, trains in zip(row, mask, strict=True)]
        for row, mask in zip(keys, trained, strict=True)
    ]


def hashable(state: Any) -> Any:
    """Return a state that went through JSON, which makes lists of tuples, as it was before."""
    return tuple(map(hashable, state)) if isinstance(state, list | tuple) else state


def outcome_of(dialogue: Dialogue) -> float:
    """Return 1 for a success, 0 for anything else."""
    return float(dialogue.ending is not None and dialogue.ending.reason is StopReason.SUCCESS)


def states_of(dialogue: Dialogue, kind: str) -> list[Hashable]:
    """Return the state before each turn. "exact": the position and what the person said, which is the whole
    state of the scripted world; "binned": the position in bins, since no two messages of a model are equal.
    """
    positions = positions_before(dialogue)
    if kind == "binned":
        return [tuple(round(x / BIN) for x in position) for position in positions]
    return [
        (turn.user, *(round(x, 6) for x in position))
        for position, turn in zip(positions, dialogue.turns, strict=True)
    ]
