"""A sampler of the policy that computes replies with vLLM (`rollout.sampler = "vllm"`).

For models and GPUs that mapo's own decoder is not made for. Records are the same: the ids as sampled, with
the log-probabilities of the distribution they were sampled from, and a seed per reply.

vLLM works in the thread of the event loop: a step takes milliseconds, and between two steps other tasks run
until no new calls arrive. With roles that answer immediately, batches therefore depend on the seeds alone.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from types import TracebackType

from mapo.errors import InputError, TrainError
from mapo.local_model.policy import LocalPolicy
from mapo.local_model.template import Template
from mapo.models.chat import Answer, Request, Usage
from mapo.sampling.calls import check_ids, fail_calls, refuse_during
from mapo.sampling.decoder import Stats
from mapo.sampling.loop import SamplingLoop
from mapo.sampling.tokens import Context, generation_ends
from mapo.sampling.turns import turns_of_loop
from mapo.sampling.vllm.engine import SampledReply, VllmEngine
from mapo.sandbox.cast import Job


@dataclass(slots=True, eq=False)
class _Call:
    """A reply that is waited for."""

    key: str
    ids: list[int]
    request: Request
    done: asyncio.Future[SampledReply] = field(repr=False)


class VllmChat:
    """The policy of one dialogue."""

    def __init__(self, sampler: VllmSampler, job: str, longest: int | None = None) -> None:
        self._sampler, self._job = sampler, job
        longest = min(longest or sampler.context, sampler.context)
        self.context = Context(sampler.template, sampler.end_ids, longest, job)
        self._closed = False

    @property
    def name(self) -> str:
        return self._sampler.name

    async def reply(self, request: Request) -> Answer:
        """Sample a reply."""
        if self._closed:
            raise InputError("this dialogue has ended", where=self._job)
        if request.tools or request.schema:
            raise InputError("a policy in training supports neither tools nor a schema", where=self._job)
        prompt = self.context.prompt(request.messages, request.max_tokens)
        check_ids(prompt.ids, self._sampler.vocabulary, self._sampler.name)
        sampled = await self._sampler.ask(prompt.ids, request)
        reply = self.context.reply(prompt, sampled.ids, sampled.logprobs)
        return Answer(reply, usage=Usage(len(prompt.ids), sampled.cached, len(sampled.ids)))

    def end_dialogue(self) -> None:
        """End the dialogue. vLLM frees its blocks by itself."""
        self._closed = True


class VllmSampler:
    """Samples the dialogues of a policy in training with vLLM, each of at most `context` ids.

    Use it inside `async with`; it cannot be entered a second time. vLLM has its own copy of the weights:
    `forget_all` copies those of the policy, and `make_room` gives the GPU's memory to an update.
    """

    def __init__(self, policy: LocalPolicy, template: Template, engine: VllmEngine, *, context: int) -> None:
        self.name, self.template, self.context = policy.name, template, context
        self.end_ids = template.end_ids | generation_ends(policy.model)
        self.vocabulary = int(policy.model.get_input_embeddings().weight.shape[0])
        self._model, self._engine = policy.model, engine
        self._stats = Stats()
        self._waiting: list[_Call] = []
        self._active: dict[str, _Call] = {}
        self._calls = 0  # ever made
        self._closed = False
        self._loop = SamplingLoop(self._run, self._fail)

    @property
    def stats(self) -> Stats:
        return self._stats

    @property
    def decoding(self) -> str:
        return f"vLLM {self._engine.version}"

    def policy(self, job: Job, longest: int | None = None) -> VllmChat:
        """Return the policy of one dialogue, of at most `longest` ids."""
        return VllmChat(self, job.id, longest)

    def make_room(self) -> None:
        """Give up the GPU memory of vLLM until `forget_all`."""
        refuse_during((*self._active.values(), *self._waiting))
        self._engine.sleep()

    def forget_all(self) -> None:
        """Copy the policy's weights after they have changed."""
        refuse_during((*self._active.values(), *self._waiting))
        self._engine.load(self._model)

    async def __aenter__(self) -> VllmSampler:
        if self._closed:
            raise InputError("this sampler was closed")
        self._loop.start()
        self._wake, self._turns = asyncio.Event(), turns_of_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._loop.stop()
        self._closed = True
        self._engine.close()
        if self._loop.failed and error is None:
            raise self._loop.failed

    async def ask(self, ids: list[int], request: Request) -> SampledReply:
        """Return the reply to the prompt `ids`."""
        self._loop.check()
        if self._engine.asleep:
            raise TrainError("a reply was asked for during an update", fix="Call forget_all after the update")
        call = _Call(str(self._calls), ids, request, asyncio.get_running_loop().create_future())
        self._calls += 1
        self._turns.events += 1
        self._waiting.append(call)
        self._wake.set()
        return await call.done

    async def _run(self) -> None:
        while True:
            await self._turns.settle()
            self._drop_cancelled()
            self._admit()
            if self._engine.busy:
                self._step()
            else:
                self._wake.clear()
                await self._wake.wait()

    def _drop_cancelled(self) -> None:
        self._waiting = [call for call in self._waiting if not call.done.done()]
        for call in [call for call in self._active.values() if call.done.done()]:
            del self._active[call.key]
            self._engine.abort(call.key)

    def _admit(self) -> None:
        for call in self._waiting:
            self._engine.add(call.key, call.ids, call.request, self.end_ids)
            self._active[call.key] = call
        self._waiting = []

    def _step(self) -> None:
        began = time.perf_counter()
        replies = self._engine.step()
        took = time.perf_counter() - began
        self._stats.decode_seconds += took
        self._stats.steps += 1
        # A pass of vLLM both reads prompts and decodes; about one id is sampled per reply.
        self._turns.work.add("decode", took, [("policy", len(self._active))])
        self._stats.rows += len(self._active)
        for reply in replies:
            call = self._active.pop(reply.key)
            self._stats.sampled += len(reply.ids)
            self._stats.prefilled += len(call.ids) - reply.cached
            self._stats.reused += reply.cached
            if not call.done.done():
                call.done.set_result(reply)

    def _fail(self, problem: Exception) -> None:
        fail_calls((*self._active.values(), *self._waiting), problem)
        self._active.clear()
        self._waiting.clear()
