"""Turns of the samplers in one event loop: only one of them computes at a time.

Samplers of several models share a device, so computing at the same time would gain little, and a CUDA graph
must not be recorded while another thread allocates memory. Taking turns in order of arrival also makes the
batches of all samplers depend on the seeds alone, not on how long a pass takes.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary


class Turns:
    """The lock that samplers take in turn. `events` counts the calls to any of them."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.events = 0


_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def turns_of_loop() -> Turns:
    """Return the turns that all samplers of the running event loop share."""
    return _by_loop.setdefault(asyncio.get_running_loop(), Turns())
