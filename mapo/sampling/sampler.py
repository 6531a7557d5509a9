"""The sampler: a local model in the roles of many concurrent dialogues, with continuous batching.

Each dialogue has a `LocalChat` (from `Sampler.policy`) with its token ids (`tokens.py`) and, from its first
reply to its end, a slot of the KV cache. If the chat template rewrites earlier turns, the common prefix of a
prompt and the previous one stays cached. The other roles (`Sampler.role`) have one session per dialogue. One
loop admits new calls, reads answers out, decodes a few tokens for all active slots and completes the calls
that have finished. While one dialogue waits for its judge, the others are decoded. The forward passes
(`decoder.py`) run in a thread.

If no slot is free, a call takes that of an idle role session, the least recently used first; a role's call
takes that of an idle dialogue if there is no such session. What has lost its slot is prefilled again later.
New sessions whose prompts begin like that of another one copy its cache (`prefixes.py`).

A reply's randomness depends only on the seed of its request. Before each round the event loop runs until no
new calls arrive, so if the other roles answer immediately, the batches are also determined by the seeds.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Any

from mapo.errors import InputError
from mapo.local_model.template import Template
from mapo.models.chat import Answer, Request, Usage
from mapo.sampling.calls import (
    ReadCall,
    RoleSession,
    SampleCall,
    SlotHolder,
    check_ids,
    common_prefix,
    fail_calls,
    refuse_during,
)
from mapo.sampling.decoder import Attention, Decoder, Stats
from mapo.sampling.draw import LogProbs, PendingRead, PendingReply, SampledTokens
from mapo.sampling.guides import Guides
from mapo.sampling.loop import SamplingLoop
from mapo.sampling.prefixes import PrefixCopy, computed_now, longest_prefix
from mapo.sampling.role_chat import RoleChat
from mapo.sampling.tokens import Context, generation_ends
from mapo.sampling.turns import turns_of_loop
from mapo.sandbox.cast import Job

_MANY_READS = 16  # from so many on, one half is computed while the other half is prepared


HeldAnswer = tuple[int, SampleCall | ReadCall, LogProbs]
"""The slot of a read, its call and the answers."""


class LocalChat:
    """The policy of one dialogue. `slot` is its slot in the KV cache, `cached` the number of ids in it."""

    role = "policy"

    def __init__(self, sampler: Sampler, job: str, longest: int | None = None) -> None:
        self._sampler, self._job = sampler, job
        self.slot: int | None = None
        longest = min(longest or sampler.context, sampler.context)
        self.context = Context(sampler.template, sampler.end_ids, longest, job)
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
        cached = min(common_prefix(prompt.ids, before[: self.cached]), len(prompt.ids) - 1)
        check_ids(prompt.ids, sampler.vocabulary, sampler.name)
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
    """Samples up to `slots` dialogues and role sessions concurrently, each of at most `context` ids; further
    ones wait for a slot in order of arrival. `chunk` is the number of decode steps after which finished calls
    are returned and new ones admitted.

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
        self.end_ids = template.end_ids | generation_ends(model)
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
        self.splits_reads = not self.decoder.cpu
        self.epoch = 0
        self.guides = Guides(template.tokenizer, len(self.decoder.table.ends), self.end_ids)
        self._free = list(range(slots))
        self._holders: dict[int, SlotHolder] = {}  # by slot, the least recently used first
        self._waiting: deque[SampleCall | ReadCall] = deque()
        self._active: dict[int, SampleCall | ReadCall] = {}
        self._loop = SamplingLoop(self._run, self._fail)

    @property
    def failed(self) -> Exception | None:
        """What went wrong while it was sampling."""
        return self._loop.failed

    @property
    def stats(self) -> Stats:
        return self.decoder.stats

    @property
    def decoding(self) -> str:
        """How steps are decoded, for logs and manifests; empty on a CPU."""
        return self.decoder.description

    def policy(self, job: Job, longest: int | None = None) -> LocalChat:
        """Return the policy of one dialogue, of at most `longest` ids. Call `end_dialogue` on it to free its
        slot."""
        return LocalChat(self, job.id, longest)

    def role(self, name: str) -> RoleChat:
        """Return the model in another role than the policy, for all dialogues."""
        return RoleChat(self, name)

    def make_room(self) -> None:
        """Do nothing: the KV cache stays where it is during an update."""

    def forget_all(self) -> None:
        """Clear the KV cache after the weights have changed. Dialogues may continue; their ids are kept."""
        refuse_during((*self._active.values(), *self._waiting))
        self.epoch += 1
        self.decoder.forget()

    async def __aenter__(self) -> Sampler:
        self._loop.start()
        self._wake, self._turns = asyncio.Event(), turns_of_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._loop.stop()
        if self.failed and error is None:
            raise self.failed

    # ---- calls

    async def ask(self, call: SampleCall | ReadCall) -> None:
        """Sample the reply of a call, or read its answers. Returns when it is complete."""
        self._loop.check()
        self._waiting.append(call)
        self._notify()
        await call.done

    def release(self, chat: SlotHolder) -> None:
        """Free the slot of a dialogue or session, after the current round if that is using it."""
        call = next((c for c in (*self._active.values(), *self._waiting) if c.chat is chat), None)
        if call is not None and not call.done.done():
            call.done.cancel()
        if chat.slot is not None and chat.slot not in self._active:
            self._take(chat.slot)
        self._notify()

    def _notify(self) -> None:
        if self._loop.running:
            self._turns.events += 1
            self._wake.set()

    # ---- the sampling loop

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        held: list[HeldAnswer] = []  # returned while the next reads start
        with ThreadPoolExecutor(1, thread_name_prefix="sampler") as worker:
            while True:
                async with self._turns.lock:
                    await self._turns.settle()
                    fresh, reads, copies = self._admit({slot for slot, _, _ in held})
                    busy = bool(self._active)
                    before = replace(self.stats)
                    if copies:
                        await loop.run_in_executor(worker, self.decoder.copy_prefixes, copies)
                    if reads:
                        starting = loop.run_in_executor(worker, self.decoder.begin_reads, reads)
                        self._deliver_answers(held)  # their callers prepare the next prompts meanwhile
                        started = await starting
                        answers = await loop.run_in_executor(worker, self.decoder.finish_reads, started)
                        self._count_reads(reads, before)
                        held = [(slot, self._active[slot], answer) for slot, answer in answers.items()]
                        if self._reads_only():
                            continue
                    self._deliver_answers(held)
                    held = []
                    if self._active:
                        going = sorted(self._active.keys() - {f.slot for f in fresh})
                        sampled = await loop.run_in_executor(worker, self.decoder.round, fresh, going)
                        self._count_replies(fresh, sampled, before)
                        self._deliver(sampled)
                if not busy:
                    self._wake.clear()
                    await self._wake.wait()

    def _count_reads(self, reads: Sequence[PendingRead], before: Stats) -> None:
        """Count the seconds since `before` for the roles whose answers were read."""
        ids = [(self._role_in(read.slot), len(read.ids)) for read in reads]
        self._turns.work.add("read", self.stats.read_seconds - before.read_seconds, ids)

    def _count_replies(
        self, fresh: Sequence[PendingReply], sampled: dict[int, SampledTokens], before: Stats
    ) -> None:
        """Count the seconds since `before` for the roles whose replies were begun or continued."""
        now, work = self.stats, self._turns.work
        prompts = [(self._role_in(reply.slot), len(reply.ids)) for reply in fresh]
        tokens = [(self._role_in(slot), len(new.ids)) for slot, new in sampled.items()]
        work.add("prefill", now.prefill_seconds - before.prefill_seconds, prompts)
        work.add("decode", now.decode_seconds - before.decode_seconds, tokens)

    def _role_in(self, slot: int) -> str:
        return self._active[slot].chat.role

    def _reads_only(self) -> bool:
        """Return whether calls wait for answers to be read, and none for a reply."""
        replies = any(isinstance(call, SampleCall) for call in (*self._active.values(), *self._waiting))
        return bool(self._waiting) and not replies

    def _admit(self, held: set[int]) -> tuple[list[PendingReply], list[PendingRead], list[PrefixCopy]]:
        """Give waiting calls a slot while there are any, and drop cancelled calls. Return the replies to
        start, the answers to read and the beginnings of prompts to copy before.

        On a GPU about half of the reads start at a time, if they are many: while one half is computed, the
        callers of the other half, whose slots are `held`, prepare their next prompts.
        """
        for cancelled in [slot for slot, call in self._active.items() if call.done.done()]:
            self._drop(cancelled)
        held = held & self._active.keys()  # a dropped slot may get another call below
        waiting = [call for call in self._waiting if not call.done.done()]
        still_waiting: deque[SampleCall | ReadCall] = deque()
        reads = len(held) + sum(isinstance(call, ReadCall) for call in waiting)
        room = -(-reads // 2) if self.splits_reads and reads >= _MANY_READS else reads
        begun: list[PendingReply | PendingRead] = []
        computing: list[list[int]] = []  # prompts of new sessions
        copies: list[PrefixCopy] = []
        # Calls that have a slot first, so that it is not given to another one.
        for call in sorted(waiting, key=lambda call: call.chat.slot is None):
            own = call.chat.slot
            shares = own is None and isinstance(call.chat, RoleSession) and bool(call.chat.name)
            known, source = self._prefix(call.ids, held) if shares else (0, None)
            later = isinstance(call, ReadCall) and not room
            later = later or (shares and computed_now(call.ids, computing, known))
            slot = own if own is not None or later else self._free_slot(call.chat)
            if later or slot is None or slot in self._active:
                still_waiting.append(call)
                continue
            room -= isinstance(call, ReadCall)
            if own is None:
                call.chat.slot, call.chat.cached = slot, known
                call.cached = min(known, len(call.ids) - 1)
                if source is not None and source != slot:
                    copies.append(PrefixCopy(source, slot, known))
                computing += [call.ids] if shares else []
            self._holders.pop(slot, None)
            self._holders[slot] = call.chat
            self._active[slot] = call
            begun.append(call.begin(slot))
        self._waiting = still_waiting
        replies = [pending for pending in begun if isinstance(pending, PendingReply)]
        return replies, [pending for pending in begun if isinstance(pending, PendingRead)], copies

    def _prefix(self, ids: list[int], held: set[int]) -> tuple[int, int | None]:
        """Return how many of `ids` a session has in the cache, and its slot."""
        prompts = []
        for slot, holder in self._holders.items():
            if isinstance(holder, RoleSession) and holder.epoch == self.epoch:
                call = self._active.get(slot)
                if call is None:
                    prompts.append((slot, holder.ids, holder.cached))
                elif slot in held or (isinstance(call, SampleCall) and call.prompt_fed):
                    prompts.append((slot, call.ids, len(call.ids)))
        return longest_prefix(ids, prompts)

    def _free_slot(self, chat: SlotHolder) -> int | None:
        """Return a slot for `chat`, taken from an idle one if necessary; None if it has to wait."""
        if not self._free:
            idle = [slot for slot in self._holders if slot not in self._active]
            roles = [slot for slot in idle if isinstance(self._holders[slot], RoleSession)]
            # A dialogue keeps its slot for its next turns, unless it waits for this very role to go on.
            candidates = roles or (idle if isinstance(chat, RoleSession) else [])
            if not candidates:
                return None
            self._take(candidates[0])
        return heapq.heappop(self._free)

    def _take(self, slot: int) -> None:
        """Free a slot."""
        holder = self._holders.pop(slot)
        holder.slot, holder.cached = None, 0
        heapq.heappush(self._free, slot)

    def _deliver(self, sampled: dict[int, SampledTokens]) -> None:
        for slot, tokens in sampled.items():
            call = self._active[slot]
            assert isinstance(call, SampleCall)
            call.token_ids += tokens.ids
            call.logprobs += tokens.logprobs
            if call.done.done():
                self._drop(slot)
            elif tokens.done:
                del self._active[slot]
                call.done.set_result(None)

    def _deliver_answers(self, answers: Sequence[HeldAnswer]) -> None:
        for slot, call, logprobs in answers:
            assert isinstance(call, ReadCall)
            if self._active.get(slot) is not call:  # cancelled and dropped while it was held
                continue
            if call.done.done():
                self._drop(slot)
                continue
            del self._active[slot]
            call.logprobs = logprobs
            call.done.set_result(None)

    def _drop(self, slot: int) -> None:
        """Remove a cancelled call and free its slot."""
        del self._active[slot]
        self._take(slot)

    def _fail(self, problem: Exception) -> None:
        fail_calls((*self._active.values(), *self._waiting), problem)
        for slot in list(self._active):
            self._drop(slot)
        self._waiting.clear()
