"""Conversion of conversations to scenarios, one item at a time, resumable at any point.

OUT/manifest.json      settings; a resume must use the same
    source.jsonl       id, file number and line of each conversation, without its text
    1-local/ID.json    the redacted conversation
    2-decontextualised/ID.json   notes on the person's state
    3-recontextualised/ID.json   the invented scenario
    4-levels/ID.json   all start forms, and their agreement
    scenarios/ID.toml  scenarios that passed all checks
    items.jsonl        one line per item: made, or refused with the reason
    report.json        counts by kind, refusals, failures, agreement, problems of the input
    ledger.json        calls, tokens, cost by role
    private.sqlite     all model calls, for resuming without paying twice; deleted at the end
    private.key        key for recognising the input files; deleted at the end

Model answers may contain private data that the local redaction missed. They are stored separately while they
are needed; everything else is checked against all private values before it is written.
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
from mapo.evals.items import ItemLine, PartialItemError
from mapo.measure.rubric import Rubric
from mapo.models.chat import Chat
from mapo.realsim.levels import FORMS, TEMPERATURE, fill_start
from mapo.realsim.model_steps import (
    MAX_FAULTS,
    CaseNotes,
    ModelStep,
    RefusedError,
    decontextualise,
    recontextualise,
    review,
    text_fields,
)
from mapo.realsim.reading.read import WINDOW, Conversation
from mapo.realsim.redaction.redact import Redacted, leaks, redact
from mapo.realsim.redaction.vocabulary import SHORT, ordinary
from mapo.realsim.validate import build, level_problems, scenario_faults
from mapo.runs.claim import digest
from mapo.scenarios.scenario import Scenario
from mapo.store import MAKE_STEPS, write_atomic

STEPS = MAKE_STEPS
_OURS = re.compile(
    r"HTTP \d{3}|no answer within [\d.e+]+ s|no connection|an empty answer|no text within max_tokens=\d+"
    r"(?:: the model spent all of it on thinking)?|no recorded answer for this request"
)
"""Beginnings of error messages written by this package; what follows may come from an endpoint and quote
the request."""
_LAST = re.compile(
    r"; the last: ((?:the form[\w.\[\]]*: )?(?:not JSON|it was empty|it was cut off after \d+ tokens"
    r"|missing [\w, ]+|not an object|not a list of at most \d+ entries|not a text of at most \d+ characters"
    r"|not one of the choices|\d+ unknown keys|not true or false|not an integer))"
)
"""Descriptions of unusable answers written by this package; they name only keys of the form."""
_TRIED = re.compile(r" \(after \d+ attempts\)$")


@dataclass(frozen=True, slots=True)
class MakeSettings:
    """Settings of a run. An empty `language` means the language of each conversation."""

    rubric: Rubric
    categories: tuple[str, ...] = ()
    language: str = ""
    forms: int = FORMS
    temperature: float = TEMPERATURE
    window: int = WINDOW
    reviewed: bool = True
    keep_raw: bool = False

    def manifest(self, source: Mapping[str, Any], models: Mapping[str, str]) -> dict[str, Any]:
        """Return the settings that a resumed run must share; `source` holds the fingerprints of its input."""
        return {
            "schema": "mapo.realsim/1",
            **source,
            "rubric": f"{self.rubric.name} {digest(self.rubric.measure)}",
            "models": dict(models),
            **{key: value for key, value in asdict(self).items() if key != "rubric"},
            "categories": list(self.categories),
        }


@dataclass(frozen=True, slots=True)
class ScenarioMaker:
    """Makes scenarios in `out`. The model `maker` writes; `judge` fills in start forms and reviews. `failed`
    holds the lines of items that failed earlier, with the requests to repeat."""

    out: Path
    settings: MakeSettings
    maker: Chat
    judge: Chat
    failed: Mapping[str, ItemLine] = field(default_factory=dict)

    async def solve(self, conversation: Conversation, attempt: int) -> Mapping[str, Any]:
        """Return the line of one item; see `mapo.evals.items`."""
        del attempt  # the line says which requests failed, which is more precise
        retries: dict[str, int] = dict(self.failed.get(conversation.id, {}).get("anew", {}))
        local = await asyncio.to_thread(redact_locally, conversation)
        item = _Item(self, conversation, local, retries)
        details = {"kinds": dict(local.counts), "cut": conversation.cut}
        try:
            return {"verdict": "made", **await item.run(), **details}
        except RefusedError as refusal:
            reasons = {"reason": refusal.reason, "detail": refusal.detail, "step": item.step}
            return {"verdict": "refused", **reasons, **details}
        except (AnswerError, EndpointError, ContextError) as error:
            problem = type(error)(f"{item.step}: {_quotable(error)}")
            raise PartialItemError({"anew": retries, **details}, problem) from None


@dataclass(slots=True)
class _Item:
    """One conversation being processed; `step` is the current step. `retries` counts, by request, how often
    the recorded answer was unusable: only those requests are repeated."""

    maker: ScenarioMaker
    conversation: Conversation
    local: Redacted
    retries: dict[str, int]
    step: str = STEPS[0]

    async def run(self) -> dict[str, Any]:
        """Do all steps and return what the item's line holds."""
        settings, case = self.maker.settings, self.conversation.id
        self.step = STEPS[1]
        notes = await decontextualise(self._model_step(self.maker.maker), self.conversation, self.local)
        turns = await asyncio.to_thread(redacted_turns, self.conversation, notes.redacted)
        counts = {"found": dict(self.local.counts), "listed": notes.listed}
        self._write(STEPS[0], {"turns": turns, **counts}, notes)
        self._write(STEPS[1], notes.notes, notes)
        self.step = STEPS[2]
        scenario = await self._invent(notes)
        self._write(STEPS[2], asdict(scenario), notes)
        self.step = STEPS[3]
        start = await fill_start(
            self.maker.judge,
            scenario,
            settings.rubric,
            forms=settings.forms,
            temperature=settings.temperature,
            retries=self.retries,
        )
        levels = {"given": start.given, "agreement": start.agreement, "missing": start.missing}
        self._write(STEPS[3], levels, notes)
        scenario = with_levels(scenario, start.levels, settings.rubric)
        if contradictions := level_problems(scenario, settings.rubric):
            raise RefusedError("inconsistent", "; ".join(contradictions))
        self.step = "review"
        if settings.reviewed:
            await review(self._model_step(self.maker.judge), scenario)
        return {"scenario": {**asdict(scenario), "id": case}, "given": start.given, "listed": notes.listed}

    async def _invent(self, notes: CaseNotes) -> Scenario:
        settings, source = self.maker.settings, notes.redacted.texts
        language = self._language()

        def build_scenario(form: dict[str, Any]) -> Scenario:
            return build(form, case=self.conversation.id, language=language, rubric=settings.rubric)

        return await recontextualise(
            self._model_step(self.maker.maker),
            self.conversation.id,
            notes,
            build_scenario,
            lambda scenario: scenario_faults(scenario, settings.rubric, source),
            settings.categories,
        )

    def _model_step(self, chat: Chat) -> ModelStep:
        return ModelStep(
            chat,
            self.maker.settings.rubric,
            self._language(),
            f"{self.conversation.id}/{self.step}",
            self.retries,
        )

    def _language(self) -> str:
        return self.maker.settings.language or language_in([turn.text for turn in self.conversation.turns])

    def _write(self, step: str, data: Mapping[str, Any], notes: CaseNotes) -> None:
        """Write the result of a step. Raise RefusedError if it contains a private value."""
        text = json.dumps({"id": self.conversation.id, **data}, ensure_ascii=False, indent=1)
        fields = dict(text_fields(data))
        if leaks(notes.redacted.values, " ".join(fields.values())):
            names = [name for name, part in fields.items() if leaks(notes.redacted.values, part)]
            where = ", ".join(names[:MAX_FAULTS]) or "several fields together"
            raise RefusedError("leak", f"private values in the result of {step}: {where}")
        write_atomic(self.maker.out / step / f"{self.conversation.id}.json", text + "\n")


