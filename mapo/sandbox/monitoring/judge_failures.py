"""Stopping a run whose judge fails too often."""

from __future__ import annotations

from dataclasses import dataclass

from mapo.errors import JudgeError
from mapo.types import Turn


@dataclass(slots=True)
class JudgeMonitor:
    """Stops a run in which the judge fails too often.

    Raises JudgeError once more than `limit` of at least 40 turns are unscored.
    """

    limit: float
    turns: int = 0
    unscored: int = 0

    def update(self, turn: Turn) -> None:
        """Count one finished turn."""
        self.turns += 1
        self.unscored += turn.levels is None
        if turn.levels is None and self.turns >= 40 and self.unscored > self.limit * self.turns:
            raise JudgeError(
                f"the judge failed on {self.unscored} of {self.turns} turns, last error: {turn.unscored}",
                fix="Check the judge with `mapo doctor`. Finished dialogues are kept",
            )
