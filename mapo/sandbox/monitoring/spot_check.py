"""Spot checks: a second judge that is asked about some of the turns of a training.

A policy that games its judge moves away from every other judge, so falling agreement is what gaming looks
like. The second judge is asked while the dialogue goes on; its answers change nothing in the dialogue and are
only waited for at its end.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mapo.measure.rubric import Rubric
from mapo.sandbox.cast import Cast, Casting, Job, Judge, flat_levels
from mapo.sandbox.panel import NamedJudge
from mapo.types import Levels, Turn

PATIENCE = 120.0
"""Seconds after the end of a dialogue in which checks may still be answered."""
MAX_ERROR = 300
"""Characters kept of an error."""


def is_checked(session: str, turn: int, share: float) -> bool:
    """Return whether a turn of a dialogue is among the share that is checked; always the same for a turn."""
    digest = hashlib.sha256(f"{session}/{turn}/check".encode()).digest()
    return int.from_bytes(digest[:8]) < share * 2**64


class SpotCheck:
    """The second judge of one dialogue."""

    def __init__(self, judge: Judge, session: str, share: float, patience: float = PATIENCE) -> None:
        self.judge, self.session, self.share, self.patience = judge, session, share, patience
        self._tasks: dict[int, asyncio.Task[Levels | str]] = {}

    @property
    def pending(self) -> bool:
        """Whether any turn was asked about."""
        return bool(self._tasks)

    def begin(self, turns: Sequence[Turn]) -> None:
        """Ask about the last of `turns` if it is one of those to check, without waiting."""
        if is_checked(self.session, len(turns), self.share):
            self._tasks[len(turns) - 1] = asyncio.ensure_future(self._ask(list(turns)))

    async def _ask(self, turns: Sequence[Turn]) -> Levels | str:
        try:
            return await self.judge.judge(turns)
        except Exception as error:  # noqa: BLE001 (a check must not break the dialogue)
            return str(error)[:MAX_ERROR]

    async def answers(self) -> Mapping[int, Levels | str]:
        """Wait for the outstanding answers and return the levels or the error of each turn, by its index."""
        try:
            if self._tasks:
                await asyncio.wait(self._tasks.values(), timeout=self.patience)
            late = f"no answer within {self.patience:g} s of the end of the dialogue"
            return {turn: task.result() if task.done() else late for turn, task in self._tasks.items()}
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Stop asking."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks = {}


def with_answers(turns: Sequence[Turn], answers: Mapping[int, Levels | str], rubric: Rubric) -> list[Turn]:
    """Return the turns with the levels of the second judge, or the reason why there are none."""
    return [_with_answer(turn, answers.get(index), rubric) for index, turn in enumerate(turns)]


def _with_answer(turn: Turn, answer: Levels | str | None, rubric: Rubric) -> Turn:
    if answer is None:
        return turn
    if isinstance(answer, str):
        return replace(turn, unchecked=answer)
    return replace(turn, check=flat_levels(answer, rubric))


def with_check(casting: Casting, judge: NamedJudge, share: float, patience: float = PATIENCE) -> Casting:
    """Return `casting` with a second judge that is asked about a share of the turns."""

    def cast(job: Job) -> Cast:
        base = casting(job)
        check = SpotCheck(judge.create(job), job.session, share, patience)
        return replace(base, check=check, names={**base.names, "check": judge.name})

    return cast
