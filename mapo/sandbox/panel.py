"""Several judges in the role of one: as a panel that judges every reply, or alternating between groups.

A panel's level is the median of its members' levels, so that of three members, one that errs or is
manipulated moves the level no further than to the nearer of the other two. Listing the same judge several
times averages out its noise.

Alternating judges change with the scenario and the training step, never within a group: siblings are compared
with each other, and two judges within a group would credit a dialogue for the leniency of its judge. For the
same reason a turn of which a panel member failed is unscored if siblings are compared (`require_all`).
Otherwise a majority is enough, and a median between two levels is drawn at random instead of always being
rounded one way.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import TypeVar

from mapo.errors import AnswerError, ContextError, EndpointError, InputError, MapoError
from mapo.measure.calibration import Probabilities
from mapo.measure.rubric import Rubric
from mapo.models.chat import DEFAULT_SAMPLING, Chat, Sampling
from mapo.sandbox.cast import Cast, Casting, Job, Judge, RolePrompts, read_probabilities
from mapo.sandbox.model_cast import SHIPPED_PROMPTS
from mapo.sandbox.readout import rounded
from mapo.types import AxisMarks, Levels, Mark, StartLevels, Turn

_T = TypeVar("_T")

JUDGING_MODES = ("panel", "alternate")


@dataclass(frozen=True, slots=True)
class NamedJudge:
    """A judge by the name used in records; `create` makes the Judge of one dialogue."""

    name: str
    create: Callable[[Job], Judge]


def model_judge(
    chat: Chat,
    rubric: Rubric,
    sampling: Sampling = DEFAULT_SAMPLING,
    name: str = "",
    prompts: RolePrompts = SHIPPED_PROMPTS,
) -> NamedJudge:
    """Return a judge played by a model.

    The name is part of the cache key: judges of the same model with different names never share an answer.
    """
    label = name or chat.name

    def create(job: Job) -> Judge:
        return prompts.judge(chat, job, rubric, sampling, member=label)

    return NamedJudge(label, create)


def unique_names(names: Sequence[str]) -> list[str]:
    """Make names unique by numbering repetitions: a, b, a -> a, b, a #2."""
    counts: Counter[str] = Counter()
    unique = []
    for name in names:
        counts[name] += 1
        unique.append(name if counts[name] == 1 else f"{name} #{counts[name]}")
    return unique


