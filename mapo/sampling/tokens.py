"""The context of one dialogue as token ids: prompts and sampled replies in order.

With an append-only chat template nothing is tokenised twice: each turn adds the ids between two replies. With
a template that rewrites earlier turns, every prompt is rendered from the start. Used by all engines that
sample token ids. Does not need torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mapo.errors import ContextError, InputError
from mapo.local_model.template import Template
from mapo.types import Message, Reply

DEFAULT_CONTEXT = 8192
"""Tokens of the longest dialogue if the config does not set it."""


def longest_dialogue(
    setting: int | None, model_context: int | None, where: str, key: str = "rollout.context"
) -> int:
    """Return the longest dialogue in tokens: the setting `key`, or a default within the model's context,
    which is None if unknown. Raises InputError if the setting exceeds the model's context."""
    if setting is None:
        return min(DEFAULT_CONTEXT, model_context or DEFAULT_CONTEXT)
    if model_context and setting > model_context:
        raise InputError(
            f"{key} is {setting}, but the model's context is {model_context} tokens",
            where=where,
            fix="Lower it, or remove it",
        )
    return setting


def generation_ends(model: Any) -> frozenset[int]:
    """Return the ids that end a reply by the generation config of a model."""
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = ends if isinstance(ends, list | tuple) else [ends]
    return frozenset(end for end in ends if type(end) is int and end >= 0)


@dataclass(frozen=True, slots=True)
class Prompt:
    """The context of a reply. `ids` are all its ids, `new` those that are new; if `whole`, they replace the
    earlier ones."""

    ids: list[int]
    new: list[int]
    whole: bool
    messages: tuple[Message, ...]


@dataclass(slots=True)
class Context:
    """The ids of one dialogue, at most `longest`. `end_ids` end a reply."""

    template: Template
    end_ids: frozenset[int]
    longest: int
    where: str = ""
    ids: list[int] = field(default_factory=list)
    _messages: tuple[Message, ...] = ()
    _finish: Literal["stop", "length"] = "stop"

    def prompt(self, messages: tuple[Message, ...], max_tokens: int) -> Prompt:
        """Return the prompt for the reply to `messages`. Raises ContextError if a reply would not fit."""
        new, whole = self._new(messages)
        ids = new if whole or not self.ids else [*self.ids, *new]
        if len(ids) + max_tokens > self.longest:
            raise ContextError(
                f"{len(ids)} tokens and a reply of up to {max_tokens} do not fit into a context of "
                f"{self.longest}",
                where=self.where,
                fix="Set a larger context, fewer turns or shorter replies",
            )
        return Prompt(ids, new, whole, messages)

    def reply(self, prompt: Prompt, token_ids: Sequence[int], logprobs: Sequence[float]) -> Reply:
        """Add the tokens sampled after `prompt` and return them as a reply. Without an end token it was cut
        off."""
        stopped = bool(token_ids) and token_ids[-1] in self.end_ids
        self._messages, self._finish = prompt.messages, "stop" if stopped else "length"
        self.ids = [*prompt.ids, *token_ids]
        text_ids = list(token_ids[:-1] if stopped else token_ids)
        return Reply(
            text=self.template.tokenizer.decode(text_ids, skip_special_tokens=True),
            finish=self._finish,
            prompt_ids=tuple(prompt.new),
            token_ids=tuple(token_ids),
            logprobs=tuple(logprobs),
            whole_prompt=prompt.whole,
        )

    def _new(self, messages: tuple[Message, ...]) -> tuple[list[int], bool]:
        """Return the ids to add and False, or all ids and True if they replace the earlier ones."""
        template, known = self.template, len(self._messages)
        added = [m.role for m in messages[known:]]
        follows = messages[:known] == self._messages and added == ["assistant", "user"]
        if not self.ids:
            return template.full_prompt(messages), not template.append_only
        if template.append_only and follows:
            return template.next_turn(self._finish, messages[-1].content), False
        return template.full_prompt(messages), True
