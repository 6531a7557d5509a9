"""The roles around the policy: a user who talks, a director who steers, a judge who fills in forms.

A cast is made for one dialogue and used once; roles may keep what they need between turns. They see
the turns so far, oldest first; in `judge` the last turn is the one to be judged, its levels still None.
Model-driven roles: `user.py`, `director.py`, `judge.py`. Roles of plain code: `mapo.domains.*.scripted`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mapo.measure.potential import Trajectory
from mapo.measure.rubric import Rubric
from mapo.models.chat import Chat
from mapo.scenarios.scenario import Scenario
from mapo.types import Direction, Levels, StartLevels, Turn


class User(Protocol):
    async def speak(self, turns: Sequence[Turn], direction: Direction) -> str:
        """The next thing this person says, as the director allows."""


class Director(Protocol):
    async def direct(self, turns: Sequence[Turn], path: Trajectory) -> Direction:
        """What happens next; act "end" ends the dialogue."""


class Judge(Protocol):
    async def start(self) -> StartLevels:
        """The start form, filled in before the first turn."""

    async def judge(self, turns: Sequence[Turn]) -> Levels:
        """The turn form for the last reply. Raises AnswerError or EndpointError where it cannot."""


@runtime_checkable
class Several(Protocol):
    """A Judge made of several, who can tell what each of them filled in for the last reply; None for one that
    failed."""

    @property
    def forms(self) -> Mapping[str, Levels | None]: ...


@dataclass(frozen=True, slots=True)
class Cast:
    user: User
    director: Director
    judge: Judge
    names: dict[str, str]
    """Who plays each role, for the record."""


@dataclass(frozen=True, slots=True)
class Job:
    """One dialogue to be played. Jobs of one `group` are siblings; `attempt` counts those that broke."""

    scenario: Scenario
    id: str
    group: str = ""
    seed: int = 0
    step: int | None = None
    start_levels: Mapping[str, int] | None = None
    attempt: int = 0

    @property
    def session(self) -> str:
        """What tells this dialogue from every other: siblings, other steps, and attempts whose recorded
        answers would only break it again."""
        step = "" if self.step is None else f"{self.step}/"
        again = f"/{self.attempt}" if self.attempt else ""
        return f"{step}{self.id}/{self.seed}{again}"


def world_seed(seed: int, step: int) -> int:
    """The seed of the world that all dialogues of a training step share; every step has its own."""
    return seed * 1_000_003 + step


def held_out_seed(seed: int, repeat: int) -> int:
    """The seed of the world of an evaluation's n-th repeat; the same at every step, so that steps compare."""
    return seed * 1000 + repeat


def panel_of(judge: Judge, rubric: Rubric) -> dict[str, tuple[int, ...]] | None:
    """Each member's levels for the record, none for one that failed; None for a judge who is one."""
    if not isinstance(judge, Several):
        return None
    return {name: flat(form, rubric) if form else () for name, form in judge.forms.items()}


def flat(form: Levels, rubric: Rubric) -> tuple[int, ...]:
    """A turn form's levels: progress and regression of every axis, in the rubric's order."""
    return tuple(mark.level for key in rubric.keys for mark in (form[key].progress, form[key].regression))


Casting = Callable[[Job], Cast]
"""The cast of one dialogue."""

Policy = Callable[[Job], Chat]
"""Who replies in one dialogue. For a model behind an endpoint: `lambda job: endpoint`."""
