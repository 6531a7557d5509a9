"""Several judges as one: a panel that all judge every reply, or judges that take turns.

A panel's level is the median of its members' levels: of three, one member who is off, or who was talked into
something, moves it no further than to the nearer of the other two. The same judge may sit on it several
times: then it is asked as often, and the panel takes the noise out of it. Judges that take turns do so by
scenario and step, never inside a group: siblings are compared with each other, and two judges among them
would credit a dialogue for its judge's mildness. A panel that lost a member is another judge too: where
siblings are compared (`whole`) its turn is unscored; elsewhere more than half is enough, and what lies
between two levels is drawn, not always rounded one way.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

from mapo.errors import AnswerError, EndpointError, InputError, MapoError
from mapo.measure.rubric import Rubric
from mapo.models.chat import OWN_WAY, Chat, Sampling
from mapo.sandbox.cast import Cast, Casting, Job, Judge
from mapo.sandbox.judge import ModelJudge
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
    """A Judge for one dialogue, made of several. Unless more than half of them answer (`whole`: about a turn,
    all of them), it has no answer. Start forms are the same for all siblings, whoever answered."""

    def __init__(self, members: Mapping[str, Judge], *, whole: bool = False) -> None:
        if len(members) < 2:
            raise InputError("a panel of fewer than two judges", fix="Name two or more")
        self.members = dict(members)
        self.whole = whole
        self.forms: dict[str, Levels | None] = {}
        """What each member filled in for the last reply; None for one that failed."""

    async def start(self) -> StartLevels:
        given = await self._asked(lambda judge: judge.start())
        forms = self._enough(given, len(self.members) // 2 + 1)
        lost = self._lost(forms, "start")
        return {key: middle([form[key] for form in forms], lost) for key in forms[0]}

    async def judge(self, turns: Sequence[Turn]) -> Levels:
        self.forms = {}
        given = await self._asked(lambda judge: judge.judge(turns))
        self.forms = {name: None if isinstance(form, MapoError) else form for name, form in given.items()}
        forms = self._enough(given, len(self.members) if self.whole else len(self.members) // 2 + 1)
        return median_levels(forms, self._lost(forms, f"{len(turns)} {turns[-1].reply.text}"))

    async def _asked(self, ask: Callable[[Judge], Awaitable[_T]]) -> dict[str, _T | MapoError]:

        async def one(judge: Judge) -> _T | MapoError:
            try:
                return await ask(judge)
            except (AnswerError, EndpointError, InputError) as problem:
                return problem

        forms = await asyncio.gather(*(one(judge) for judge in self.members.values()))
        return dict(zip(self.members, forms, strict=True))

    def _enough(self, given: Mapping[str, _T | MapoError], enough: int) -> list[_T]:
        """What those who answered gave, if they are enough."""
        answers = [form for form in given.values() if not isinstance(form, MapoError)]
        if len(answers) < enough:
            failed = "; ".join(
                f"{name}: {form}" for name, form in given.items() if isinstance(form, MapoError)
            )
            raise AnswerError(
                f"{len(answers)} of {len(self.members)} judges of the panel answered ({failed})",
                fix=f"{enough} must; try each with `mapo doctor`",
            )
        return answers

    def _lost(self, forms: Sequence[object], about: str) -> random.Random | None:
        """The chance that decides between two levels where a member is missing: the same for the same
        words."""
        return random.Random(about) if len(forms) < len(self.members) else None  # noqa: S311 (no secret)


def median_levels(forms: Sequence[Levels], lost: random.Random | None = None) -> Levels:
    """The median of each level of several turn forms."""
    return {
        key: AxisMarks(
            middle([form[key].progress for form in forms], lost),
            middle([form[key].regression for form in forms], lost),
        )
        for key in forms[0]
    }


def middle(marks: Sequence[Mark], lost: random.Random | None = None) -> Mark:
    """The median level, with the words of the first member who is nearest to it.

    Between two levels it is rounded towards 0, as a judge is told to do itself. Where a member is lost, the
    whole panel's median lies on either side with the same chance, and is drawn: rounding would pay less for
    progress, and take less for regression, whenever somebody fails."""
    exact = median(mark.level for mark in marks)
    level = math.floor(exact + lost.choice((0.0, 0.5))) if lost else int(exact)
    nearest = min(marks, key=lambda mark: abs(mark.level - level))
    return replace(nearest, level=level)


def panel(seats: Sequence[Seat], *, whole: bool = False) -> Seat:
    """All of them judge every reply; with `whole`, one that any of them fails on is unscored."""
    named = {seat.name: seat for seat in seats}
    if len(named) < len(seats):
        raise InputError("two seats of a panel have one name", fix="Number them: `seat_names`")

    def judge(job: Job) -> Judge:
        return PanelJudge({name: seat.judge(job) for name, seat in named.items()}, whole=whole)

    return Seat(f"panel of {', '.join(named)}", judge)


def in_turn(seats: Sequence[Seat], job: Job) -> Seat:
    """Whose turn it is: the same for all siblings, another with the scenario and the step."""
    drawn = hashlib.sha256(f"{job.step}/{job.scenario.id}".encode()).digest()
    return seats[int.from_bytes(drawn[:8]) % len(seats)]


def judged_by(casting: Casting, seats: Sequence[Seat], way: str = "panel", *, whole: bool = False) -> Casting:
    """The casting with other judges: a panel of all seats, or one of them at a time."""
    if way not in WAYS or not seats:
        raise InputError(f"{len(seats)} judges, way '{way}'", fix=f"One or more, by {' or '.join(WAYS)}")
    all_of_them = panel(seats, whole=whole) if way == "panel" and len(seats) > 1 else None

    def cast(job: Job) -> Cast:
        played, seat = casting(job), all_of_them or in_turn(seats, job)
        return replace(played, judge=seat.judge(job), names={**played.names, "judge": seat.name})

    return cast
