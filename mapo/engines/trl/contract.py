"""The contract between a rollout function and the trainer: token ids, their turns, and turn rewards.

Each key has one entry per dialogue, in the order of the prompts:

    prompt_ids       ids before the first reply
    completion_ids   everything after them: replies and what is between them
    logprobs         one number per completion id, 0 if it was not sampled; or None for the whole batch
    turn_ids         one number per completion id: the turn it was sampled in, from 0; -1 if not sampled
    turn_rewards     one number per turn, None for an unscored turn; None instead of the list for a broken
                     dialogue

Some methods need one key more, whose entry may be None for a broken dialogue:

    outcome          mt_grpo: a number, such as 1 for success and 0 for anything else
    states           gigpo: the state before each turn, equal for equal states (a string, a number or a tuple
                     of them); None if it is unknown
    axes             gdpo: a dict with one number per turn for each axis, None for unscored turns; beside it
                     `axis_weights`, one dict for the whole batch, may give the axes other weights than 1

One more key is optional:

    excluded         one bool per turn: True for turns that are not trained, such as replies to a faulty user
                     message; None for a broken dialogue

A broken dialogue is excluded from loss and statistics; its siblings are not affected. This module does not
import torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mapo.advantage import Advantages
from mapo.credit import hashable
from mapo.errors import InputError, RewardError
from mapo.estimators.methods import ESTIMATORS
from mapo.rows import Row, rows_of
from mapo.types import Dialogue

Rewards = list[float | None] | None
"""The turn rewards of one dialogue; None if it is broken."""

KEYS = ("prompt_ids", "completion_ids", "logprobs", "turn_ids", "turn_rewards")
EXCLUDED = "excluded"
_FIX = "docs/trl.md describes what a rollout function returns"


def rollout_of(dialogues: Sequence[Dialogue], filler: int) -> dict[str, Any]:
    """Convert dialogues of a locally sampled policy to the form the trainer expects.

    A dialogue that is broken or has no tokens becomes the single token `filler`, which is not trained.
    """
    rollout: dict[str, Any] = {key: [] for key in KEYS}
    for dialogue in dialogues:
        row = _row(dialogue) if dialogue.usable else None
        if row is None:
            ids, turns, logprobs, start = [filler, filler], [-1], [0.0], 1
        else:
            start = int(np.argmax(row.turns >= 0))
            ids, turns, logprobs = row.ids.tolist(), row.turns[start:].tolist(), row.logprobs[start:].tolist()
        rewards = dialogue.rewards if dialogue.usable else None
        for key, value in zip(KEYS, (ids[:start], ids[start:], logprobs, turns, rewards), strict=True):
            rollout[key].append(value)
    return rollout


def _row(dialogue: Dialogue) -> Row | None:
    """Return the dialogue's row with all its turns, or None if it has no tokens."""
    zeros = [np.zeros(len(dialogue.turns))]
    mask = [np.ones(len(dialogue.turns), dtype=bool)]
    rows = rows_of([dialogue], Advantages(zeros, zeros, zeros, zeros, mask))
    if len(rows) > 1:
        raise InputError(
            "the chat template rewrote an earlier turn, so the dialogue has several rows of tokens",
            where=f"dialogue {dialogue.id}",
            fix="TRL needs one row per dialogue; use the local engine (mapo train) with this template",
        )
    return rows[0] if rows else None


def check_rollout(output: Mapping[str, Any], count: int, method: str = "mapo") -> dict[str, Any]:
    """Return a rollout's output for `count` prompts with TRL's `env_mask` added.

    Raise InputError if the output does not follow the contract, or lacks what the method needs.
    """
    if missing := [key for key in KEYS if key not in output]:
        raise InputError(f"the returned dict has no {', '.join(missing)}", where="rollout_func", fix=_FIX)
    need = ESTIMATORS[method].needs
    if need and need not in output:
        raise InputError(
            f"the returned dict has no {need}, which the method '{method}' needs",
            where="rollout_func",
            fix=_FIX,
        )
    more = [key for key in (need, EXCLUDED) if key and key in output]
    for key in (*KEYS, *more):
        values = output[key]
        if key == "logprobs" and values is None:
            continue
        if not isinstance(values, list) or len(values) != count:
            kind = f"a list of {len(values)}" if isinstance(values, list) else f"a {type(values).__name__}"
            raise InputError(
                f"{key} is {kind}, but there are {count} prompts", where="rollout_func", fix=_FIX
            )
    rewards = [
        None if values is None else _parse_rewards(values, f"rollout_func, turn_rewards[{index}]")
        for index, values in enumerate(output["turn_rewards"])
    ]
    for index in range(count):
        _check_dialogue(output, rewards[index], index)
    mask = [[int(turn >= 0) for turn in turns] for turns in output["turn_ids"]]
    parsed = {**output, "turn_rewards": rewards, "env_mask": mask}
    for key in more:
        parsed[key] = [
            None if row is None else _parse_input(key, entry, len(row), f"rollout_func, {key}[{index}]")
            for index, (entry, row) in enumerate(zip(output[key], rewards, strict=True))
        ]
    if need == "axes" and output.get("axis_weights") is not None:
        parsed["axis_weights"] = _parse_weights(output["axis_weights"])
    return parsed


