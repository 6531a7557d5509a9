"""Several judges as one: a panel that all judge every reply, or judges that take turns.

A panel's level is the median of its members' levels, so that one member who is off, or who was talked into
something, moves nothing. The same judge may sit on it several times: then it is asked as often, and the panel
takes the noise out of it. Judges that take turns do so by scenario and step, never inside a group: siblings
are compared with each other, and two judges among them would credit a dialogue for its judge's mildness.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

from mapo.errors import AnswerError, EndpointError, InputError, MapoError
from mapo.sandbox.cast import Cast, Casting, Job, Judge
from mapo.sandbox.chat import OWN_WAY, Chat, Sampling
from mapo.sandbox.judge import ModelJudge
from mapo.sandbox.rubric import Rubric
from mapo.types import AxisMarks, Levels, Mark, StartLevels, Turn

_T = TypeVar("_T")

WAYS = ("panel", "alternate")


@dataclass(frozen=True, slots=True)
class Seat:
    """Who may judge: `judge` makes one for a dialogue, `name` is what records call it."""

    name: str
    judge: Callable[[Job], Judge]


def model_seat(chat: Chat, rubric: Rubric, sampling: Sampling = OWN_WAY, name: str = "") -> Seat:
    """A model as a judge. Seats of one model have names of their own, and so never share an answer."""
    title = name or chat.name

    def judge(job: Job) -> Judge:
        session = f"{job.session}/{title}"
        return ModelJudge(chat, job.scenario, rubric, job.seed, session, job.attempt, sampling, seat=title)

    return Seat(title, judge)


def seat_names(names: Sequence[str]) -> list[str]:
    """A name for each seat: one that comes again is numbered."""
    seen: Counter[str] = Counter()
    titles = []
    for name in names:
        seen[name] += 1
        titles.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return titles


class PanelJudge:
    """A Judge for one dialogue, made of several. Unless more than half of them answer, it has no answer."""

    def __init__(self, members: Mapping[str, Judge]) -> None:
        if len(members) < 2:
            raise InputError("a panel of fewer than two judges", fix="Name two or more")
        self.members = dict(members)
        self.forms: dict[str, Levels] = {}
        """What each member filled in for the last reply."""

    async def start(self) -> StartLevels:
        given = await self._asked(lambda judge: judge.start())
        return {key: middle([form[key] for form in given.values()]) for key in next(iter(given.values()))}

    async def judge(self, turns: Sequence[Turn]) -> Levels:
        self.forms = {}
        self.forms = await self._asked(lambda judge: judge.judge(turns))
        return median_levels(list(self.forms.values()))

    async def _asked(self, ask: Callable[[Judge], Awaitable[_T]]) -> dict[str, _T]:
        """What those who answered gave, at least a quorum of them."""

        async def one(judge: Judge) -> _T | MapoError:
            try:
                return await ask(judge)
            except (AnswerError, EndpointError, InputError) as problem:
                return problem

        forms = await asyncio.gather(*(one(judge) for judge in self.members.values()))
        given = dict(zip(self.members, forms, strict=True))
        answers = {name: form for name, form in given.items() if not isinstance(form, MapoError)}
        if 2 * len(answers) <= len(self.members):
            failed = "; ".join(f"{name}: {form}" for name, form in given.items() if name not in answers)
            raise AnswerError(
                f"{len(answers)} of {len(self.members)} judges of the panel answered ({failed})",
                fix="More than half must; try each with `mapo doctor`",
            )
        return answers


def median_levels(forms: Sequence[Levels]) -> Levels:
    """The median of each level of several turn forms."""
    return {
        key: AxisMarks(
            middle([form[key].progress for form in forms]), middle([form[key].regression for form in forms])
        )
        for key in forms[0]
    }


def middle(marks: Sequence[Mark]) -> Mark:
    """The median level, rounded towards 0 as a judge is told to do between two levels; with the words of the
    first member who is nearest to it."""
    level = int(median(mark.level for mark in marks))
    nearest = min(marks, key=lambda mark: abs(mark.level - level))
    return replace(nearest, level=level)


def panel(seats: Sequence[Seat]) -> Seat:
    """All of them judge every reply."""
    named = {seat.name: seat for seat in seats}
    if len(named) < len(seats):
        raise InputError("two seats of a panel have one name", fix="Number them: `seat_names`")

    def judge(job: Job) -> Judge:
        return PanelJudge({name: seat.judge(job) for name, seat in named.items()})

    return Seat(f"panel of {', '.join(named)}", judge)


def in_turn(seats: Sequence[Seat], job: Job) -> Seat:
    """Whose turn it is: the same for all siblings, another with the scenario and the step."""
    drawn = hashlib.sha256(f"{job.step}/{job.scenario.id}".encode()).digest()
    return seats[int.from_bytes(drawn[:8]) % len(seats)]


def judged_by(casting: Casting, seats: Sequence[Seat], way: str = "panel") -> Casting:
    """The casting with other judges: a panel of all seats, or one of them at a time."""
    if way not in WAYS or not seats:
        raise InputError(f"{len(seats)} judges, way '{way}'", fix=f"One or more, by {' or '.join(WAYS)}")
    whole = panel(seats) if way == "panel" and len(seats) > 1 else None

    def cast(job: Job) -> Cast:
        played, seat = casting(job), whole or in_turn(seats, job)
        return replace(played, judge=seat.judge(job), names={**played.names, "judge": seat.name})

    return cast
