"""What some estimators need beside the rewards, checked: outcomes, states, and rewards per axis."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mapo.errors import RewardError
from mapo.estimators.methods import Batch, Continuation, Estimator, totals
from mapo.estimators.ragged import Bools, Floats, Ints, Ragged


def outcomes(outcome: Any, ragged: Ragged) -> Floats:
    values = _as_floats(outcome, "outcome")
    if len(values) != len(ragged.lengths) or not (np.abs(values) < 1e150).all():
        raise RewardError(
            "the outcomes are not one finite number per dialogue",
            where="outcome",
            fix="Pass a number per dialogue, such as 1 for success and 0 for anything else",
        )
    return values


def state_codes(states: Any, ragged: Ragged) -> Ints:
    """Return one code per turn, equal for equal states of the same group. Unknown states equal no other."""
    _check_lengths(states, ragged, "states")
    codes: dict[Hashable, int] = {}
    flat = (
        codes.setdefault(
            (dialogue, turn, "unknown") if state is None else (group, state),  # never of equal length
            len(codes),
        )
        for dialogue, (group, row) in enumerate(zip(ragged.group_of_dialogue.tolist(), states, strict=True))
        for turn, state in enumerate(row)
    )
    try:
        return np.fromiter(flat, np.intp, len(ragged.values))
    except TypeError:
        raise RewardError(
            "a state cannot be compared with others", where="states", fix="Use strings, numbers or tuples"
        ) from None


def excluded_turns(excluded: Any, ragged: Ragged) -> Bools:
    """Return which turns are excluded, flat."""
    _check_lengths(excluded, ragged, "excluded")
    flat = [value for row in excluded for value in row]
    if not all(isinstance(value, bool | np.bool_) for value in flat):
        raise RewardError("these are not booleans", where="excluded", fix="Pass True for turns to leave out")
    return np.array(flat, dtype=bool)


def with_axes(batch: Batch, axes: Any, weights: Mapping[str, float] | None, more: Continuation) -> Batch:
    """Return the batch with each dialogue's summed reward on each axis."""
    ragged = batch.ragged
    if not isinstance(axes, list | tuple) or len(axes) != len(ragged.lengths):
        raise RewardError("there is not one entry per dialogue", where="axes", fix="Pass a list of mappings")
    names = list(axes[0]) if axes and isinstance(axes[0], Mapping) else []
    if not all(isinstance(row, Mapping) and set(row) == set(names) for row in axes):
        raise RewardError(
            "the dialogues have different axes", where="axes", fix="Name the same axes everywhere"
        )
    sums = np.zeros((len(ragged.lengths), len(names)))
    for k, name in enumerate(names):
        rows = [row[name] for row in axes]
        _check_lengths(rows, ragged, f"axes, {name}")
        flat = [value for row in rows for value in row]
        values = _as_floats([np.nan if value is None else value for value in flat], f"axes, {name}")
        if not (np.abs(values[ragged.scored]) < 1e150).all():
            raise RewardError(
                "a scored turn has no finite reward on this axis", where=f"axes, {name}", fix="Pass a number"
            )
        sums[:, k] = totals(np.where(ragged.scored, values, 0.0), ragged, more)
    return replace(batch, axes=sums, axis_weights=_weights(weights, names))


def _weights(weights: Any, names: Sequence[str]) -> Floats:
    given = {} if weights is None else weights
    known = isinstance(given, Mapping) and (not names or set(given) <= set(names))
    if not known or not all(
        isinstance(w, int | float | np.number) and 0 <= w < np.inf for w in given.values()
    ):
        raise RewardError(
            "these are not weights of the axes",
            where="axis_weights",
            fix=f"Pass a number from 0 for some of: {', '.join(map(str, names))}",
        )
    return np.array([float(given.get(name, 1.0)) for name in names])


def _as_floats(values: Any, where: str) -> Floats:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "biuf"):
        raise RewardError("these are not numbers", where=where, fix="Pass a plain list of numbers")
    return array.astype(np.float64)


def _check_lengths(rows: Any, ragged: Ragged, where: str) -> None:
    listed = isinstance(rows, list | tuple | np.ndarray)
    sized = listed and all(
        isinstance(row, Sequence | np.ndarray) and not isinstance(row, str) for row in rows
    )
    if not sized or [len(row) for row in rows] != ragged.lengths.tolist():
        raise RewardError(
            "there is not one entry per turn of every dialogue", where=where, fix="Pass one per reward"
        )


def check_needs(method: str, estimator: Estimator, *, dialogues: int, **given: Any) -> None:
    need = estimator.needs
    if need is not None and given[need] is None and dialogues:
        raise RewardError(
            f"the method '{method}' needs `{need}`",
            fix=f"Pass {need}=..., one entry per dialogue, or use a method that needs rewards only",
        )
