"""A dialogue -> the one row verl trains on: the first prompt, then all after it, turn rewards in place.

verl splits a row into prompt and response. The prompt is what stood before the first reply; the response is
all that followed, replies with mask 1 and the user's turns with mask 0. Ids are those that were sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mapo.engines.verl.estimator import UNSCORED
from mapo.errors import InputError
from mapo.types import Dialogue


@dataclass(slots=True)
class Row:
    """All lists but `prompt` have one entry a response token."""

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


def row_of(dialogue: Dialogue) -> Row | None:
    """The dialogue's row; None if it broke. Unscored turns stay in it, last ones too, and so does a dialogue
    with no other: for the estimator its siblings do have a companion there."""
    if not dialogue.usable or not dialogue.turns:
        return None
    row = Row(list(dialogue.turns[0].reply.prompt_ids or ()))
    for at, turn in enumerate(dialogue.turns):
        reply = turn.reply
        if reply.prompt_ids is None or not reply.token_ids or reply.logprobs is None:
            raise InputError("the reply has no token ids", where=f"dialogue {dialogue.id}, turn {at + 1}")
        if at and reply.whole_prompt:
            raise InputError("this chat template rewrites earlier turns", where=f"dialogue {dialogue.id}")
        if at:
            row.add(reply.prompt_ids, 0)
        row.add(reply.token_ids, int(turn.reward is not None), reply.logprobs)
        row.rewards[-1] = UNSCORED if turn.reward is None else turn.reward
    return row
