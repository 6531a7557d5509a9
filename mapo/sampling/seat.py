"""A seat at the sampler: the policy of one dialogue, which keeps the dialogue's token ids (`context.py`).

Where the template rewrites earlier turns, what a prompt has in common with the last one stays cached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mapo.errors import InputError
from mapo.models.chat import Answer, Request, Usage
from mapo.sampling.draw import Fresh, noise_of
from mapo.sampling.tokens import Context

if TYPE_CHECKING:
    from mapo.sampling.sampler import Sampler


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
        self.context = Context(sampler.template, sampler.end_ids, sampler.context, job)
        self.cached = 0
        self._epoch = sampler.epoch
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
        before = self.context.ids
        prompt = self.context.prompt(request.messages, request.max_tokens)
        if self._epoch != sampler.epoch:
            self._epoch, self.cached = sampler.epoch, 0
        kept = min(_common(prompt.ids, before[: self.cached]), len(prompt.ids) - 1)
        call = Call(self, prompt.ids, kept, request, asyncio.get_running_loop().create_future())
        try:
            await sampler.ask(call)
        except BaseException:
            self.end_dialogue()
            raise
        reply = self.context.reply(prompt, call.said, call.logprobs)
        self.cached = len(self.context.ids) - 1  # the last id was drawn, but has not been through the model
        return Answer(reply, usage=Usage(len(call.ids), call.kept, len(call.said)))

    def end_dialogue(self) -> None:
        if not self._closed:
            self._closed = True
            self._sampler.release(self)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids the two have in common at the start."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