def redact_locally(conversation: Conversation) -> Redacted:
    """Redact a conversation without a model. Names of speakers count as private, unless they are ordinary
    words like "Husband"."""
    names = [name for name in conversation.speakers if not ordinary(name.casefold()) or len(name) < SHORT]
    return redact([turn.text for turn in conversation.turns], known=[("name", name) for name in names])


def redacted_turns(conversation: Conversation, redacted: Redacted) -> list[dict[str, str]]:
    """Return the turns with placeholders; a turn that still contains a private value is withheld."""
    return [
        {"side": turn.side, "text": "(withheld)" if leaks(redacted.values, text) else text}
        for turn, text in zip(conversation.turns, redacted.texts, strict=True)
    ]


def with_levels(scenario: Scenario, levels: Mapping[str, int], rubric: Rubric) -> Scenario:
    """Return the scenario with its start levels, and the axis and difficulty that follow from them."""
    start = rubric.start(levels)
    axis = rubric.keys[start.index(min(start))]
    return replace(scenario, start_levels=dict(levels), axis=axis, difficulty=rubric.difficulty_of(start))


def language_in(texts: Sequence[str]) -> str:
    """Return "zh" if over a third of the letters are Chinese, else "en"; no other language is detected."""
    letters = [char for text in texts for char in text if char.isalpha()]
    return "zh" if sum("\u4e00" <= char <= "\u9fff" for char in letters) * 3 > len(letters) else "en"


def _quotable(error: MapoError) -> str:
    """Return the part of an error message that may be stored: text of this package and an endpoint's status.
    An endpoint's message, and the description of an unusable answer, may quote the request."""
    if isinstance(error, EndpointError):
        known, attempts = _OURS.match(error.problem), _TRIED.search(error.problem)
        message = (known[0] if known else "an unreadable answer") + (attempts[0] if attempts else "")
        return str(EndpointError(message, where=error.where, fix=error.fix))
    last = _LAST.search(str(error))
    return str(error).partition(";")[0] + (f" (the last: {last[1]})" if last else "")
