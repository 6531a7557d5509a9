"""The sampler: one model on this machine plays the policy of many dialogues at once.

Each dialogue has a seat (`Sampler.policy`), which keeps its token ids (`tokens.py`), and from its first reply
to its end a slot of the cache; where the chat template rewrites earlier turns, what a prompt has in common
with the previous one stays cached. One loop, the pump, takes in the replies that are asked for, decodes a few
tokens for all active slots, and answers the calls that have finished; the others go on. While one dialogue
waits for its judge, the rest of the batch is decoded. The forward passes (`decoder.py`) run in a thread.

A reply's chance depends on its request's seed alone. Before each round the event loop is left to run until
nothing new is asked for, so with roles that answer at once the batches, too, are a function of the seeds.
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

_QUIET = 6  # passes of the event loop without a new request, after which none is on its way


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

    def begin(self, slot: int) -> PendingReply:
        self.kept = min(self.kept, self.seat.cached)
        r = self.request
        noise = noise_of(r.seed, r.max_tokens)
        return PendingReply(slot, self.kept, self.ids[self.kept :], noise, r.temperature, r.top_p)


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


class Sampler:
    """`slots` dialogues talk at once, each of at most `context` ids; more wait for a slot, first come first
    served. `chunk` is the number of decode steps between two looks at who has finished or come in.

    Use it inside `async with`. While it runs, nobody else may run the model, except between rollouts, when no
    reply is asked for; once the weights have changed, call `forget_all`.
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
            raise InputError(f"{slots} slots of {context} ids, {chunk} steps at a time: too few")
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
        self.failed: Exception | None = None
        self.epoch = 0
        self._free = list(range(slots))
        self._waiting: deque[Call] = deque()
        self._talking: dict[int, Call] = {}
        self._events = 0
        self._pump: asyncio.Task[None] | None = None

    @property
    def stats(self) -> Stats:
        return self.decoder.stats

    @property
    def decoding(self) -> str:
        """With what steps are decoded, in words; empty on a CPU."""
        return self.decoder.description

    def policy(self, job: Job) -> Seat:
        """The policy of one dialogue. Close it when the dialogue is over: its slot goes to the next."""
        return Seat(self, job.id)

    def forget_all(self) -> None:
        """The weights have changed: every cache is dropped. Dialogues may go on; their ids are kept."""
        if any(not call.done.done() for call in (*self._talking.values(), *self._waiting)):
            raise TrainError("the weights were changed while replies were being sampled")
        self.epoch += 1
        self.decoder.forget()

    async def __aenter__(self) -> Sampler:
        if self._pump is not None:
            raise InputError("this sampler is running already")
        self.failed = None
        self._wake = asyncio.Event()
        self._pump = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._pump is not None
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)
        self._pump = None
        self._fail(TrainError("the sampler was closed"))
        if self.failed and error is None:
            raise self.failed

    # ---- the seats' side

    async def ask(self, call: Call) -> None:
        """Returns when the call's reply is complete."""
        if self.failed:
            raise _told(self.failed)
        if self._pump is None:
            raise InputError("the sampler is not running", fix="Use it inside `async with sampler:`")
        self._waiting.append(call)
        self._stir()
        await call.done

    def release(self, seat: Seat) -> None:
        """The seat's slot is free, once the round that may be using it is over."""
        call = next((c for c in (*self._talking.values(), *self._waiting) if c.seat is seat), None)
        if call is not None and not call.done.done():
            call.done.cancel()
        if seat.slot is not None and seat.slot not in self._talking:
            heapq.heappush(self._free, seat.slot)
            seat.slot = None
        self._stir()

    def _stir(self) -> None:
        self._events += 1
        if self._pump is not None:
            self._wake.set()

    # ---- the pump

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="sampler") as worker:
            try:
                while True:
                    await self._settle()
                    fresh = self._admit()
                    if not self._talking:
                        self._wake.clear()
                        await self._wake.wait()
                        continue
                    going = sorted(self._talking.keys() - {f.slot for f in fresh})
                    drawn = await loop.run_in_executor(worker, self.decoder.round, fresh, going)
                    self._deliver(drawn)
            except Exception as problem:  # noqa: BLE001 (whatever it is, nobody may wait for ever)
                self.failed = problem
                self._fail(_told(problem))

    async def _settle(self) -> None:
        quiet = 0
        while quiet < _QUIET:
            before = self._events
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._events == before else 0

    def _admit(self) -> list[PendingReply]:
        """Waiting calls that have a slot or get one; calls given up meanwhile leave."""
        for slot, call in list(self._talking.items()):
            if call.done.done():
                self._drop(slot)
        fresh, later = [], deque[Call]()
        for call in self._waiting:
            if call.done.done():
                continue
            if call.seat.slot is None and self._free:
                call.seat.slot, call.seat.cached = heapq.heappop(self._free), 0
            if call.seat.slot is None:
                later.append(call)
                continue
            self._talking[call.seat.slot] = call
            fresh.append(call.begin(call.seat.slot))
        self._waiting = later
        return fresh

    def _deliver(self, drawn: dict[int, SampledTokens]) -> None:
        for slot, said in drawn.items():
            call = self._talking[slot]
            call.said += said.ids
            call.logprobs += said.logprobs
            if call.done.done():
                self._drop(slot)
            elif said.done:
                del self._talking[slot]
                call.done.set_result(None)

    def _drop(self, slot: int) -> None:
        """A call that was given up: its seat is closed, its slot is free."""
        call = self._talking.pop(slot)
        if call.seat.slot == slot:
            call.seat.slot = None
        heapq.heappush(self._free, slot)

    def _fail(self, problem: Exception) -> None:
        for call in (*self._talking.values(), *self._waiting):
            if not call.done.done():
                call.done.set_exception(problem)
        for slot in list(self._talking):
            self._drop(slot)
        self._waiting.clear()


def _generation_ends(model: Any) -> frozenset[int]:
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return frozenset([ends] if isinstance(ends, int) else ends or ())


def _told(problem: Exception) -> MapoError:
    """What a seat is told when the pump has failed; the problem itself is raised when the sampler closes."""
    return problem if isinstance(problem, MapoError) else TrainError(f"sampling failed: {problem!r}")


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids the two have in common at the start."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
