"""Stopping a run whose judge fails too often."""

from __future__ import annotations

from dataclasses import dataclass

from mapo.errors import JudgeError
from mapo.types import Turn


@dataclass(slots=True)
class JudgeMonitor:
    """Stops a run in which the judge fails too often.

    Raises JudgeError once more than `limit` of at least 40 turns are unscored. Turns that an earlier call of
    the same run played count, but cannot stop it alone: the judge may have been repaired since.
    """

    limit: float
    turns: int = 0
    unscored: int = 0
    earlier_turns: int = 0
    earlier_unscored: int = 0

    def update(self, turn: Turn) -> None:
        """Count one finished turn."""
        self.turns += 1
        self.unscored += turn.levels is None
        turns, unscored = self.turns + self.earlier_turns, self.unscored + self.earlier_unscored
        fails_now = turn.levels is None and self.unscored > self.limit * self.turns
        if fails_now and turns >= 40 and unscored > self.limit * turns:
            raise JudgeError(
                f"the judge failed on {unscored} of {turns} turns, last error: {turn.unscored}",
                fix="Check the judge with `mapo doctor`. Finished dialogues are kept",
            )
