"""Our estimators as verl calls them: tokens in, tokens out.

verl gives an estimator the token rewards, the response mask and each row's prompt id, nothing else. So a turn
is a run of ones in the mask and its reward is what lies on the run (on its last token, and KL penalties
along it where verl is told to put them there). A turn the judge could not score has no ones: its tokens are
masked out of the loss like the user's. It still must count as a turn, or the turns after it would be compared
with the wrong ones; `UNSCORED` on its last token says that it was there. Rows that verl adds to fill up a
batch have no ones at all and take part in nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
    """The turns in a batch of rows, in order: `rewards`, and `row`, in which they are; `of_token` is
    [rows, tokens], the turn a token trains or -1."""

    rewards: NDArray[np.float64]
    row: NDArray[np.intp]
    of_token: NDArray[np.intp]

    def ragged(self) -> list[NDArray[np.float64]]:
        """Per row its turns' rewards, NaN where unscored."""
        rows = len(self.of_token)
        return np.split(self.rewards, np.cumsum(np.bincount(self.row, minlength=rows))[:-1]) if rows else []


def find_turns(rewards: torch.Tensor, mask: torch.Tensor) -> Turns:
    """The turns of every row."""
    paid = rewards.detach().cpu().numpy().astype(np.float64)
    said = mask.detach().cpu().numpy().astype(bool)
    ends = said.copy()
    ends[:, :-1] &= ~said[:, 1:]
    unscored = ~said & (paid == UNSCORED)
    row, at = np.nonzero(ends | unscored)  # row by row, in order
    scored = said[row, at]
    # a token belongs to the first turn that ends at it or later
    closed = (ends | unscored).ravel().cumsum().reshape(said.shape) - (ends | unscored)
    of_token = np.where(said, closed, -1).astype(np.intp)
    sums = np.bincount(of_token[said], weights=paid[said], minlength=len(row)) if len(row) else np.zeros(0)
    return Turns(np.where(scored, sums, np.nan), row, of_token)


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
    return spread(turns, [m.astype(np.float64) for m in credit.mask], like.float()).to(like.dtype)


def spread(turns: Turns, values: list[NDArray[np.float64]], like: torch.Tensor) -> torch.Tensor:
    """A value a turn -> a value a token, 0 where no turn is."""
    flat = np.concatenate([*values, np.zeros(1)]) if values else np.zeros(1)
    return torch.from_numpy(flat[turns.of_token]).to(like.device, like.dtype)
