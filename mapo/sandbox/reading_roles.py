"""Judge and director whose answers are read out of a local model: one forward pass, no text generated.

The judge's levels come without evidence and reasons; `mapo judge explain` writes them on demand. The prompts
and forms are those of `readout.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import cast

from mapo.errors import ContextError, EndpointError, InputError
from mapo.measure.calibration import IDENTITY, Calibration, Probabilities
from mapo.measure.potential import Trajectory
from mapo.measure.rubric import Rubric
from mapo.models.chat import Chat, Reader, ReadRequest, Sampling
from mapo.sandbox.cast import Director, Job, Judge, Policy, RolePrompts, User
from mapo.sandbox.director import failed_direction
from mapo.sandbox.intent_user import IntentPrompts
from mapo.sandbox.model_cast import TemplatePrompts
from mapo.sandbox.prompting import DEFAULT_PROMPTS, Prompts
from mapo.sandbox.readout import (
    LAYOUT,
    act_menu,
    act_places,
    director_messages,
    judge_messages,
    levels_from,
    next_stage,
    open_choices,
    rounded,
    start_levels_from,
    start_messages,
    start_places,
    turn_places,
)
from mapo.scenarios.scenario import Scenario
from mapo.types import Direction, Levels, StartLevels, Turn

READABLE = ("judge", "director")
"""Roles whose answers can be read out."""


class ReadJudge:
    """A Judge for one dialogue. It sees the earlier turns, but not their levels, and the complete scenario
    unless its layout is the brief one.

    `calibration` is that of the turn form. The levels of the start form are the most likely ones.
    """

    def __init__(
        self,
        reader: Reader,
        scenario: Scenario,
        rubric: Rubric,
        session: str,
        calibration: Calibration = IDENTITY,
        prompts: Prompts = DEFAULT_PROMPTS,
        layout: int = LAYOUT,
    ) -> None:
        self.reader = reader
        self.scenario = scenario
        self.rubric = rubric
        self.session = f"{session}/judge"
        self.calibration = calibration
        self.prompts = prompts
        self.layout = layout
        self.probabilities: Probabilities | None = None
        """The calibrated probabilities of the levels of the last reply."""

    async def start(self) -> StartLevels:
        """Read the start form out. A trained judge has learned turn forms only."""
        if self.calibration != IDENTITY:
            raise InputError(
                f"the trained judge '{self.reader.name}' cannot fill in start forms",
                fix="Give start levels: scenarios.start_levels in a config, or --start-levels",
            )
        messages = start_messages(self.scenario, self.rubric, self.prompts)
        logprobs = await self.reader.read(ReadRequest(messages, start_places(self.rubric), turn=0))
        return start_levels_from(IDENTITY.apply(logprobs), self.rubric, IDENTITY)

    async def judge(self, turns: Sequence[Turn]) -> Levels:
        """Read the turn form for the last of `turns` out."""
        if not turns:
            raise InputError("there is no turn to judge", fix="Pass at least one turn")
        self.probabilities = None
        messages = judge_messages(self.scenario, self.rubric, turns, self.prompts, self.layout)
        request = ReadRequest(messages, turn_places(self.rubric), self.session, len(turns))
        self.probabilities = rounded(self.calibration.apply(await self.reader.read(request)))
        return levels_from(self.probabilities, self.rubric, self.calibration)


class ReadDirector:
    """A Director for one dialogue. Its act is the most likely one of those that the rules allow."""

    def __init__(
        self,
        reader: Reader,
        scenario: Scenario,
        rubric: Rubric,
        session: str,
        prompts: Prompts = DEFAULT_PROMPTS,
    ) -> None:
        self.reader = reader
        self.scenario = scenario
        self.rubric = rubric
        self.session = f"{session}/director"
        self.prompts = prompts

    async def direct(self, turns: Sequence[Turn], trajectory: Trajectory) -> Direction:
        """Read what happens next out. Errors of the model are recorded in the direction, not raised."""
        menu = act_menu(self.scenario, self.rubric)
        choices = open_choices(menu, self.scenario, turns, trajectory.min_turns)
        messages = director_messages(
            self.scenario, self.rubric, turns, trajectory.min_turns, trajectory.max_turns, self.prompts
        )
        try:
            request = ReadRequest(messages, act_places(choices), self.session, len(turns))
            [logprobs] = await self.reader.read(request)
        except (ContextError, EndpointError) as error:
            return failed_direction(error)
        choice = choices[logprobs.index(max(logprobs))]
        return Direction(choice.act, str(next_stage(turns)) if choice.act == "reveal_stage" else choice.item)


@dataclass(frozen=True, slots=True)
class ReadingPrompts:
    """The prompts `base`, but with the answers of `roles` read out. Their models must be local ones."""

    base: RolePrompts
    templates: Prompts
    roles: frozenset[str]
    calibration: Calibration = IDENTITY
    layout: int = LAYOUT

    @property
    def name(self) -> str:
        return f"{self.base.name}+readout"

    def fingerprint(self, domain: str) -> str:
        parts = (
            self.base.fingerprint(domain),
            self.templates.fingerprint_of("read_", domain),
            self.templates.fingerprint_of("director_acts", domain),
            *sorted(self.roles),
            *([str(self.layout)] if self.layout != LAYOUT else []),
        )
        return hashlib.sha256("/".join(parts).encode()).hexdigest()[:16]

    def user(self, chat: Chat, job: Job, rubric: Rubric, sampling: Sampling) -> User:
        return self.base.user(chat, job, rubric, sampling)

    def director(self, chat: Chat, job: Job, rubric: Rubric, sampling: Sampling) -> Director:
        if "director" not in self.roles:
            return self.base.director(chat, job, rubric, sampling)
        return ReadDirector(reader_of(chat), job.scenario, rubric, job.session, self.templates)

    def judge(self, chat: Chat, job: Job, rubric: Rubric, sampling: Sampling, member: str = "") -> Judge:
        if "judge" not in self.roles:
            return self.base.judge(chat, job, rubric, sampling, member)
        session = f"{job.session}/{member}" if member else job.session
        return ReadJudge(
            reader_of(chat), job.scenario, rubric, session, self.calibration, self.templates, self.layout
        )

    def policy_system(self, scenario: Scenario) -> str:
        return self.base.policy_system(scenario)

    def policy(self, policy: Policy) -> Policy:
        return self.base.policy(policy)


def with_readout(
    prompts: RolePrompts,
    roles: Collection[str],
    calibration: Calibration = IDENTITY,
    layout: int = LAYOUT,
) -> RolePrompts:
    """Return the prompts with the answers of `roles` read out; `calibration` and `layout` are the judge's.

    Raises InputError for prompts that have no form to read out of.
    """
    if unknown := sorted(set(roles) - set(READABLE)):
        raise InputError(
            f"the answers of the {unknown[0]} cannot be read out",
            fix=f"Use judging = 'readout' only for: {', '.join(READABLE)}",
        )
    if not roles:
        return prompts
    if isinstance(prompts, IntentPrompts):
        return replace(prompts, base=with_readout(prompts.base, roles, calibration, layout))
    if not isinstance(prompts, TemplatePrompts):
        raise InputError(
            f"the prompts '{prompts.name}' cannot be read out",
            fix="Leave roles.prompts empty or name a folder of templates, or set judging = 'form'",
        )
    return ReadingPrompts(prompts, prompts.templates, frozenset(roles), calibration, layout)


def reader_of(chat: Chat) -> Reader:
    """Return a model as a Reader. Raises InputError if its answers cannot be read out."""
    if not callable(getattr(chat, "read", None)):
        raise InputError(
            f"the answers of '{chat.name}' cannot be read out",
            fix="Readout needs a local model (local:FOLDER); set judging = 'form' for a model at an endpoint",
        )
    return cast("Reader", chat)
