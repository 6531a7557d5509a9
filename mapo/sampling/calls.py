"""Calls that wait for the sampler: a reply to sample, or answers to read out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mapo.errors import InputError, MapoError, TrainError
from mapo.models.chat import Request
from mapo.sampling.draw import PendingRead, PendingReply, noise_of
from mapo.sampling.guides import Guide


class Call(Protocol):
    """A call to a sampler, done when its future is."""

    @property
    def done(self) -> asyncio.Future[Any]: ...


class SlotHolder(Protocol):
    """A sequence of ids that may have a slot of the KV cache; `cached` is the number of ids in it."""

    role: str
    slot: int | None
    cached: int


@dataclass(slots=True, eq=False)
class RoleSession:
    """The ids of one role in one dialogue. Its slot is taken away while it is idle if another needs one."""

    name: str
    role: str = ""
    ids: list[int] = field(default_factory=list)
    slot: int | None = None
    cached: int = 0
    epoch: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the call in progress: calls of one session follow one another."""


@dataclass(slots=True, eq=False)
class SampleCall:
    """A call for a reply: the ids of the complete context, and how many of them may be in the cache."""

    chat: SlotHolder
    ids: list[int]
    cached: int
    request: Request
    done: asyncio.Future[None]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    guide: Guide | None = None

    @property
    def prompt_fed(self) -> bool:
        """Whether the prompt is known to be in the cache."""
        return bool(self.token_ids) and (self.guide is None or self.guide.sampled > 0)

    def begin(self, slot: int) -> PendingReply:
        """Return the reply to start in `slot`."""
        self.cached = min(self.cached, self.chat.cached)
        r = self.request
        noise = noise_of(r.seed, r.max_tokens)
        ids = self.ids[self.cached :]
        return PendingReply(slot, self.cached, ids, noise, r.temperature, r.top_p, self.guide)


@dataclass(slots=True, eq=False)
class ReadCall:
    """A call for answers: the ids of prompt and form, where to read and the ids of the options."""

    chat: SlotHolder
    ids: list[int]
    cached: int
    reads: Sequence[int]
    options: Sequence[Sequence[int]]
    done: asyncio.Future[None]
    logprobs: tuple[tuple[float, ...], ...] = ()

    def begin(self, slot: int) -> PendingRead:
        """Return the read to make in `slot`."""
        self.cached = start = min(self.cached, self.chat.cached, self.reads[0])
        return PendingRead(slot, start, self.ids[start:], [at - start for at in self.reads], self.options)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # comparing slices is much faster than comparing ids in a loop
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def check_ids(ids: Sequence[int], vocabulary: int, where: str) -> None:
    """Raise InputError if the model has no embedding for an id."""
    if ids and max(ids) >= vocabulary:
        raise InputError(
            f"the tokenizer gives id {max(ids)}, but the model has {vocabulary} tokens",
            where=where,
            fix="Use the tokenizer that belongs to the model",
        )


def fail_calls(calls: Iterable[Call], problem: Exception) -> None:
    """Give an error to all calls that are not done."""
    for call in calls:
        if not call.done.done():
            call.done.set_exception(problem)


def refuse_during(calls: Iterable[Call]) -> None:
    """Raise TrainError if a call is not done: the weights that it is sampled from must not change."""
    if any(not call.done.done() for call in calls):
        raise TrainError("the weights were changed while replies were being sampled")


def sampling_error(problem: Exception) -> MapoError:
    """Return the error for calls after sampling has failed; the original is raised as the sampler closes."""
    return problem if isinstance(problem, MapoError) else TrainError(f"sampling failed: {problem!r}")