def _check_dialogue(output: Mapping[str, Any], rewards: Rewards, index: int) -> None:
    where = f"rollout_func, dialogue {index}"
    completion, turns = output["completion_ids"][index], output["turn_ids"][index]
    if not len(output["prompt_ids"][index]) or not len(completion):
        raise InputError("prompt_ids or completion_ids is empty", where=where, fix=_FIX)
    lengths = {"turn_ids": len(turns)}
    if output["logprobs"] is not None:
        lengths["logprobs"] = len(output["logprobs"][index])
    for key, length in lengths.items():
        if length != len(completion):
            raise InputError(
                f"there are {len(completion)} completion_ids but {length} {key}", where=where, fix=_FIX
            )
    if rewards is not None and not -1 <= min(turns) <= max(turns) < len(rewards):
        raise InputError(
            f"turn_ids range from {min(turns)} to {max(turns)}, but there are {len(rewards)} turn_rewards",
            where=where,
            fix="Number turns from 0, and use -1 for ids that were not sampled",
        )
    order = [turn for turn, before in zip(turns, [-1, *turns], strict=False) if turn not in (-1, before)]
    if order != list(range(len(order))):
        raise InputError(
            f"turn_ids are in the order {', '.join(map(str, order[:8]))}",
            where=where,
            fix="Number the turns in the order in which they were sampled: 0, 1, ...",
        )


def _parse_input(need: str, entry: Any, turns: int, where: str) -> Any:
    """Return a dialogue's entry of the key that the method needs, as JSON values but for tuples."""
    if need == "outcome":
        if not _is_number(entry):
            raise InputError(f"{entry!r} is not a finite number", where=where, fix=_FIX)
        return float(entry)
    if need == "states":
        return [_parse_state(state, where) for state in _per_turn(entry, turns, where)]
    if need == EXCLUDED:
        return [_parse_bool(value, where) for value in _per_turn(entry, turns, where)]
    if not isinstance(entry, Mapping):
        raise InputError(f"the entry is a {type(entry).__name__}", where=where, fix="Use a dict of axes")
    return {
        str(name): _parse_rewards(_per_turn(row, turns, f"{where}, {name}"), f"{where}, {name}")
        for name, row in entry.items()
    }


def _parse_bool(value: Any, where: str) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise InputError(f"{value!r} is not a bool", where=where, fix=_FIX)
    return bool(value)


def _per_turn(entry: Any, turns: int, where: str) -> list[Any]:
    values = entry.tolist() if isinstance(entry, np.ndarray) else entry
    if not isinstance(values, list | tuple) or len(values) != turns:
        kind = f"a list of {len(values)}" if isinstance(values, list | tuple) else f"a {type(entry).__name__}"
        raise InputError(f"the entry is {kind}, but there are {turns} turn_rewards", where=where, fix=_FIX)
    return list(values)


def _parse_state(state: Any, where: str) -> Any:
    value = state.tolist() if isinstance(state, np.ndarray | np.generic) else state
    if isinstance(value, list | tuple):
        return tuple(_parse_state(part, where) for part in value)
    if not isinstance(value, str | int | float | None):
        raise InputError(
            f"a state is a {type(state).__name__}", where=where, fix="Use strings, numbers or tuples of them"
        )
    return value


def _parse_weights(weights: Any) -> dict[str, float]:
    if not isinstance(weights, Mapping) or not all(map(_is_number, weights.values())):
        raise InputError(
            f"{weights!r} is not a dict of numbers", where="rollout_func, axis_weights", fix=_FIX
        )
    return {str(name): float(weight) for name, weight in weights.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number | np.bool_) and bool(np.isfinite(value))


def _parse_rewards(values: Any, where: str) -> list[float | None]:
    if not isinstance(values, list | tuple | np.ndarray):
        raise RewardError(
            f"the entry is a {type(values).__name__}", where=where, fix="Use a list of numbers, or None"
        )
    for reward in values:
        if isinstance(reward, bool) or not isinstance(reward, int | float | np.number | None):
            raise RewardError(f"{reward!r} is not a number", where=where, fix="Use None for an unscored turn")
    return [None if reward is None or np.isnan(reward) else float(reward) for reward in values]


def all_entries(need: str, entries: Sequence[Any]) -> list[Any]:
    """Return the entries of all processes as `mapo.advantages` takes them.

    Broken dialogues have no turns. States are hashable again after their way through JSON.
    """
    if need == "outcome":
        return [0.0 if entry is None else entry for entry in entries]
    if need == "states":
        return [list(map(hashable, entry or ())) for entry in entries]
    if need == EXCLUDED:
        return [entry or [] for entry in entries]
    names = next((list(entry) for entry in entries if entry is not None), [])
    return [{name: [] for name in names} if entry is None else entry for entry in entries]


def token_advantages(
    turn_ids: Sequence[Sequence[int]], rewards: Sequence[Rewards], credit: Advantages, first: int, width: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return each token's advantage and the loss mask, both of shape [dialogues, width].

    `credit` covers the batch of all processes; the dialogues of this process start at index `first`.
    """
    advantage = np.zeros((len(turn_ids), width), np.float32)
    mask = np.zeros((len(turn_ids), width), np.int64)
    for i, turns in enumerate(turn_ids):
        if rewards[i] is None:
            continue
        turn = np.asarray(turns)
        sampled = np.flatnonzero(turn >= 0)
        advantage[i, sampled] = credit.mixed[first + i][turn[sampled]]
        mask[i, sampled] = credit.mask[first + i][turn[sampled]]
    return advantage, mask


def dialogue_return(turn_rewards: Sequence[Rewards], **_: Any) -> list[float | None]:
    """Return each dialogue's summed reward for TRL's metrics; None if it is broken or has no scored turn."""
    scored = [None if row is None else [r for r in row if r is not None] for row in turn_rewards]
    return [sum(row) if row else None for row in scored]
