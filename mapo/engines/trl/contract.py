"""What a rollout owes the trainer: token ids, the turn each was said in, and what each turn earned.

One entry a dialogue under each key; dialogues in the order of the prompts:

    prompt_ids       ids before the first reply
    completion_ids   everything after: replies, and what stands between them
    logprobs         one number a completion id, 0 where nothing was sampled; or None for the whole batch
    turn_ids         one number a completion id: the turn it was sampled in, from 0; -1 where it was not
    turn_rewards     one number a turn, None where the turn is unscored; or None for a dialogue that broke

A broken dialogue leaves loss and statistics, whatever its ids; its siblings go on. No torch here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mapo.advantage import Advantages
from mapo.errors import InputError, RewardError
from mapo.rows import Row, rows_of
from mapo.types import Dialogue

Rewards = list[float | None] | None
"""The turn rewards of one dialogue; None if it broke."""

KEYS = ("prompt_ids", "completion_ids", "logprobs", "turn_ids", "turn_rewards")
_FIX = "The contract is in docs/trl.md"


def rollout_of(dialogues: Sequence[Dialogue], filler: int) -> dict[str, Any]:
    """Dialogues whose policy was sampled locally, as the trainer takes them.

    A dialogue that broke, or in which nothing was said, is the token `filler`, of which nothing is learnt.
    """
    found: dict[str, Any] = {key: [] for key in KEYS}
    for dialogue in dialogues:
        row = _row(dialogue) if dialogue.usable else None
        if row is None:
            ids, turns, logprobs, start = [filler, filler], [-1], [0.0], 1
        else:
            start = int(np.argmax(row.turns >= 0))
            ids, turns, logprobs = row.ids.tolist(), row.turns[start:].tolist(), row.logprobs[start:].tolist()
        earned = dialogue.rewards if dialogue.usable else None
        for key, value in zip(KEYS, (ids[:start], ids[start:], logprobs, turns, earned), strict=True):
            found[key].append(value)
    return found


def _row(dialogue: Dialogue) -> Row | None:
    """The dialogue's one row, with every turn in it; None if it has no tokens."""
    nothing = [np.zeros(len(dialogue.turns))]
    every = [np.ones(len(dialogue.turns), dtype=bool)]
    rows = rows_of([dialogue], Advantages(nothing, nothing, nothing, nothing, every))
    if len(rows) > 1:
        raise InputError(
            "the chat template rewrote an earlier turn, so the dialogue is several rows of tokens",
            where=f"dialogue {dialogue.id}",
            fix="TRL takes one row a dialogue; the local engine (mapo train) takes more",
        )
    return rows[0] if rows else None


def checked(output: Mapping[str, Any], count: int) -> dict[str, Any]:
    """What a rollout returned for `count` prompts, with TRL's `env_mask`; refused if it breaks its word."""
    if missing := [key for key in KEYS if key not in output]:
        raise InputError(f"no {', '.join(missing)} was returned", where="rollout_func", fix=_FIX)
    for key in KEYS:
        values = output[key]
        if key == "logprobs" and values is None:
            continue
        if not isinstance(values, list) or len(values) != count:
            told = f"a list of {len(values)}" if isinstance(values, list) else f"a {type(values).__name__}"
            raise InputError(f"{key} is {told} for {count} prompts", where="rollout_func", fix=_FIX)
    rewards = [_numbers(given, place) for place, given in enumerate(output["turn_rewards"])]
    for place in range(count):
        _check_dialogue(output, rewards[place], place)
    mask = [[int(turn >= 0) for turn in turns] for turns in output["turn_ids"]]
    return {**output, "turn_rewards": rewards, "env_mask": mask}


def _check_dialogue(output: Mapping[str, Any], rewards: Rewards, place: int) -> None:
    where = f"rollout_func, dialogue {place}"
    said, turns = output["completion_ids"][place], output["turn_ids"][place]
    if not len(output["prompt_ids"][place]) or not len(said):
        raise InputError("prompt_ids or completion_ids is empty", where=where, fix=_FIX)
    lengths = {"turn_ids": len(turns)}
    if output["logprobs"] is not None:
        lengths["logprobs"] = len(output["logprobs"][place])
    for key, length in lengths.items():
        if length != len(said):
            raise InputError(f"{len(said)} completion_ids but {length} {key}", where=where, fix=_FIX)
    if rewards is not None and not -1 <= min(turns) <= max(turns) < len(rewards):
        told = f"turn_ids from {min(turns)} to {max(turns)}, but {len(rewards)} turn_rewards"
        raise InputError(told, where=where, fix="Turns count from 0; -1 marks what was not sampled")
    order = [turn for turn, before in zip(turns, [-1, *turns], strict=False) if turn not in (-1, before)]
    if order != list(range(len(order))):
        told = f"turns come in the order {', '.join(map(str, order[:8]))}"
        raise InputError(told, where=where, fix="turn_ids count the turns as they were said: 0, then 1, ...")


def _numbers(given: Any, place: int) -> Rewards:
    if given is None:
        return None
    where = f"rollout_func, turn_rewards[{place}]"
    if not isinstance(given, list | tuple | np.ndarray):
        raise RewardError(f"a {type(given).__name__}", where=where, fix="Give a list of numbers, or None")
    for reward in given:
        if isinstance(reward, bool) or not isinstance(reward, int | float | np.number | None):
            raise RewardError(f"{reward!r} is no number", where=where, fix="None marks an unscored turn")
    return [None if reward is None or np.isnan(reward) else float(reward) for reward in given]


def spread(
    turn_ids: Sequence[Sequence[int]], rewards: Sequence[Rewards], credit: Advantages, first: int, width: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Every token's advantage, and which tokens enter the loss: [dialogues, width] each.

    `credit` is of the whole batch; these dialogues stand in it from place `first` on.
    """
    advantage = np.zeros((len(turn_ids), width), np.float32)
    mask = np.zeros((len(turn_ids), width), np.int64)
    for i, turns in enumerate(turn_ids):
        if rewards[i] is None:
            continue
        turn = np.asarray(turns)
        at = np.flatnonzero(turn >= 0)
        advantage[i, at] = credit.mixed[first + i][turn[at]]
        mask[i, at] = credit.mask[first + i][turn[at]]
    return advantage, mask


def dialogue_return(turn_rewards: Sequence[Rewards], **_: Any) -> list[float | None]:
    """A dialogue's summed reward, for TRL's own figures; None if it broke or nothing in it was scored."""
    scored = [None if row is None else [r for r in row if r is not None] for row in turn_rewards]
    return [sum(row) if row else None for row in scored]
