"""Turn rewards of dialogues of different lengths as validated flat arrays."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mapo.errors import RewardError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]

_NUMBERS = {int, float, type(None), *(np.dtype(c).type for c in "bBhHiIlLqQefdg")}


@dataclass(frozen=True, slots=True)
class Ragged:
    """All turns of a batch, concatenated, with the index arrays that the estimators need."""

    values: Floats
    scored: Bools
    lengths: Ints
    starts: Ints
    group_of_dialogue: Ints
    group_of_turn: Ints
    turn_index: Ints
    cell: Ints  # one number per (group, turn index)
    has_scored: Bools  # per dialogue: has at least one scored turn

    @staticmethod
    def of(rewards: Sequence[Any], groups: Any) -> Ragged:
        """Validate and concatenate the turn rewards; `groups` names the group of each dialogue."""
        for name, argument in (("rewards", rewards), ("groups", groups)):
            scalar = isinstance(argument, np.ndarray) and argument.ndim == 0
            if scalar or not isinstance(argument, list | tuple | np.ndarray):
                raise RewardError(
                    f"{name} is a {type(argument).__name__}", fix="Pass a list, a tuple or an array"
                )
        if len(rewards) != len(groups):
            raise RewardError(
                f"rewards of {len(rewards)} dialogues but {len(groups)} groups",
                fix="Pass one group name per dialogue",
            )
        lengths = _lengths(rewards)
        starts = np.cumsum(lengths) - lengths
        values = _numbers(rewards, starts)
        codes: dict[Hashable, int] = {}
        names = (_hashable(group, d) for d, group in enumerate(groups))
        group_of_dialogue = np.fromiter(
            (codes.setdefault(name, len(codes)) for name in names), np.intp, len(groups)
        )
        longest = np.zeros(len(codes), np.intp)
        np.maximum.at(longest, group_of_dialogue, lengths)
        first_cell = np.cumsum(longest) - longest
        turn_index = np.arange(len(values)) - np.repeat(starts, lengths)
        scored = ~np.isnan(values)
        return Ragged(
            values=values,
            scored=scored,
            lengths=lengths,
            starts=starts,
            group_of_dialogue=group_of_dialogue,
            group_of_turn=np.repeat(group_of_dialogue, lengths),
            turn_index=turn_index,
            cell=np.repeat(first_cell[group_of_dialogue], lengths) + turn_index,
            has_scored=segment_sums(scored, starts, lengths) > 0,
        )

    def split(self, *flats: NDArray[Any]) -> list[list[NDArray[Any]]]:
        """Split each flat array into one view per dialogue."""
        ends = (self.starts + self.lengths).tolist()
        spans = [slice(a, b) for a, b in zip(self.starts.tolist(), ends, strict=True)]
        return [[flat[span] for span in spans] for flat in flats]


def segment_sums(x: NDArray[Any], starts: Ints, lengths: Ints) -> Floats:
    """Return the sum over each dialogue's segment of a flat array."""
    sums = np.zeros(len(lengths))
    nonempty = lengths > 0  # reduceat would return one entry for an empty segment
    if nonempty.any():
        sums[nonempty] = np.add.reduceat(x, starts[nonempty], dtype=np.float64)
    return sums


def _lengths(rewards: Sequence[Any]) -> Ints:
    for dialogue, row in enumerate(rewards):
        array = type(row) is np.ndarray and row.ndim == 1
        if not array and not isinstance(row, list | tuple):
            raise RewardError(
                f"expected the turn rewards of one dialogue, got a {type(row).__name__}",
                where=f"rewards[{dialogue}]",
                fix="Pass one list, tuple or one-dimensional array of numbers per dialogue",
            )
    return np.fromiter(map(len, rewards), np.intp, len(rewards))


def _hashable(group: Any, dialogue: int) -> Hashable:
    try:
        hash(group)
    except TypeError:
        raise RewardError(
            f"a {type(group).__name__} cannot be used as a group name",
            where=f"groups[{dialogue}]",
            fix="Use strings or integers",
        ) from None
    return group  # type: ignore[no-any-return]


def _numbers(rewards: Sequence[Any], starts: Ints) -> Floats:
    """Concatenate all rewards as float64, NaN for unscored turns; reject anything that is not a number."""
    if len(rewards) and all(isinstance(row, np.ndarray) and row.dtype.kind in "fiu" for row in rewards):
        values = np.concatenate(list(rewards)).astype(np.float64, copy=False)
    else:
        flat = list(chain.from_iterable(rewards))
        if not set(map(type, flat)) <= _NUMBERS:
            i, x = next((i, x) for i, x in enumerate(flat) if type(x) not in _NUMBERS)
            raise RewardError(
                f"{x!r} is not a number",
                where=_place(i, starts),
                fix="Rewards are numbers; None or NaN marks an unscored turn",
            )
        try:
            values = np.array(flat, dtype=np.float64)
        except OverflowError:
            raise RewardError("an integer is too large for a float", fix="Scale the rewards down") from None
    if infinite := np.flatnonzero(np.isinf(values)).tolist():
        raise RewardError(
            f"{values[infinite[0]]} is not finite",
            where=_place(infinite[0], starts),
            fix="Pass None for an unscored turn",
        )
    return values


def _place(position: int, starts: Ints) -> str:
    dialogue = int(np.searchsorted(starts, position, side="right")) - 1
    return f"rewards[{dialogue}][{position - int(starts[dialogue])}]"
