"""Model calls of the current session by role, for progress displays. Nothing of it is stored."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass


@dataclass(slots=True)
class RoleActivity:
    """The calls of one role: finished ones and attempts in flight. `longest` is the age of the oldest."""

    calls: int = 0
    retries: int = 0
    timeouts: int = 0
    seconds: float = 0.0
    waiting: int = 0
    longest: float = 0.0


class Activity:
    """Counts of calls by role. Endpoints add to it; any thread may read it."""

    def __init__(self) -> None:
        self._roles: dict[str, RoleActivity] = {}
        self._started: dict[object, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def add(
        self, role: str, *, calls: int = 0, retries: int = 0, timeouts: int = 0, seconds: float = 0.0
    ) -> None:
        with self._lock:
            counts = self._roles.setdefault(role, RoleActivity())
            counts.calls += calls
            counts.retries += retries
            counts.timeouts += timeouts
            counts.seconds += seconds

    @contextmanager
    def waiting(self, role: str) -> Iterator[None]:
        """Count an attempt as in flight for the length of the block."""
        key = object()
        with self._lock:
            self._roles.setdefault(role, RoleActivity())
            self._started[key] = role, time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                del self._started[key]

    def snapshot(self) -> dict[str, dict[str, float]]:
        """Return the counts by role as plain data."""
        now = time.monotonic()
        with self._lock:
            counts = {role: asdict(role_counts) for role, role_counts in self._roles.items()}
            started = list(self._started.values())
        for role, since in started:
            counts[role]["waiting"] += 1
            counts[role]["longest"] = max(counts[role]["longest"], now - since)
        return counts
