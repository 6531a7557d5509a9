"""Attempts that concurrent callers share, so that none is paid for twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from mapo.errors import MapoError

T = TypeVar("T")


class SharedAttempts(Generic[T]):
    """Attempts in progress, by key."""

    def __init__(self) -> None:
        self._in_flight: dict[Hashable, asyncio.Future[T]] = {}

    async def get(self, key: Hashable, attempt: Callable[[], Awaitable[T]]) -> tuple[T, bool]:
        """Return the result of an attempt, and whether it is another caller's.

        While an attempt is in progress, further callers with its key wait for it, and fail as it does with a
        MapoError. If it is cancelled or fails in another way, one of them makes its own.
        """
        while first := self._in_flight.get(key):
            await asyncio.wait([first])
            if not first.cancelled():
                return first.result(), True
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._in_flight[key] = future
        try:
            result = await attempt()
            future.set_result(result)
        except MapoError as error:
            future.set_exception(error)
            future.exception()  # mark as retrieved, in case nobody waits
            raise
        finally:
            future.cancel()  # no effect if it is done
            del self._in_flight[key]
        return result, False
