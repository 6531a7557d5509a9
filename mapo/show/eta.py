"""Estimated time left of a run that consists of phases of a few kinds (steps, validations, tests)."""

from __future__ import annotations

import time
from collections.abc import Mapping


class PhaseClock:
    """Estimates the time left from the durations of finished phases.

    `sizes` is the amount of work of one phase of each kind, in any unit. A kind of which no phase has
    finished is estimated from the others by size.
    """

    def __init__(self, sizes: Mapping[str, float]) -> None:
        self.sizes = sizes
        self.seconds: dict[str, list[float]] = {kind: [] for kind in sizes}
        self.current: tuple[str, float, float] | None = None
        """Kind, share that is to be done (less than 1 if a part was done earlier), and begin."""

    def begin(self, kind: str, share: float = 1.0) -> None:
        """End the current phase and start one of which `share` is to be done."""
        self.end()
        self.current = kind, share, time.monotonic()

    def end(self) -> None:
        if self.current is not None:
            kind, share, began = self.current
            if share > 0.1:  # less says too little
                self.seconds[kind].append((time.monotonic() - began) / share)
        self.current = None

    @property
    def elapsed(self) -> float:
        """Seconds since the current phase began."""
        current = self.current  # another thread may end the phase
        return time.monotonic() - current[2] if current else 0.0

    def duration(self, kind: str) -> float | None:
        """Return the expected seconds of a phase; None before any phase has finished."""
        if durations := self.seconds[kind]:
            return sum(durations) / len(durations)
        work = sum(len(durations) * self.sizes[name] for name, durations in self.seconds.items())
        if not work:
            return None
        return sum(map(sum, self.seconds.values())) / work * self.sizes[kind]

    def left(self, ahead: Mapping[str, int]) -> float | None:
        """Return the expected seconds of the rest of the current phase and of `ahead`, phases by kind."""
        total = 0.0
        current = self.current
        if current is not None:
            kind, share, began = current
            if (duration := self.duration(kind)) is None:
                return None
            total += max(0.0, duration * share - (time.monotonic() - began))
        for kind, count in ahead.items():
            duration = self.duration(kind) if count else 0.0
            if duration is None:
                return None
            total += count * duration
        return total
