"""The judges, asked again: questions, each a turn shown to a judge in some way, answered once and written
down.

Built on what the benchmarks share (`evals/items.py`): one line of items.jsonl an answer, complete before it
counts, so a kill loses nothing and a resume asks nothing twice. A form that never fits is an answer too, an
unscored one; an endpoint that fails is asked again by the next resume.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mapo.errors import AnswerError, RecordError, ScenarioError
from mapo.evals.items import ASK_ANEW, Line
from mapo.judges.audit.probes import LANGUAGE, PLAIN, PROBES, Probe, Shown, plainly
from mapo.judges.sample import Moment, Talk
from mapo.measure.rubric import Rubric
from mapo.models.chat import OWN_WAY, Chat, Sampling
from mapo.sandbox.cast import Casting, Job
from mapo.sandbox.judge import ModelJudge
from mapo.sandbox.panel import median_levels
from mapo.store import RunDir
from mapo.types import AxisMarks, Levels, Mark

Asking = Callable[[Shown, str], Awaitable[Levels]]
"""A judge: what it is shown, and the name of the question -> its form."""


@dataclass(frozen=True, slots=True)
class Question:
    """`judge` on `moment`, as it was or changed by a probe, for the `repeat`-th time."""

    judge: str
    moment: Moment
    probe: str = PLAIN
    repeat: int = 0
    number: int = 0

    @property
    def id(self) -> str:
        return f"{self.judge}|{self.moment.id}|{self.probe}|{self.repeat}"

    def shown(self) -> Shown | None:
        """What the judge sees; None where the probe has no variant of this turn."""
        plain = plainly(self.moment)
        return PROBES[self.probe].change(plain, self.number) if self.probe in PROBES else plain


def model_asking(chat: Chat, sampling: Sampling = OWN_WAY) -> Asking:
    """A model in the judge's role, as in a run."""

    async def ask(shown: Shown, name: str) -> Levels:
        judge = ModelJudge(
            chat, shown.scenario, shown.rubric, shown.seed, name, sampling=sampling, system=shown.system
        )
        return await judge.judge(shown.turns)

    return ask


def scripted_asking(casting: Casting) -> Asking:
    """A domain's judge of plain code. It follows a dialogue from its beginning; the prompt means nothing to
    it."""

    async def ask(shown: Shown, name: str) -> Levels:
        judge = casting(Job(shown.scenario, name, seed=shown.seed)).judge
        for at in range(1, len(shown.turns)):
            await judge.judge(shown.turns[:at])
        return await judge.judge(shown.turns)

    return ask


def solving(judges: Mapping[str, Asking]) -> Callable[[Question, int], Awaitable[dict[str, Any]]]:
    """What `bench.run_items` calls for each question."""

    async def solve(question: Question, attempt: int) -> dict[str, Any]:
        shown = question.shown()
        if shown is None:
            return {"skipped": "no variant of this turn"}
        name = f"audit/{question.id}" + (f"/{attempt}" if attempt else "")
        try:
            levels = await judges[question.judge](shown, name)
        except AnswerError as problem:
            return {"unscored": str(problem)}
        except ScenarioError as problem:  # roles of plain code cannot play every person
            return {"skipped": str(problem)}
        return {"levels": {key: asdict(levels[key]) for key in question.moment.talk.rubric.keys}}

    return solve


def questions(
    judges: Sequence[str],
    turns: Sequence[Moment],
    dialogues: Sequence[Talk],
    pairs: Sequence[tuple[Moment, Moment]],
    *,
    repeats: int,
    probes: Sequence[Probe],
) -> list[Question]:
    """Everything to be asked: sampled turns `repeats` times and once for each probe, whole dialogues twice,
    the language pairs `repeats` times on each side."""
    asked: dict[str, Question] = {}
    for judge in judges:
        for at, moment in enumerate(turns):
            mine = [Question(judge, moment, repeat=n) for n in range(repeats)]
            mine += [Question(judge, moment, probe.name, number=at) for probe in probes]
            asked.update((question.id, question) for question in mine)
        for talk in dialogues:
            for turn in range(1, len(talk.dialogue.turns) + 1):
                twice = [Question(judge, Moment(talk, turn), repeat=n) for n in range(2)]
                asked.update((question.id, question) for question in twice)
        for pair in pairs:
            for side, name in zip(pair, (PLAIN, LANGUAGE), strict=True):
                some = [Question(judge, side, name, repeat=n) for n in range(repeats)]
                asked.update((question.id, question) for question in some)
    return list(asked.values())


def panel_line(question: Question, given: Sequence[Line | None]) -> Line | None:
    """What a panel says to a question that its members answered: as in a run, the median of their forms if
    more than half filled one in. None while an answer is missing; skipped where a member cannot answer."""
    if any(line is None for line in given):
        return None
    lines = [line for line in given if line is not None]
    if skipped := [line for line in lines if "skipped" in line]:
        return {"skipped": skipped[0]["skipped"]}
    where = f"{RunDir.items.name}, {question.id}"
    found = [levels_in(line, question.moment.talk.rubric, where) for line in lines]
    forms = [form for form in found if form is not None]
    if 2 * len(forms) <= len(lines):
        return {"unscored": f"{len(forms)} of {len(lines)} judges of the panel answered"}
    lost = random.Random(question.id) if len(forms) < len(lines) else None  # noqa: S311 (no secret)
    return {"levels": {key: asdict(sides) for key, sides in median_levels(forms, lost).items()}}


def levels_in(line: Line | None, rubric: Rubric, where: str) -> Levels | None:
    """The form of a line; None for one that was not filled in."""
    if line is None or "levels" not in line:
        return None
    try:
        levels = {
            key: AxisMarks(Mark(**line["levels"][key]["progress"]), Mark(**line["levels"][key]["regression"]))
            for key in rubric.keys
        }
        rubric.step(levels)
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(f"no form of this rubric ({error!r})", where=where, fix=ASK_ANEW) from None
    return levels
