"""Audit questions: each shows a recorded turn, unchanged or modified, to a judge.

Built on the shared item runner (`evals/items.py`): one line of items.jsonl per answer, so an interrupted
audit loses nothing and a resume repeats no call. A form that cannot be parsed is an answer too (unscored). A
question whose endpoint failed is asked again on the next resume.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mapo.errors import AnswerError, ContextError, RecordError, ScenarioError
from mapo.evals.items import REMOVE_LINE, ItemLine
from mapo.judges.audit.probes import LANGUAGE, PROBES, UNCHANGED, JudgeInput, Probe, unchanged_input
from mapo.judges.sample import RecordedTurn, Recording
from mapo.measure.calibration import IDENTITY, Calibration
from mapo.measure.rubric import Rubric
from mapo.models.chat import DEFAULT_SAMPLING, Chat, Reader, Sampling
from mapo.sandbox.cast import Casting, Job
from mapo.sandbox.judge import ModelJudge
from mapo.sandbox.panel import median_levels
from mapo.sandbox.reading_roles import ReadJudge
from mapo.sandbox.readout import reordered
from mapo.store import RunDir
from mapo.types import AxisMarks, Levels, Mark

AskJudge = Callable[[JudgeInput, str], Awaitable[Levels]]
"""A judge as a function: input and question name -> its form."""


@dataclass(frozen=True, slots=True)
class AuditQuestion:
    """The `repeat`-th request to `judge` to rate `turn`, unchanged or modified by `probe`."""

    judge: str
    turn: RecordedTurn
    probe: str = UNCHANGED
    repeat: int = 0
    variant: int = 0

    @property
    def id(self) -> str:
        """Unique name; the id of the answer's line in items.jsonl."""
        return f"{self.judge}|{self.turn.id}|{self.probe}|{self.repeat}"

    def judge_input(self) -> JudgeInput | None:
        """Return what the judge sees; None if the probe does not apply to this turn."""
        unchanged = unchanged_input(self.turn)
        return PROBES[self.probe].change(unchanged, self.variant) if self.probe in PROBES else unchanged


def model_asker(chat: Chat, sampling: Sampling = DEFAULT_SAMPLING) -> AskJudge:
    """Return a function that asks a model, with the same prompts as in a run."""

    async def ask(shown: JudgeInput, name: str) -> Levels:
        judge = ModelJudge(
            chat, shown.scenario, shown.rubric, shown.seed, name, sampling=sampling, system=shown.system
        )
        return await judge.judge(shown.turns)

    return ask


def reading_asker(reader: Reader, rubric: Rubric, calibration: Calibration = IDENTITY) -> AskJudge:
    """Return a function that reads levels out of a model; `calibration` is for the axes in `rubric`'s order.

    Its prompts are fixed, so questions with other wordings are skipped.
    """

    async def ask(shown: JudgeInput, name: str) -> Levels:
        if shown.system:
            raise ScenarioError("a judge that is read out has one prompt only")
        fitted = reordered(calibration, rubric, shown.rubric)
        return await ReadJudge(reader, shown.scenario, shown.rubric, name, fitted).judge(shown.turns)

    return ask


def scripted_asker(casting: Casting) -> AskJudge:
    """Return a function that asks a domain's scripted judge. It replays each dialogue from its beginning and
    ignores the prompt."""

    async def ask(shown: JudgeInput, name: str) -> Levels:
        judge = casting(Job(shown.scenario, name, seed=shown.seed)).judge
        for number in range(1, len(shown.turns)):
            await judge.judge(shown.turns[:number])
        return await judge.judge(shown.turns)

    return ask


def question_solver(
    judges: Mapping[str, AskJudge],
) -> Callable[[AuditQuestion, int], Awaitable[dict[str, Any]]]:
    """Return the function that the item runner calls for each question."""

    async def solve(question: AuditQuestion, attempt: int) -> dict[str, Any]:
        shown = question.judge_input()
        if shown is None:
            return {"skipped": "no variant of this turn"}
        name = f"audit/{question.id}" + (f"/{attempt}" if attempt else "")
        try:
            levels = await judges[question.judge](shown, name)
        except (AnswerError, ContextError) as problem:
            return {"unscored": str(problem)}
        except ScenarioError as problem:  # scripted roles cannot play every scenario
            return {"skipped": str(problem)}
        return {"levels": {key: asdict(levels[key]) for key in question.turn.recording.rubric.keys}}

    return solve


def all_questions(
    judges: Sequence[str],
    turns: Sequence[RecordedTurn],
    dialogues: Sequence[Recording],
    pairs: Sequence[tuple[RecordedTurn, RecordedTurn]],
    *,
    repeats: int,
    probes: Sequence[Probe],
) -> list[AuditQuestion]:
    """Return every question of an audit: sampled turns `repeats` times and once per probe, whole dialogues
    twice, and both sides of the language pairs `repeats` times."""
    questions: dict[str, AuditQuestion] = {}

    def add(*added: AuditQuestion) -> None:
        questions.update((question.id, question) for question in added)

    for judge in judges:
        for variant, turn in enumerate(turns):
            add(*(AuditQuestion(judge, turn, repeat=n) for n in range(repeats)))
            add(*(AuditQuestion(judge, turn, probe.name, variant=variant) for probe in probes))
        for recording in dialogues:
            add(*(AuditQuestion(judge, turn, repeat=n) for turn in recording.turns for n in range(2)))
        for pair in pairs:
            for side, name in zip(pair, (UNCHANGED, LANGUAGE), strict=True):
                add(*(AuditQuestion(judge, side, name, repeat=n) for n in range(repeats)))
    return list(questions.values())


def panel_line(question: AuditQuestion, member_lines: Sequence[ItemLine | None]) -> ItemLine | None:
    """Return a panel's answer from its members' answers: as in a run, the median of their forms if more than
    half are usable. None while an answer is missing; skipped if a member had to skip the question."""
    if any(line is None for line in member_lines):
        return None
    lines = [line for line in member_lines if line is not None]
    if skipped := [line for line in lines if "skipped" in line]:
        return {"skipped": skipped[0]["skipped"]}
    where = f"{RunDir.items.name}, {question.id}"
    parsed = [levels_in(line, question.turn.recording.rubric, where) for line in lines]
    forms = [form for form in parsed if form is not None]
    if 2 * len(forms) <= len(lines):
        return {"unscored": f"{len(forms)} of {len(lines)} judges of the panel answered"}
    lost = random.Random(question.id) if len(forms) < len(lines) else None  # noqa: S311 (not security)
    return {"levels": {key: asdict(marks) for key, marks in median_levels(forms, lost).items()}}


def levels_in(line: ItemLine | None, rubric: Rubric, where: str) -> Levels | None:
    """Return the form in a line of items.jsonl; None if it has none."""
    if line is None or "levels" not in line:
        return None
    try:
        levels = {
            key: AxisMarks(Mark(**line["levels"][key]["progress"]), Mark(**line["levels"][key]["regression"]))
            for key in rubric.keys
        }
        rubric.step(levels)
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(
            f"the recorded form does not fit the rubric ({error!r})", where=where, fix=REMOVE_LINE
        ) from None
    return levels
