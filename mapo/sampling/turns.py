"""Turns of the samplers in one event loop: only one of them computes at a time.

Samplers of several models share a device, so computing at the same time would gain little, and a CUDA graph
must not be recorded while another thread allocates memory. Taking turns in order of arrival also makes the
batches of all samplers depend on the seeds alone, not on how long a pass takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from weakref import WeakKeyDictionary

_IDLE_PASSES = 6  # passes of the event loop without a new call, after which no more are expected


class Work:
    """What the models computed, by role and kind ("prefill", "decode", "read"): seconds, and ids fed or
    sampled.

    A pass serves calls of several roles. Its time is divided among them by their ids.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, dict[str, float]] = {}
        self.ids: dict[str, dict[str, int]] = {}

    def add(self, kind: str, seconds: float, calls: Iterable[tuple[str, int]]) -> None:
        """Divide the time of a pass among its calls, given as (role, ids)."""
        calls = list(calls)
        total = sum(ids for _, ids in calls)
        for role, ids in calls if total else ():
            spent, counted = self.seconds.setdefault(role, {}), self.ids.setdefault(role, {})
            spent[kind] = spent.get(kind, 0.0) + seconds * ids / total
            counted[kind] = counted.get(kind, 0) + ids

    def clear(self) -> None:
        self.seconds.clear()
        self.ids.clear()


class Turns:
    """The lock that samplers take in turn. `events` counts the calls to any of them; `work` is what they have
    computed."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.events = 0
        self.work = Work()

    async def settle(self) -> None:
        """Let the event loop run until no new calls arrive."""
        idle = 0
        while idle < _IDLE_PASSES:
            before = self.events
            await asyncio.sleep(0)
            idle = idle + 1 if self.events == before else 0


_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def turns_of_loop() -> Turns:
    """Return the turns that all samplers of the running event loop share."""
    return _by_loop.setdefault(asyncio.get_running_loop(), Turns())
