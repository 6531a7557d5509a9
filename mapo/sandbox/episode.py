"""A dialogue played step by step, for environments of other trainers: the caller samples the policy.

`play` asks the policy for replies; an `Episode` turns that around and waits for them. Everything else is
`play`: roles, levels, rewards, endings and the record are the same.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from types import TracebackType

from mapo.errors import ContextError, InputError
from mapo.models.chat import Answer, Request
from mapo.sandbox.cast import Casting, Job
from mapo.sandbox.rollout import Rules, play
from mapo.types import Dialogue, Message, Reply, Turn


@dataclass(frozen=True, slots=True)
class Observation:
    """What the policy sees next, and what its last reply was worth."""

    messages: tuple[Message, ...]
    """The conversation to reply to; empty when the dialogue has ended."""
    turn: Turn | None = None
    """The turn of the last reply; None at the start, and if the dialogue broke before it was judged."""
    done: bool = False

    @property
    def reward(self) -> float | None:
        """The reward of the last reply; None at the start and for an unscored turn (missing data, not 0)."""
        return self.turn.reward if self.turn else None


class Episode:
    """One dialogue. Use it in one event loop, with `async with` or `close`, so that a dialogue that is given
    up leaves nothing behind. A step that was cancelled cannot be repeated: its reply has been given.

        async with Episode(job, casting, rules) as episode:
            seen = await episode.begin()
            while not seen.done:
                seen = await episode.step(reply_to(seen.messages))
        episode.dialogue  # the record
    """

    def __init__(self, job: Job, casting: Casting, rules: Rules, model: str = "policy") -> None:
        self.job, self._casting, self._rules = job, casting, rules
        self._policy = _Caller(model)
        self._turns: list[Turn] = []
        self._seen = 0
        self._asked = False
        self._task: asyncio.Task[Dialogue] | None = None
        self.dialogue: Dialogue | None = None
        """The record, after the end. `error` says why a dialogue broke."""

    async def begin(self) -> Observation:
        """Start the dialogue and return the person's first message."""
        if self._task:
            raise InputError("this episode has begun already", where=self.job.id, fix="Make a new Episode")
        cast = self._casting(self.job)
        self._task = asyncio.create_task(
            play(self.job, self._policy, cast, self._rules, self._turns.append), name=self.job.id
        )
        return await self._observe(self._task)

    async def step(self, reply: str | Reply) -> Observation:
        """Give the policy's reply and return what follows."""
        return await self._answer(Reply(reply) if isinstance(reply, str) else reply)

    async def cut(self) -> Observation:
        """End the dialogue because the policy cannot reply any more: its context or its budget is used up.
        The ending is `length`; without any turn, the dialogue is broken."""
        return await self._answer(ContextError("the policy cannot reply any more", where=self.job.id))

    async def _answer(self, reply: Reply | ContextError) -> Observation:
        if not self._task or self._task.done():
            state = "ended" if self._task else "not begun"
            raise InputError(
                f"this episode has {state}", where=self.job.id, fix="Call begin() of a new Episode"
            )
        if not self._asked:  # the reply would answer a message that the policy has not seen
            raise InputError(
                "the last call has not ended, or was cancelled",
                where=self.job.id,
                fix="Wait for each call, and make a new Episode after a cancelled one",
            )
        self._asked = False
        self._policy.replies.put_nowait(reply)
        return await self._observe(self._task)

    async def _observe(self, task: asyncio.Task[Dialogue]) -> Observation:
        """Wait until the policy is asked for a reply, or the dialogue ends."""
        asked = asyncio.ensure_future(self._policy.requests.get())
        try:
            await asyncio.wait((asked, task), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not asked.done():
                asked.cancel()
        if task.done():
            self.dialogue = task.result()
            self._turns = [*self.dialogue.turns]
            return Observation((), self._new_turn(), done=True)
        self._asked = True
        return Observation(asked.result().messages, self._new_turn())

    def _new_turn(self) -> Turn | None:
        if len(self._turns) == self._seen:
            return None
        self._seen = len(self._turns)
        return self._turns[-1]

    async def close(self) -> None:
        """Give up a dialogue that has not ended; its roles free what they hold. Nothing after the end."""
        if self._task and not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def __aenter__(self) -> Episode:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Caller:
    """A `Chat` whose replies come from the caller of `Episode.step`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.requests: asyncio.Queue[Request] = asyncio.Queue()
        self.replies: asyncio.Queue[Reply | ContextError] = asyncio.Queue()

    async def reply(self, request: Request) -> Answer:
        self.requests.put_nowait(request)
        reply = await self.replies.get()
        if isinstance(reply, ContextError):
            raise reply
        return Answer(reply)
