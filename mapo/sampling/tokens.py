"""What a model has before its eyes in one dialogue, as token ids: prompts and sampled replies, in order.

Where the template only appends, nothing is ever tokenised a second time: each turn adds what stands between
two replies. Where it rewrites earlier turns, each prompt is rendered anew. Whoever samples, here or on
another engine, keeps a dialogue's ids in one of these. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from mapo.errors import ContextError, InputError
from mapo.local_model.template import Template
from mapo.types import Message, Reply

USUAL = 8192
"""Tokens of the longest dialogue, where nobody said."""


def longest_dialogue(asked: int | None, reads: int | None, where: str, key: str = "rollout.context") -> int:
    """Tokens a dialogue may grow to; `reads` is how many the model can read, as far as it says."""
    if asked is None:
        return min(USUAL, reads or USUAL)
    if reads and asked > reads:
        told = f"{key} is {asked}, but the model reads {reads} tokens"
        raise InputError(told, where=where, fix="Lower it, or leave it out")
    return asked


@dataclass(frozen=True, slots=True)
class Prompt:
    """`ids` is the whole context of a reply, `new` what of it was not there before; `whole`: it replaces
    what was there."""

    ids: list[int]
    new: list[int]
    whole: bool
    messages: tuple[Message, ...]


@dataclass(slots=True)
class Context:
    """One dialogue's ids; `longest` is how many the model can read. `end_ids` end a reply."""

    template: Template
    end_ids: frozenset[int]
    longest: int
    where: str = ""
    ids: list[int] = field(default_factory=list)
    _messages: tuple[Message, ...] = ()
    _finish: Literal["stop", "length"] = "stop"

    def prompt(self, messages: tuple[Message, ...], max_tokens: int) -> Prompt:
        """What comes before the reply to `messages`; ContextError where a reply would not fit any more."""
        new, whole = self._new(messages)
        ids = new if whole or not self.ids else [*self.ids, *new]
        if len(ids) + max_tokens > self.longest:
            raise ContextError(
                f"{len(ids)} ids and a reply of up to {max_tokens} do not fit into {self.longest}",
                where=self.where,
                fix="Set a larger context, fewer turns or shorter replies",
            )
        return Prompt(ids, new, whole, messages)

    def reply(self, prompt: Prompt, said: Sequence[int], logprobs: Sequence[float]) -> Reply:
        """Take in what was sampled after `prompt`. Without an end mark it was cut off."""
        stopped = bool(said) and said[-1] in self.end_ids
        self._messages, self._finish = prompt.messages, "stop" if stopped else "length"
        self.ids = [*prompt.ids, *said]
        spoken = list(said[:-1] if stopped else said)
        return Reply(
            text=self.template.tokenizer.decode(spoken, skip_special_tokens=True),
            finish=self._finish,
            prompt_ids=tuple(prompt.new),
            token_ids=tuple(said),
            logprobs=tuple(logprobs),
            whole_prompt=prompt.whole,
        )

    def _new(self, messages: tuple[Message, ...]) -> tuple[list[int], bool]:
        """The ids to add, or all of them and True where they replace what was there."""
        template, known = self.template, len(self._messages)
        added = [m.role for m in messages[known:]]
        follows = messages[:known] == self._messages and added == ["assistant", "user"]
        if not self.ids:
            return template.full_prompt(messages), not template.append_only
        if template.append_only and follows:
            return template.next_turn(self._finish, messages[-1].content), False
        return template.full_prompt(messages), True
