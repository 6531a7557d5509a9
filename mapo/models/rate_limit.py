"""Rate limits of one endpoint: concurrent calls, requests per minute, tokens per minute.

A `Limiter` belongs to an endpoint, not to a role: all callers of that endpoint share it and are admitted in
order of arrival. In any window of 60 seconds, the calls started and their tokens stay within the limits. A
call's tokens are an estimate until its answer arrives.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from mapo.errors import InputError

WINDOW = 60.0
POLL_S = 0.5
"""Longest sleep of the next caller: answers with fewer tokens than estimated may admit it early."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one endpoint; None means no limit."""

    concurrency: int = 64
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        for name in ("concurrency", "requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            if value is not None and not value >= 1:
                raise InputError(f"{name} is {value}", where="limits", fix="Give a whole number of 1 or more")


@dataclass(slots=True, eq=False)
class Reservation:
    """An admitted call; pass it to `Limiter.settle` once its actual tokens are known."""

    at: float
    tokens: int
    expired: bool = False


class Limiter:
    """Admits calls within `limits`, in order of arrival. `clock` and `sleep` are for tests."""

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.limits = limits or Limits()
        self._clock, self._sleep = clock, sleep
        self._recent: deque[Reservation] = deque()
        self._tokens = 0
        self._held = -math.inf
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue, self._slots = asyncio.Lock(), asyncio.Semaphore(self.limits.concurrency)

    @asynccontextmanager
    async def reserve(self, tokens: int, *, retry: bool = False) -> AsyncIterator[Reservation]:
        """Wait until a call of about `tokens` tokens is allowed; it counts as concurrent until the block
        ends. A retry has waited on its own, so `hold` does not delay it."""
        self._bind()
        while not retry and (wait := self._held - self._clock()) > 0:
            await self._sleep(min(wait, POLL_S))
        slots = self._slots
        async with self._queue:  # asyncio's locks are granted in order of arrival
            await slots.acquire()
            try:
                while (wait := self._wait(tokens)) > 0:
                    await self._sleep(min(wait, POLL_S))
                reservation = Reservation(self._clock(), tokens)
                self._recent.append(reservation)
                self._tokens += tokens
            except BaseException:  # cancelled while waiting: return the slot
                slots.release()
                raise
        try:
            yield reservation
        finally:
            slots.release()

    def hold(self, seconds: float) -> None:
        """Start no new call for some seconds, because the endpoint refused one for its rate."""
        self._held = max(self._held, self._clock() + min(seconds, WINDOW))

    def settle(self, reservation: Reservation, tokens: int) -> None:
        """Replace the estimated tokens of a call by those the endpoint counted."""
        if not reservation.expired:
            self._tokens += tokens - reservation.tokens
        reservation.tokens = tokens

    def _bind(self) -> None:
        """Recreate the locks for a new event loop, which every training step has."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._queue, self._slots = asyncio.Lock(), asyncio.Semaphore(self.limits.concurrency)

    def _wait(self, tokens: int) -> float:
        """Return the seconds until a call of `tokens` tokens may start, according to current estimates."""
        now = self._clock()
        while self._recent and self._recent[0].at <= now - WINDOW:
            old = self._recent.popleft()
            old.expired = True
            self._tokens -= old.tokens
        requests, budget = self.limits.requests_per_minute, self.limits.tokens_per_minute
        # A call larger than the token budget would wait forever, so it may start when no other call counts.
        no_requests = requests is not None and len(self._recent) >= requests
        no_tokens = budget is not None and bool(self._recent) and self._tokens + tokens > budget
        return self._recent[0].at + WINDOW - now if no_requests or no_tokens else 0.0
