"""The sampler: a local model as the policy of many concurrent dialogues, with continuous batching.

Each dialogue has a `LocalChat` (from `Sampler.policy`) with its token ids (`tokens.py`) and, from its first
reply to its end, a slot of the KV cache. If the chat template rewrites earlier turns, the common prefix of a
prompt and the previous one stays cached. One loop admits new calls, decodes a few tokens for all active slots
and completes the calls that have finished. While one dialogue waits for its judge, the others are decoded.
The forward passes (`decoder.py`) run in a thread.

A reply's randomness depends only on the seed of its request. Before each round the event loop runs until no
new calls arrive, so if the other roles answer immediately, the batches are also determined by the seeds.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from mapo.errors import InputError, MapoError, TrainError
from mapo.local_model.template import Template
from mapo.models.chat import Answer, Request, Usage
from mapo.sampling.decoder import Attention, Decoder, Stats
from mapo.sampling.draw import PendingReply, SampledTokens, noise_of
from mapo.sampling.tokens import Context
from mapo.sandbox.cast import Job

_IDLE_PASSES = 6  # passes of the event loop without a new call, after which no more are expected


@dataclass(slots=True)
class SampleCall:
    """A call for a reply: the ids of the complete context, and how many of them may be in the cache."""

    chat: LocalChat
    ids: list[int]
    cached: int
    request: Request
    done: asyncio.Future[None]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def begin(self, slot: int) -> PendingReply:
        """Return the reply to start in `slot`."""
        self.cached = min(self.cached, self.chat.cached)
        r = self.request
        noise = noise_of(r.seed, r.max_tokens)
        return PendingReply(slot, self.cached, self.ids[self.cached :], noise, r.temperature, r.top_p)


class LocalChat:
    """The policy of one dialogue. `slot` is its slot in the KV cache, `cached` the number of ids in it."""

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
        """Sample a reply. The messages must continue the previous ones for the cache to be used."""
        sampler = self._sampler
        if self._closed:
            raise InputError("this dialogue has ended", where=self._job)
        if request.tools or request.schema:
            raise InputError("a locally sampled model supports neither tools nor a schema", where=self._job)
        before = self.context.ids
        prompt = self.context.prompt(request.messages, request.max_tokens)
        if self._epoch != sampler.epoch:
            self._epoch, self.cached = sampler.epoch, 0
        cached = min(_common_prefix(prompt.ids, before[: self.cached]), len(prompt.ids) - 1)
        if prompt.ids and max(prompt.ids) >= sampler.vocabulary:
            raise InputError(
                f"the tokenizer gives id {max(prompt.ids)}, but the model has {sampler.vocabulary} tokens",
                where=sampler.name,
                fix="Use the tokenizer that belongs to the model",
            )
        call = SampleCall(self, prompt.ids, cached, request, asyncio.get_running_loop().create_future())
        try:
            await sampler.ask(call)
        except BaseException:
            self.end_dialogue()
            raise
        reply = self.context.reply(prompt, call.token_ids, call.logprobs)
        self.cached = len(self.context.ids) - 1  # the last id was sampled but not yet fed to the model
        return Answer(reply, usage=Usage(len(call.ids), call.cached, len(call.token_ids)))

    def end_dialogue(self) -> None:
        """Free the slot. No further replies are possible."""
        if not self._closed:
            self._closed = True
            self._sampler.release(self)


class Sampler:
    """Samples up to `slots` dialogues concurrently, each of at most `context` ids; further ones wait for a
    slot in order of arrival. `chunk` is the number of decode steps after which finished calls are returned
    and new ones admitted.

    Use it inside `async with`. While it runs, other code may use the model only when no call is in progress,
    as between rollouts. Call `forget_all` after the weights have changed.
    """

    def __init__(
        self,
        model: Any,
        template: Template,
        *,
        name: str,
        slots: int,
        context: int,
        chunk: int = 8,
        attention: Attention = "auto",
        graphs: bool = True,
        fuse: bool = True,
        stream: bool = True,
    ) -> None:
        if slots < 1 or context < 2 or chunk < 1:
            raise InputError(
                f"{slots} slots, a context of {context} ids and chunks of {chunk} steps are too small",
                fix="Use at least 1 slot, 2 ids and 1 step",
            )
        self.name, self.template, self.context = name, template, context
        self.end_ids = template.end_ids | _generation_ends(model)
        self.decoder = Decoder(
            model,
            slots=slots,
            context=context,
            end_ids=self.end_ids,
            chunk=chunk,
            attention=attention,
            graphs=graphs,
            fuse=fuse,
            stream=stream,
        )
        self.vocabulary = int(model.get_input_embeddings().weight.shape[0])
        self.failed: Exception | None = None
        self.epoch = 0
        self._free = list(range(slots))
        self._waiting: deque[SampleCall] = deque()
        self._active: dict[int, SampleCall] = {}
        self._events = 0
        self._loop_task: asyncio.Task[None] | None = None

    @property
    def stats(self) -> Stats:
        return self.decoder.stats

    @property
    def decoding(self) -> str:
        """How steps are decoded, for logs and manifests; empty on a CPU."""
        return self.decoder.description

    def policy(self, job: Job) -> LocalChat:
        """Return the policy of one dialogue. Call `end_dialogue` on it to free its slot."""
        return LocalChat(self, job.id)

    def forget_all(self) -> None:
        """Clear the KV cache after the weights have changed. Dialogues may continue; their ids are kept."""
        if any(not call.done.done() for call in (*self._active.values(), *self._waiting)):
            raise TrainError("the weights were changed while replies were being sampled")
        self.epoch += 1
        self.decoder.forget()

    async def __aenter__(self) -> Sampler:
        if self._loop_task is not None:
            raise InputError("this sampler is already running")
        self.failed = None
        self._wake = asyncio.Event()
        self._loop_task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop_task is not None
        self._loop_task.cancel()
        await asyncio.gather(self._loop_task, return_exceptions=True)
        self._loop_task = None
        self._fail(TrainError("the sampler was closed"))
        if self.failed and error is None:
            raise self.failed

    # ---- calls

    async def ask(self, call: SampleCall) -> None:
        """Sample the reply of a call. Returns when it is complete."""
        if self.failed:
            raise _as_mapo_error(self.failed)
        if self._loop_task is None:
            raise InputError("the sampler is not running", fix="Use it inside `async with sampler:`")
        self._waiting.append(call)
        self._notify()
        await call.done

    def release(self, chat: LocalChat) -> None:
        """Free the slot of a dialogue, after the current round if that is using it."""
        call = next((c for c in (*self._active.values(), *self._waiting) if c.chat is chat), None)
        if call is not None and not call.done.done():
            call.done.cancel()
        if chat.slot is not None and chat.slot not in self._active:
            heapq.heappush(self._free, chat.slot)
            chat.slot = None
        self._notify()

    def _notify(self) -> None:
        self._events += 1
        if self._loop_task is not None:
            self._wake.set()

    # ---- the sampling loop

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="sampler") as worker:
            try:
                while True:
                    await self._wait_until_idle()
                    fresh = self._admit()
                    if not self._active:
                        self._wake.clear()
                        await self._wake.wait()
                        continue
                    going = sorted(self._active.keys() - {f.slot for f in fresh})
                    sampled = await loop.run_in_executor(worker, self.decoder.round, fresh, going)
                    self._deliver(sampled)
            except Exception as problem:  # noqa: BLE001 (whatever failed, no call may wait forever)
                self.failed = problem
                self._fail(_as_mapo_error(problem))

    async def _wait_until_idle(self) -> None:
        """Let the event loop run until no new calls arrive."""
        idle = 0
        while idle < _IDLE_PASSES:
            before = self._events
            await asyncio.sleep(0)
            idle = idle + 1 if self._events == before else 0

    def _admit(self) -> list[PendingReply]:
        """Give waiting calls a slot while there are free ones, and drop cancelled calls. Return the replies
        to start."""
        for slot, call in list(self._active.items()):
            if call.done.done():
                self._drop(slot)
        fresh, later = [], deque[SampleCall]()
        for call in self._waiting:
            if call.done.done():
                continue
            if call.chat.slot is None and self._free:
                call.chat.slot, call.chat.cached = heapq.heappop(self._free), 0
            if call.chat.slot is None:
                later.append(call)
                continue
            self._active[call.chat.slot] = call
            fresh.append(call.begin(call.chat.slot))
        self._waiting = later
        return fresh

    def _deliver(self, sampled: dict[int, SampledTokens]) -> None:
        for slot, tokens in sampled.items():
            call = self._active[slot]
            call.token_ids += tokens.ids
            call.logprobs += tokens.logprobs
            if call.done.done():
                self._drop(slot)
            elif tokens.done:
                del self._active[slot]
                call.done.set_result(None)

    def _drop(self, slot: int) -> None:
        """Remove a cancelled call and free its slot."""
        call = self._active.pop(slot)
        if call.chat.slot == slot:
            call.chat.slot = None
        heapq.heappush(self._free, slot)

    def _fail(self, problem: Exception) -> None:
        for call in (*self._active.values(), *self._waiting):
            if not call.done.done():
                call.done.set_exception(problem)
        for slot in list(self._active):
            self._drop(slot)
        self._waiting.clear()


def _generation_ends(model: Any) -> frozenset[int]:
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ends = ends if isinstance(ends, list | tuple) else [ends]
    return frozenset(end for end in ends if type(end) is int and end >= 0)


def _as_mapo_error(problem: Exception) -> MapoError:
    """Return the error for calls after the loop has failed; the original is raised as the sampler closes."""
    return problem if isinstance(problem, MapoError) else TrainError(f"sampling failed: {problem!r}")


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
