"""The roles around the policy (user, director, judge) and the jobs they are created for.

A cast is created for one dialogue and used once, so a role may keep state between turns. Roles receive the
turns so far, oldest first; in `Judge.judge` the last turn is the one to judge, and its levels are still None.
Roles played by models: `user.py`, `director.py`, `judge.py`. Scripted roles: `mapo.domains.*.scripted`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from mapo.measure.calibration import Probabilities
from mapo.measure.potential import Trajectory
from mapo.measure.rubric import Rubric
from mapo.models.chat import Chat, Sampling
from mapo.scenarios.scenario import Scenario
from mapo.types import Direction, Goal, Levels, StartLevels, Turn

MAX_TOKENS = 4096
"""Default token limit of the user's and the director's answers. Their text needs a tenth of it; a reasoning
model thinks first."""
RECORDED_MAX_TOKENS = 1024
"""The limit in the cache keys of these answers: the one that recorded runs were played with."""


class User(Protocol):
    """The simulated person."""

    async def speak(self, turns: Sequence[Turn], direction: Direction) -> str | None:
        """Return the next user message, as the director's decision allows; None if the user leaves."""


@runtime_checkable
class OpeningUser(Protocol):
    """A User that writes the first message of a dialogue; other users begin with the scenario's opening."""

    async def open(self) -> str: ...


class Director(Protocol):
    """The role that steers the user."""

    async def direct(self, turns: Sequence[Turn], trajectory: Trajectory) -> Direction:
        """Decide what happens next; the act "end" ends the dialogue."""


class Judge(Protocol):
    """The role that fills in the rubric's forms."""

    async def start(self) -> StartLevels:
        """Fill in the start form, before the first turn."""

    async def judge(self, turns: Sequence[Turn]) -> Levels:
        """Fill in the turn form for the last reply. Raises AnswerError or EndpointError on failure."""


@runtime_checkable
class JudgePanel(Protocol):
    """A Judge that combines several judges and exposes their individual turn forms."""

    @property
    def forms(self) -> Mapping[str, Levels | None]:
        """Each judge's form for the last reply, None for a judge that failed."""
        ...


class Ranker(Protocol):
    """The role that compares the replies of siblings. `name` identifies it in records."""

    @property
    def name(self) -> str: ...

    async def scores(self, histories: Sequence[Sequence[Turn]], name: str) -> list[float]:
        """Return a score from 0 to 1 for the last reply of each history; `name` identifies the comparison.
        Raises AnswerError or EndpointError on failure.
        """


@runtime_checkable
class ReadingJudge(Protocol):
    """A Judge whose levels are read out of a model, or a panel with such judges."""

    @property
    def probabilities(self) -> Probabilities | None:
        """The probabilities of the levels of the last reply, in the order of `turn_places`, if known."""
        ...


class Check(Protocol):
    """A second judge that is asked beside the dialogue (`spot_check.py`)."""

    @property
    def pending(self) -> bool:
        """Whether any turn was asked about."""
        ...

    def begin(self, turns: Sequence[Turn]) -> None:
        """Ask about the last turn, if it is one of those to check, without waiting."""

    async def answers(self) -> Mapping[int, Levels | str]:
        """Wait for the levels, or the error, of each checked turn, by its index."""

    def cancel(self) -> None:
        """Stop asking."""


@dataclass(frozen=True, slots=True)
class Cast:
    """The user, director and judge of one dialogue."""

    user: User
    director: Director
    judge: Judge
    names: dict[str, str]
    """The model or script behind each role, for the record."""
    prompts: str = ""
    """The prompts of the roles, for the record (`prompts_id`); empty for scripted roles."""
    ranker: Ranker | None = None
    """Compares siblings once they are finished, if the reward is `rank`."""
    close: Callable[[], None] | None = None
    """Frees what the roles hold for this dialogue, such as KV caches; called at its end."""
    check: Check | None = None
    """The second judge, which is asked about some of the turns."""
    start: Callable[[], Awaitable[StartLevels]] | None = None
    """Returns the start form that all dialogues share (`mapo.players.start_forms`); with None, each dialogue
    asks its judge."""


