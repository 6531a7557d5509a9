"""How fast we may talk to one endpoint: calls at once, requests a minute, tokens a minute.

A `Limiter` belongs to an endpoint, not to a role: give the same one to everybody who talks to that
endpoint. Callers are let in first come, first served. In no window of 60 seconds do more calls start
than allowed, nor calls of more tokens; a call's tokens are an estimate until its answer is in.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from mapo.errors import InputError

WINDOW = 60.0
LOOK_AGAIN = 0.5
"""Longest sleep of the first in line: answers that cost less than estimated may let it in early."""


@dataclass(frozen=True, slots=True)
class Limits:
    """None means no limit."""

    concurrency: int = 64
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        for name in ("concurrency", "requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            if value is not None and not value >= 1:
                raise InputError(f"{name} is {value}", where="limits", fix="Give a whole number of 1 or more")


@dataclass(slots=True, eq=False)
class Turn:
    """A call that was let in; `limiter.settle(turn, tokens)` once it is known what it cost."""

    at: float
    tokens: int
    expired: bool = False


class Limiter:
    def __init__(
        self,
        limits: Limits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.limits = limits or Limits()
        self._clock, self._sleep = clock, sleep
        self._recent: deque[Turn] = deque()
        self._tokens = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._door, self._slots = asyncio.Lock(), asyncio.Semaphore(self.limits.concurrency)

    @asynccontextmanager
    async def turn(self, tokens: int) -> AsyncIterator[Turn]:
        """Wait in line, then hold one of the concurrent calls until the block ends."""
        self._bind()
        slots = self._slots
        async with self._door:  # asyncio's locks are first come, first served
            await slots.acquire()
            try:
                while (wait := self._wait(tokens)) > 0:
                    await self._sleep(min(wait, LOOK_AGAIN))
                turn = Turn(self._clock(), tokens)
                self._recent.append(turn)
                self._tokens += tokens
            except BaseException:  # cancelled in line: the slot must not be lost
                slots.release()
                raise
        try:
            yield turn
        finally:
            slots.release()

    def settle(self, turn: Turn, tokens: int) -> None:
        """Replace the estimate by what the endpoint counted."""
        if not turn.expired:
            self._tokens += tokens - turn.tokens
        turn.tokens = tokens

    def _bind(self) -> None:
        """Locks live in one event loop; a limiter outlives it, as when every training step runs its own."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._door, self._slots = asyncio.Lock(), asyncio.Semaphore(self.limits.concurrency)

    def _wait(self, tokens: int) -> float:
        """Seconds until a call of that many tokens may start, as far as is known now."""
        now = self._clock()
        while self._recent and self._recent[0].at <= now - WINDOW:
            old = self._recent.popleft()
            old.expired = True
            self._tokens -= old.tokens
        requests, budget = self.limits.requests_per_minute, self.limits.tokens_per_minute
        # A call larger than the whole budget would wait for ever; it may go when it is alone.
        full = requests is not None and len(self._recent) >= requests
        broke = budget is not None and bool(self._recent) and self._tokens + tokens > budget
        return self._recent[0].at + WINDOW - now if full or broke else 0.0
