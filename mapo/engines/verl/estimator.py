"""mapo's advantage estimators with verl's interface: token rewards in, token advantages out.

verl passes an estimator the token rewards, the response mask and each row's prompt id. A turn is therefore a
run of ones in the mask, and its reward is the sum of the token rewards in that run (the turn reward on the
last token, plus per-token KL penalties if verl adds them).

The tokens of an unscored turn are masked out of the loss, so the turn has no ones. It must still count as a
turn, because otherwise later turns would be compared with the wrong turns of siblings. The value `UNSCORED`
on its last token marks it. Padding rows that verl adds to a batch have no ones and no marks, and are ignored.

Some methods need more than rewards (`Estimator.needs`), and turns may be excluded for a fault of the user.
verl passes nothing else to an estimator, so MapoTrainer hands it the `inputs` that the agent loop attached to
each row. An excluded turn keeps its ones, because its reward counts; `loss_mask` removes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mapo.advantage import Advantages, advantages
from mapo.credit import hashable
from mapo.errors import RewardError
from mapo.estimators.methods import ESTIMATORS

UNSCORED = 2.0**-100
"""Reward on the last token of an unscored turn, where the mask is 0. Too small to change any sum or mean."""

OPTIONS = {
    "gamma": float,
    "turn_weight": float,
    "scope": str,
    "horizon": str,
    "endings": str,
    "scale": str,
    "lam": float,
    "step_weight": float,
}

Inputs = Sequence[Mapping[str, Any] | None]
"""For each row, `mapo.credit.credit_inputs` of its dialogue."""


@dataclass(frozen=True, slots=True)
class TurnSpans:
    """The turns in a batch of rows, in order, with their `rewards` (NaN if unscored) and `row` numbers.

    `start` and `stop` index tokens in the flattened batch. The span of an unscored turn is empty.
    """

    rewards: NDArray[np.float64]
    row: NDArray[np.intp]
    start: NDArray[np.intp]
    stop: NDArray[np.intp]
    shape: tuple[int, int]

    def rewards_by_row(self) -> list[NDArray[np.float64]]:
        rows = self.shape[0]
        return np.split(self.rewards, np.cumsum(np.bincount(self.row, minlength=rows))[:-1]) if rows else []


def find_turns(rewards: torch.Tensor, mask: torch.Tensor) -> TurnSpans:
    """Find the turns of every row.

    Rows are long and turns are few, so the work is done on indices of mask changes and non-zero rewards.
    """
    rows, width = rewards.shape
    sampled = np.zeros((rows, width + 2), bool)
    sampled[:, 1:-1] = mask.detach().bool().cpu().numpy()
    row, column = np.divmod(np.flatnonzero(sampled[:, 1:] != sampled[:, :-1]), width + 1)
    start, stop = (row * width + column).reshape(-1, 2).T  # changes alternate: start, stop, start, ...
    flat_rewards = rewards.detach().float().cpu().numpy().ravel()
    positions = np.flatnonzero(flat_rewards != 0)
    amounts = flat_rewards[positions].astype(np.float64)
    run = np.searchsorted(stop, positions, side="right")  # the first run that ends after the position
    inside = positions >= np.append(start, rows * width)[run]
    turn_rewards = np.bincount(run[inside], weights=amounts[inside], minlength=len(start))
    unscored_stop = positions[~inside & (amounts == UNSCORED)] + 1
    order = np.argsort(np.concatenate([stop, unscored_stop]), kind="stable")
    stop = np.concatenate([stop, unscored_stop])[order]
    return TurnSpans(
        rewards=np.concatenate([turn_rewards, np.full(len(unscored_stop), np.nan)])[order],
        row=(stop - 1) // max(width, 1),
        start=np.concatenate([start, unscored_stop])[order],
        stop=stop,
        shape=(rows, width),
    )


def parse_options(config: Any) -> dict[str, Any]:
    """Return the options in `algorithm.mapo.*`; raise ValueError for an unknown one."""
    options: Any = config.get("mapo") if config is not None else None
    if options is None:
        return {}
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise ValueError(f"algorithm.mapo.{unknown[0]} is not an option. Use one of: {', '.join(OPTIONS)}")
    return {name: OPTIONS[name](value) for name, value in options.items() if value is not None}


def compute_credit(
    turns: TurnSpans, index: Any, method: str, options: Mapping[str, Any], inputs: Inputs | None = None
) -> Advantages:
    """Compute the advantages of all turns. `index` has each row's prompt id; equal ids mark siblings."""
    groups = [str(name) for name in index]
    return advantages(turns.rewards_by_row(), groups, method, **options, **join_inputs(turns, method, inputs))


def join_inputs(turns: TurnSpans, method: str, inputs: Inputs | None) -> dict[str, Any]:
    """Return the keyword arguments of `mapo.advantages` that are needed beside the rewards.

    A padding row has the inputs of the row that verl copied, but no turns.
    """
    need = ESTIMATORS[method].needs
    excluded = _excluded(turns, inputs)
    if need is None:
        return excluded
    rows = [row for row in inputs or () if row is not None and need in row]
    if len(rows) < turns.shape[0]:
        raise RewardError(
            f"the method '{method}' needs `{need}`, which verl does not pass to estimators",
            where="algorithm.adv_estimator",
            fix="Train with `mapo train --engine verl`, or use a method that needs rewards only",
        )
    values = [row[need][0] for row in rows]
    played = np.bincount(turns.row, minlength=len(rows))
    if need == "states":
        values = [list(map(hashable, row)) if n else [] for row, n in zip(values, played, strict=True)]
    if need == "axes":
        values = [row if n else dict.fromkeys(row, ()) for row, n in zip(values, played, strict=True)]
    shared = {k: value for row in rows[:1] for k, value in row.items() if k not in (need, "excluded")}
    return {need: values, **shared, **excluded}


def _excluded(turns: TurnSpans, inputs: Inputs | None) -> dict[str, Any]:
    """Return the turns that the agent loop excluded; nothing if it excludes none."""
    rows = [(row or {}).get("excluded") for row in inputs or ()]
    if not any(rows):
        return {}
    played = np.bincount(turns.row, minlength=len(rows)).tolist()
    return {"excluded": [row[0] if row and n else [False] * n for row, n in zip(rows, played, strict=True)]}


def estimate(
    method: str,
    *,
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Any,
    config: Any = None,
    inputs: Inputs | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (advantages, returns) per token, 0 for tokens that are not trained."""
    with torch.no_grad():
        turns = find_turns(token_level_rewards, response_mask)
        credit = compute_credit(turns, index, method, parse_options(config), inputs)
        return (
            to_tokens(turns, credit.mixed, token_level_rewards),
            to_tokens(turns, credit.returns, token_level_rewards),
        )


def loss_mask(turns: TurnSpans, credit: Advantages, like: torch.Tensor) -> torch.Tensor:
    """Return the mask of tokens that enter the loss, without the turns that the estimator excludes."""
    return to_tokens(turns, credit.mask, like)


def to_tokens(turns: TurnSpans, values: Sequence[NDArray[Any]], like: torch.Tensor) -> torch.Tensor:
    """Assign each turn's value to its tokens, 0 elsewhere, with the dtype and device of `like`."""
    tokens = np.zeros(turns.shape, np.float32)
    flat = tokens.ravel()
    spans = zip(turns.start.tolist(), turns.stop.tolist(), chain.from_iterable(values), strict=True)
    for start, stop, value in spans:
        flat[start:stop] = value
    return torch.from_numpy(tokens).to(like.device, like.dtype)
