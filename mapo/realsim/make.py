"""From conversations to scenarios, one item at a time, resumable at any point.

OUT/manifest.json      what is being made; a resume must ask for the same
    source.jsonl       each conversation's id, file number and line; no word of it
    1-local/ID.json    the conversation with placeholders, the local pass's and the model's
    2-decontextualised/ID.json   the notes that were kept
    3-recontextualised/ID.json   the invented person
    4-levels/ID.json   every start form, and how far they agree
    scenarios/ID.toml  what passed everything
    items.jsonl        one line an item: made, or refused and why
    report.json        counts by kind, refusals, agreement, problems by line
    ledger.json        calls, tokens, cost by role
    private.sqlite     every model call, so that nothing is paid twice; removed when all is done
    private.key        by which the run knows its files again; removed with it

Answers of models may hold what the local pass missed. So they are kept in a file of their own while they are
needed, and nothing else is written before it has been checked against every value that was found.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mapo.errors import AnswerError, ContextError, EndpointError, MapoError
from mapo.evals.items import HalfwayError, Line
from mapo.measure.rubric import Rubric
from mapo.models.chat import Chat
from mapo.realsim.levels import FORMS, TEMPERATURE, fill_start
from mapo.realsim.model_steps import Essence, RefusedError, Step, decontextualise, recontextualise, review
from mapo.realsim.reading.read import WINDOW, Conversation
from mapo.realsim.redaction.redact import Cleaned, clean, leaks
from mapo.realsim.redaction.vocabulary import SHORT, ordinary
from mapo.realsim.validate import build, level_problems, problems
from mapo.runs.claim import digest
from mapo.scenarios.scenario import Scenario
from mapo.store import write_atomic

STEPS = ("1-local", "2-decontextualised", "3-recontextualised", "4-levels")
_OURS = re.compile(
    r"HTTP \d{3}|no answer within [\d.e+]+ s|no connection|an empty answer|no text within max_tokens=\d+"
    r"|no recorded answer for this request"
)
"""How errors begin, in words of our own; what follows may be an endpoint's, and quote the request."""
_LAST = re.compile(
    r"; the last: ((?:the form[\w.\[\]]*: )?(?:not JSON|it was empty|it was cut off after \d+ tokens"
    r"|missing [\w, ]+|not an object|not a list of at most \d+ entries|not a text of at most \d+ characters"
    r"|none of the choices|\d+ keys that were not asked for|not true or false|no whole number))"
)
"""What was wrong with an unusable answer, in words of our own; keys are those of the form."""
_TRIED = re.compile(r" \(after \d+ attempts\)$")


@dataclass(frozen=True, slots=True)
class Making:
    """What is made, and how. `language` empty: as each conversation is."""

    rubric: Rubric
    categories: tuple[str, ...] = ()
    language: str = ""
    forms: int = FORMS
    temperature: float = TEMPERATURE
    window: int = WINDOW
    reviewed: bool = True
    keep_raw: bool = False

    def manifest(self, source: Mapping[str, Any], models: Mapping[str, str]) -> dict[str, Any]:
        """What makes a run the run it is; `source` are its fingerprints."""
        return {
            "schema": "mapo.realsim/1",
            **source,
            "rubric": f"{self.rubric.name} {digest(self.rubric.measure)}",
            "models": dict(models),
            **{key: value for key, value in asdict(self).items() if key != "rubric"},
            "categories": list(self.categories),
        }


@dataclass(frozen=True, slots=True)
class Maker:
    """`maker` writes, `judge` fills in start forms and reviews. `failed` are the lines of items that failed
    before: which of their steps are to be asked anew."""

    out: Path
    making: Making
    maker: Chat
    judge: Chat
    failed: Mapping[str, Line] = field(default_factory=dict)

    async def solve(self, talk: Conversation, attempt: int) -> Mapping[str, Any]:
        """The line of one item; see `mapo.evals.items`."""
        del attempt  # which step failed says more, and stands in the line
        anew: dict[str, int] = dict(self.failed.get(talk.id, {}).get("anew", {}))
        local = await asyncio.to_thread(local_pass, talk)
        item = _Item(self, talk, local, anew)
        told = {"kinds": dict(local.counts), "cut": talk.cut}
        try:
            return {"verdict": "made", **await item.through(), **told}
        except RefusedError as refusal:
            why = {"reason": refusal.reason, "detail": refusal.detail, "step": item.step}
            return {"verdict": "refused", **why, **told}
        except (AnswerError, EndpointError, ContextError) as error:
            problem = type(error)(f"{item.step}: {_quotable(error)}")
            raise HalfwayError({"anew": anew, **told}, problem) from None


