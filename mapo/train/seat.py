"""A seat at the sampler: the policy of one dialogue, which keeps the dialogue's token ids.

The ids are those of the prompts and those that were sampled, in order. Where the template only appends,
nothing is ever tokenised a second time: each turn adds what stands between two replies. Where it rewrites
earlier turns, each prompt is rendered anew and what it has in common with the last one stays cached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from mapo.errors import ContextError, InputError
from mapo.sandbox.chat import Answer, Request, Usage
from mapo.train.draw import Fresh, noise_of
from mapo.types import Message, Reply

if TYPE_CHECKING:
    from mapo.train.sampler import Sampler


@dataclass(slots=True)
class Call:
    """A reply that is asked for: the whole context before it, and how many of its ids the cache may hold."""

    seat: Seat
    ids: list[int]
    kept: int
    request: Request
    done: asyncio.Future[None]
    said: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def begin(self, slot: int) -> Fresh:
        self.kept = min(self.kept, self.seat.cached)
        r = self.request
        noise = noise_of(r.seed, r.max_tokens)
        return Fresh(slot, self.kept, self.ids[self.kept :], noise, r.temperature, r.top_p)


class Seat:
    """The policy of one dialogue, a `Chat`; `slot` is its place in the cache, `cached` how much is there."""

    def __init__(self, sampler: Sampler, job: str) -> None:
        self._sampler, self._job = sampler, job
        self.slot: int | None = None
        self.ids: list[int] = []
        self.cached = 0
        self._epoch = sampler.epoch
        self._messages: tuple[Message, ...] = ()
        self._finish: Literal["stop", "length"] = "stop"
        self._closed = False

    @property
    def name(self) -> str:
        return self._sampler.name

    async def reply(self, request: Request) -> Answer:
        sampler = self._sampler
        if self._closed:
            raise InputError("this dialogue's seat is closed", where=self._job)
        if request.tools or request.schema:
            raise InputError("a locally sampled model takes neither tools nor a schema", where=self._job)
        prompt, whole = self._prompt(request.messages)
        ids = prompt if whole or not self.ids else [*self.ids, *prompt]
        if len(ids) + request.max_tokens > sampler.context:
            raise ContextError(
                f"{len(ids)} ids and a reply of up to {request.max_tokens} do not fit into {sampler.context}",
                where=self._job,
                fix="Set a larger context, fewer turns or shorter replies",
            )
        if self._epoch != sampler.epoch:
            self._epoch, self.cached = sampler.epoch, 0
        kept = min(_common(ids, self.ids[: self.cached]), len(ids) - 1)
        call = Call(self, ids, kept, request, asyncio.get_running_loop().create_future())
        try:
            await sampler.ask(call)
        except BaseException:
            self.end_dialogue()
            raise
        return self._answer(call, prompt, whole)

    def end_dialogue(self) -> None:
        if not self._closed:
            self._closed = True
            self._sampler.release(self)

    def _prompt(self, messages: tuple[Message, ...]) -> tuple[list[int], bool]:
        """The ids to add, or all of them and True where they replace what was there."""
        template, known = self._sampler.template, len(self._messages)
        follows = messages[:known] == self._messages and [m.role for m in messages[known:]] == [
            "assistant",
            "user",
        ]
        if not self.ids:
            return template.opening(messages), not template.append_only
        if template.append_only and follows:
            return template.following(self._finish, messages[-1].content), False
        return template.opening(messages), True

    def _answer(self, call: Call, prompt: list[int], whole: bool) -> Answer:
        stopped = call.said[-1] in self._sampler.end_ids
        self._messages, self._finish = call.request.messages, "stop" if stopped else "length"
        self.ids = [*call.ids, *call.said]
        self.cached = len(self.ids) - 1  # the last id was drawn, but has not been through the model
        spoken = call.said[:-1] if stopped else call.said
        text = self._sampler.template.tokenizer.decode(spoken, skip_special_tokens=True)
        reply = Reply(
            text=text,
            finish=self._finish,
            prompt_ids=tuple(prompt),
            token_ids=tuple(call.said),
            logprobs=tuple(call.logprobs),
            whole_prompt=whole,
        )
        return Answer(reply, usage=Usage(len(call.ids), call.kept, len(call.said)))


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids the two have in common at the start."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