@dataclass(frozen=True, slots=True)
class Job:
    """One dialogue to be played. Jobs with the same `group` are siblings.

    `attempt` is the number of earlier attempts at this dialogue that broke. `goal` replaces the thresholds
    that the profile derives from the start.
    """

    scenario: Scenario
    id: str
    group: str = ""
    seed: int = 0
    step: int | None = None
    start_levels: Mapping[str, int] | None = None
    attempt: int = 0
    goal: Goal | None = None

    @property
    def session(self) -> str:
        """A key that distinguishes this dialogue from its siblings, other steps and earlier attempts.

        The attempt is part of it because cached model answers would break the dialogue again.
        """
        step = "" if self.step is None else f"{self.step}/"
        attempt = f"/{self.attempt}" if self.attempt else ""
        return f"{step}{self.id}/{self.seed}{attempt}"


def answer_seed(session: str, turn: int) -> int:
    """Return the sampling seed of one answer; it differs between answers, roles and dialogues."""
    return int.from_bytes(hashlib.sha256(f"{session}/{turn}".encode()).digest()[:8], "big")


def world_seed(seed: int, step: int) -> int:
    """Return the seed of the scripted roles in one training step; all its dialogues share it."""
    return seed * 1_000_003 + step


def held_out_seed(seed: int, repeat: int) -> int:
    """Return the seed of the scripted roles in the n-th repeat of an evaluation, the same at every step."""
    return seed * 1000 + repeat


def panel_levels(judge: Judge, rubric: Rubric) -> dict[str, tuple[int, ...]] | None:
    """Return the levels of each judge of a panel, empty for one that failed; None for a single judge."""
    if not isinstance(judge, JudgePanel):
        return None
    return {name: flat_levels(form, rubric) if form else () for name, form in judge.forms.items()}


def read_probabilities(judge: Judge) -> Probabilities | None:
    """Return the probabilities of the levels of the last reply, None if they were not read out."""
    return judge.probabilities if isinstance(judge, ReadingJudge) else None


def flat_levels(form: Levels, rubric: Rubric) -> tuple[int, ...]:
    """Return the levels of a turn form: progress and regression of every axis, in the rubric's order."""
    return tuple(mark.level for key in rubric.keys for mark in (form[key].progress, form[key].regression))


Casting = Callable[[Job], Cast]
"""Creates the cast of one dialogue."""

Policy = Callable[[Job], Chat]
"""Creates the policy of one dialogue. For a model behind an endpoint: `lambda job: endpoint`."""


class RolePrompts(Protocol):
    """The prompts of a run: creates the roles that models play, and says what the policy is told.

    Implementations: mapo's templates, perhaps with files of the user's own (`model_cast.py`), and the prompts
    of the published EMPA package (`empa_package/`).
    """

    @property
    def name(self) -> str: ...

    def fingerprint(self, domain: str) -> str:
        """Return a hash of the prompts; equal prompts have the same."""

    def user(self, chat: Chat, job: Job, rubric: Rubric, sampling: Sampling) -> User: ...

    def director(self, chat: Chat, job: Job, rubric: Rubric, sampling: Sampling) -> Director: ...

    def judge(self, chat: Chat, job: Job, rubric: Rubric, sampling: Sampling, member: str = "") -> Judge:
        """Create a judge; `member` is its name on a panel."""

    def policy_system(self, scenario: Scenario) -> str:
        """Return the policy's system prompt."""

    def policy(self, policy: Policy) -> Policy:
        """Return the policy with its requests written as these prompts prescribe."""


def prompts_id(prompts: RolePrompts, domain: str) -> str:
    """Return the name and fingerprint of prompts, as manifests and records hold them."""
    return f"{prompts.name} {prompts.fingerprint(domain)}"
