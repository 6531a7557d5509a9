"""Conversion of a dialogue to the single row verl trains on, with turn rewards on the tokens.

verl splits a row into prompt and response. The prompt is everything before the first reply. The response is
everything after it: replies with mask 1, user messages with mask 0. Token ids are those that were sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mapo.engines.verl.estimator import UNSCORED
from mapo.errors import InputError
from mapo.types import Dialogue


@dataclass(slots=True)
class ResponseRow:
    """One dialogue as prompt and response. All lists except `prompt` have one entry per response token."""

    prompt: list[int]
    response: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)

    def add(self, ids: tuple[int, ...], mask: int, logprobs: tuple[float, ...] | None = None) -> None:
        self.response += ids
        self.mask += [mask] * len(ids)
        self.logprobs += logprobs or [0.0] * len(ids)
        self.rewards += [0.0] * len(ids)


def response_row(dialogue: Dialogue) -> ResponseRow | None:
    """Return the row of a dialogue, or None if it is broken or has no turns.

    Unscored turns stay in the row, even if they come last or there are no others: the estimator must see that
    the sibling had these turns.
    """
    if not dialogue.usable or not dialogue.turns:
        return None
    row = ResponseRow(list(dialogue.turns[0].reply.prompt_ids or ()))
    for index, turn in enumerate(dialogue.turns):
        reply = turn.reply
        if reply.prompt_ids is None or not reply.token_ids or reply.logprobs is None:
            raise InputError("the reply has no token ids", where=f"dialogue {dialogue.id}, turn {index + 1}")
        if index and reply.whole_prompt:
            raise InputError("the chat template rewrites earlier turns", where=f"dialogue {dialogue.id}")
        if index:
            row.add(reply.prompt_ids, 0)
        row.add(reply.token_ids, int(turn.reward is not None), reply.logprobs)
        row.rewards[-1] = UNSCORED if turn.reward is None else turn.reward
    return row