class PanelJudge:
    """A Judge for one dialogue that takes the median of several judges.

    At least half of the members plus one must answer; with `require_all`, all of them must answer for a turn.
    Start forms need only a majority, because siblings share them.
    """

    def __init__(self, members: Mapping[str, Judge], *, require_all: bool = False) -> None:
        if len(members) < 2:
            raise InputError("a panel has fewer than two judges", fix="Name at least two judges")
        self.members = dict(members)
        self.require_all = require_all
        self.forms: dict[str, Levels | None] = {}
        """Each member's form for the last reply, None for a member that failed."""

    @property
    def probabilities(self) -> Probabilities | None:
        """The mean of the members' probabilities, None if no member's levels are read out. The level of a
        member that writes its form has probability 1.
        """
        read = {name: read_probabilities(self.members[name]) for name, form in self.forms.items() if form}
        first = next((places for places in read.values() if places), None)
        if first is None:
            return None
        rows = [places or _certain(self.forms[name] or {}, first) for name, places in read.items()]
        return rounded([[fmean(p) for p in zip(*place, strict=True)] for place in zip(*rows, strict=True)])

    async def start(self) -> StartLevels:
        answers = await self._ask_members(lambda judge: judge.start())
        forms = self._require(answers, len(self.members) // 2 + 1)
        rng = self._tie_breaker(forms, "start")
        return {key: median_mark([form[key] for form in forms], rng) for key in forms[0]}

    async def judge(self, turns: Sequence[Turn]) -> Levels:
        self.forms = {}
        answers = await self._ask_members(lambda judge: judge.judge(turns))
        self.forms = {name: None if isinstance(form, MapoError) else form for name, form in answers.items()}
        majority = len(self.members) // 2 + 1
        forms = self._require(answers, len(self.members) if self.require_all else majority)
        return median_levels(forms, self._tie_breaker(forms, f"{len(turns)} {turns[-1].reply.text}"))

    async def _ask_members(self, ask: Callable[[Judge], Awaitable[_T]]) -> dict[str, _T | MapoError]:
        """Ask all members concurrently and return each answer or error."""

        async def ask_member(judge: Judge) -> _T | MapoError:
            try:
                return await ask(judge)
            except (AnswerError, ContextError, EndpointError, InputError) as error:
                return error

        forms = await asyncio.gather(*(ask_member(judge) for judge in self.members.values()))
        return dict(zip(self.members, forms, strict=True))

    def _require(self, answers: Mapping[str, _T | MapoError], minimum: int) -> list[_T]:
        """Return the successful answers, or raise AnswerError if there are fewer than `minimum`."""
        forms = [form for form in answers.values() if not isinstance(form, MapoError)]
        if len(forms) < minimum:
            errors = "; ".join(
                f"{name}: {form}" for name, form in answers.items() if isinstance(form, MapoError)
            )
            raise AnswerError(
                f"only {len(forms)} of {len(self.members)} judges of the panel answered ({errors})",
                fix=f"At least {minimum} must answer; check each judge with `mapo doctor`",
            )
        return forms

    def _tie_breaker(self, forms: Sequence[object], seed: str) -> random.Random | None:
        """Return the generator that resolves ties if a member is missing, the same for the same text."""
        return random.Random(seed) if len(forms) < len(self.members) else None  # noqa: S311 (not security)


def _certain(form: Levels, like: Probabilities) -> Probabilities:
    """Return the levels of a form as probabilities of 0 and 1, with as many levels per place as `like`."""
    marks = [mark for axis in form.values() for mark in (axis.progress, axis.regression)]
    return tuple(
        tuple(float(level == abs(mark.level)) for level in range(len(place)))
        for mark, place in zip(marks, like, strict=True)
    )


def median_levels(forms: Sequence[Levels], rng: random.Random | None = None) -> Levels:
    """Return the median of each level of several turn forms."""
    return {
        key: AxisMarks(
            median_mark([form[key].progress for form in forms], rng),
            median_mark([form[key].regression for form in forms], rng),
        )
        for key in forms[0]
    }


def median_mark(marks: Sequence[Mark], rng: random.Random | None = None) -> Mark:
    """Return the median level, with evidence and reason of the first mark that is nearest to it.

    A median between two levels is rounded towards 0, as the judge's instructions say. If a member is missing,
    pass `rng`: the median of the complete panel would lie on either side with equal probability, so one is
    drawn. Rounding would reduce both rewards and penalties whenever a member fails.
    """
    exact = median(mark.level for mark in marks)
    level = math.floor(exact + rng.choice((0.0, 0.5))) if rng else int(exact)
    nearest = min(marks, key=lambda mark: abs(mark.level - level))
    return replace(nearest, level=level)


def panel(judges: Sequence[NamedJudge], *, require_all: bool = False) -> NamedJudge:
    """Combine judges into a panel; with `require_all`, a turn that any of them fails on is unscored."""
    members = {judge.name: judge for judge in judges}
    if len(members) < len(judges):
        raise InputError("two judges of a panel have the same name", fix="Number them with `unique_names`")

    def create(job: Job) -> Judge:
        return PanelJudge({name: m.create(job) for name, m in members.items()}, require_all=require_all)

    return NamedJudge(f"panel of {', '.join(members)}", create)


def alternating(judges: Sequence[NamedJudge], job: Job) -> NamedJudge:
    """Choose the judge for a job by scenario and step, so that it is the same for all siblings."""
    digest = hashlib.sha256(f"{job.step}/{job.scenario.id}".encode()).digest()
    return judges[int.from_bytes(digest[:8]) % len(judges)]


def with_judges(
    casting: Casting, judges: Sequence[NamedJudge], mode: str = "panel", *, require_all: bool = False
) -> Casting:
    """Return `casting` with its judge replaced by a panel of `judges`, or by one of them at a time."""
    if not judges:
        raise InputError("no judges given", fix="Name at least one judge")
    if mode not in JUDGING_MODES:
        raise InputError(f"unknown judging mode '{mode}'", fix=f"Use one of: {', '.join(JUDGING_MODES)}")
    combined = panel(judges, require_all=require_all) if mode == "panel" and len(judges) > 1 else None

    def cast(job: Job) -> Cast:
        base, judge = casting(job), combined or alternating(judges, job)
        return replace(base, judge=judge.create(job), names={**base.names, "judge": judge.name})

    return cast
