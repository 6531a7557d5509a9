"""Our estimators as verl calls them: tokens in, tokens out.

verl gives an estimator the token rewards, the response mask and each row's prompt id, nothing else. So a turn
is a run of ones in the mask and its reward is what lies on the run (on its last token, and KL penalties
along it where verl is told to put them there). A turn the judge could not score has no ones: its tokens are
masked out of the loss like the user's. It still must count as a turn, or the turns after it would be compared
with the wrong ones; `UNSCORED` on its last token says that it was there. Rows that verl adds to fill up a
batch have no ones at all and take part in nothing.
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

UNSCORED = 2.0**-100
"""Reward on the last token of an unscored turn, where the mask is 0. Too small to move any sum or mean."""

OPTIONS = {"gamma": float, "turn_weight": float, "scope": str, "horizon": str}


@dataclass(frozen=True, slots=True)
class Turns:
    """The turns in a batch of rows, in order: `rewards`, NaN where unscored, and `row`, in which they are.
    `start` and `stop` are where their tokens lie in the rows end to end; nothing lies in an unscored one."""

    rewards: NDArray[np.float64]
    row: NDArray[np.intp]
    start: NDArray[np.intp]
    stop: NDArray[np.intp]
    shape: tuple[int, int]

    def ragged(self) -> list[NDArray[np.float64]]:
        """Per row its turns' rewards."""
        rows = self.shape[0]
        return np.split(self.rewards, np.cumsum(np.bincount(self.row, minlength=rows))[:-1]) if rows else []


def find_turns(rewards: torch.Tensor, mask: torch.Tensor) -> Turns:
    """The turns of every row. Rows are long and turns few, so only the places where something is are kept."""
    rows, width = rewards.shape
    said = np.zeros((rows, width + 2), bool)
    said[:, 1:-1] = mask.detach().bool().cpu().numpy()
    row, at = np.divmod(np.flatnonzero(said[:, 1:] != said[:, :-1]), width + 1)
    start, stop = (row * width + at).reshape(-1, 2).T  # runs of ones begin and end in turn
    paid = rewards.detach().float().cpu().numpy().ravel()
    where = np.flatnonzero(paid != 0)
    amount = paid[where].astype(np.float64)
    run = np.searchsorted(stop, where, side="right")  # the first run that ends after it
    inside = where >= np.append(start, rows * width)[run]
    earned = np.bincount(run[inside], weights=amount[inside], minlength=len(start))
    missed = where[~inside & (amount == UNSCORED)] + 1
    order = np.argsort(np.concatenate([stop, missed]), kind="stable")
    stop = np.concatenate([stop, missed])[order]
    return Turns(
        rewards=np.concatenate([earned, np.full(len(missed), np.nan)])[order],
        row=(stop - 1) // max(width, 1),
        start=np.concatenate([start, missed])[order],
        stop=stop,
        shape=(rows, width),
    )


def options_of(config: Any) -> dict[str, Any]:
    """What `+algorithm.mapo.*` says; a name that is none is refused."""
    given: Any = config.get("mapo") if config is not None else None
    if given is None:
        return {}
    unknown = sorted(set(given) - set(OPTIONS))
    if unknown:
        raise ValueError(f"algorithm.mapo.{unknown[0]} is no option; there are {', '.join(OPTIONS)}")
    return {name: OPTIONS[name](value) for name, value in given.items() if value is not None}


def credit_of(turns: Turns, index: Any, method: str, options: Mapping[str, Any]) -> Advantages:
    """The advantages of the batch's turns. `index` names each row's prompt: rows of one are siblings."""
    groups = [str(name) for name in index]
    return advantages(turns.ragged(), groups, method, **options)


def estimate(
    method: str,
    *,
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Any,
    config: Any = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(advantages, returns), one of each a token; 0 wherever nothing trains."""
    with torch.no_grad():
        turns = find_turns(token_level_rewards, response_mask)
        credit = credit_of(turns, index, method, options_of(config))
        return (
            spread(turns, credit.mixed, token_level_rewards),
            spread(turns, credit.returns, token_level_rewards),
        )


def counted(turns: Turns, credit: Advantages, like: torch.Tensor) -> torch.Tensor:
    """The mask of the tokens that enter the loss: turns the estimator leaves out are not in it."""
    return spread(turns, credit.mask, like)


def spread(turns: Turns, values: Sequence[NDArray[Any]], like: torch.Tensor) -> torch.Tensor:
    """A value a turn -> a value a token, 0 where no turn is."""
    found = np.zeros(turns.shape, np.float32)
    flat = found.ravel()
    spans = zip(turns.start.tolist(), turns.stop.tolist(), chain.from_iterable(values), strict=True)
    for start, stop, value in spans:
        flat[start:stop] = value
    return torch.from_numpy(found).to(like.device, like.dtype)