@dataclass(slots=True)
class _Item:
    """One conversation on its way; `step` is where it stands. `anew` counts, request by request, how often
    the recorded answer was unusable: only those are asked anew."""

    maker: Maker
    talk: Conversation
    local: Cleaned
    anew: dict[str, int]
    step: str = STEPS[0]

    async def through(self) -> dict[str, Any]:
        making, case = self.maker.making, self.talk.id
        self.step = STEPS[1]
        essence = await decontextualise(self._asking(self.maker.maker), self.talk, self.local)
        shown = await asyncio.to_thread(shown_turns, self.talk, essence.cleaned)
        found = {"found": dict(self.local.counts), "listed": essence.listed}
        self._keep(STEPS[0], {"turns": shown, **found}, essence)
        self._keep(STEPS[1], essence.notes, essence)
        self.step = STEPS[2]
        scenario = await self._invented(essence)
        self._keep(STEPS[2], asdict(scenario), essence)
        self.step = STEPS[3]
        start = await fill_start(
            self.maker.judge,
            scenario,
            making.rubric,
            forms=making.forms,
            temperature=making.temperature,
            anew=self.anew,
        )
        told = {"given": start.given, "agreement": start.agreement, "missing": start.missing}
        self._keep(STEPS[3], told, essence)
        scenario = with_levels(scenario, start.levels, making.rubric)
        if wrong := level_problems(scenario, making.rubric):
            raise RefusedError("inconsistent", "; ".join(wrong))
        self.step = "review"
        if making.reviewed:
            await review(self._asking(self.maker.judge), scenario)
        return {"scenario": {**asdict(scenario), "id": case}, "given": start.given, "listed": essence.listed}

    async def _invented(self, essence: Essence) -> Scenario:
        making, source = self.maker.making, essence.cleaned.texts
        language = self._language()

        def made(filled: dict[str, Any]) -> Scenario:
            return build(filled, case=self.talk.id, language=language, rubric=making.rubric)

        return await recontextualise(
            self._asking(self.maker.maker),
            self.talk.id,
            essence,
            made,
            lambda scenario: problems(scenario, making.rubric, source),
            making.categories,
        )

    def _asking(self, chat: Chat) -> Step:
        return Step(
            chat, self.maker.making.rubric, self._language(), f"{self.talk.id}/{self.step}", self.anew
        )

    def _language(self) -> str:
        return self.maker.making.language or language_in([turn.text for turn in self.talk.turns])

    def _keep(self, step: str, data: Mapping[str, Any], essence: Essence) -> None:
        """A step's result on disk, once nothing private stands in it."""
        text = json.dumps({"id": self.talk.id, **data}, ensure_ascii=False, indent=1)
        words = " ".join(_texts(data))
        if left := leaks(essence.cleaned.values, words):
            raise RefusedError("leak", f"{len(left)} private values in the result of {step}")
        write_atomic(self.maker.out / step / f"{self.talk.id}.json", text + "\n")


def local_pass(talk: Conversation) -> Cleaned:
    """The conversation without what identifies; the names before the lines are names, unless they are words
    like "Husband"."""
    names = [name for name in talk.speakers if not ordinary(name.casefold()) or len(name) < SHORT]
    return clean([turn.text for turn in talk.turns], known=[("name", name) for name in names])


def shown_turns(talk: Conversation, cleaned: Cleaned) -> list[dict[str, str]]:
    """The turns with placeholders; one that still holds something is withheld."""
    return [
        {"side": turn.side, "text": "(withheld)" if leaks(cleaned.values, text) else text}
        for turn, text in zip(talk.turns, cleaned.texts, strict=True)
    ]


def with_levels(scenario: Scenario, levels: Mapping[str, int], rubric: Rubric) -> Scenario:
    """The scenario with its start levels, and the axis and difficulty they give."""
    start = rubric.start(levels)
    axis = rubric.keys[start.index(min(start))]
    return replace(scenario, start_levels=dict(levels), axis=axis, difficulty=rubric.difficulty_of(start))


def language_in(texts: Sequence[str]) -> str:
    """Chinese where a third of the letters are; English otherwise, for nothing else is told apart here."""
    letters = [char for text in texts for char in text if char.isalpha()]
    return "zh" if sum("\u4e00" <= char <= "\u9fff" for char in letters) * 3 > len(letters) else "en"


def _texts(data: Any) -> list[str]:
    if isinstance(data, str):
        return [data]
    if isinstance(data, Mapping):
        return [text for item in data.values() for text in _texts(item)]
    return [text for item in data for text in _texts(item)] if isinstance(data, list | tuple) else []


def _quotable(error: MapoError) -> str:
    """What of an error may be kept: our own words, and an endpoint's status. Its message may quote anything
    of what was asked, and so may the last part of what an unusable answer is told."""
    if isinstance(error, EndpointError):
        ours, tried = _OURS.match(error.problem), _TRIED.search(error.problem)
        told = (ours[0] if ours else "an answer that cannot be read") + (tried[0] if tried else "")
        return str(EndpointError(told, where=error.where, fix=error.fix))
    last = _LAST.search(str(error))
    return str(error).partition(";")[0] + (f" (the last: {last[1]})" if last else "")
