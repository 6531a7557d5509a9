"""The steps done by a model: decontextualise, recontextualise, review. Each is one form, parsed strictly.

An answer that fits its form may still be unusable, because it contains something private or a copied
sentence. The model is then asked once more with a list of the faults; after that the item is refused
(`RefusedError`) with the fields at fault and the reasons. Conversations and notes are quoted in the prompts
as data, so nothing in them can act as an instruction.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from string import Template
from typing import Any, NamedTuple, TypeVar

from mapo.errors import AnswerError
from mapo.measure.rubric import Rubric
from mapo.models.chat import Chat, Request
from mapo.models.structured import ask
from mapo.realsim.json_schema import (
    BOOLEAN,
    INTEGER,
    TEXT,
    Schema,
    check_form,
    example,
    form,
    form_from,
    list_of,
    one_of,
)
from mapo.realsim.reading.read import Conversation
from mapo.realsim.redaction.folding import squeeze
from mapo.realsim.redaction.redact import PLACEHOLDER, Redacted, leaks, redact
from mapo.sandbox.prompting import fragment, full_persona, language_of
from mapo.sandbox.transcript import block, delimiter_of, quote
from mapo.scenarios.scenario import Scenario
from mapo.types import Message

MAX_TOKENS = 6000
MAX_FAULTS = 5
"""Faults of a refused item that are listed."""
CHECKS = ("consistent", "fits_levels", "safe", "invented")
_CHECK_FAILURES = {
    "consistent": "the reviewer found contradictions in the story",
    "fits_levels": "the reviewer found that the start levels do not fit the story",
    "safe": "the reviewer found unsafe content",
    "invented": "the reviewer found something that points to a real person",
}
NOTES = ("situation", "feelings", "needs", "at_stake", "relations", "history", "speech", "course")
_GRADES = ("low", "medium", "high")
_T = TypeVar("_T")


class RefusedError(Exception):
    """A conversation cannot become a scenario. `reason` is one word; `detail` quotes nothing private."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail


class Fault(NamedTuple):
    """A fault in a model's answer: `message` for the model, which may quote its answer, and `public` for the
    report, which quotes nothing."""

    message: str
    public: str


def plain_fault(text: str) -> Fault:
    """Return a fault whose message quotes nothing."""
    return Fault(text, text)


@dataclass(frozen=True, slots=True)
class ModelStep:
    """Requests to a model for one item and step (`place`). `retries` counts, by request, how often the
    recorded answer was unusable: only those requests are sent again, the others are served from the cache."""

    chat: Chat
    rubric: Rubric
    language: str
    place: str = ""
    retries: dict[str, int] = field(default_factory=dict)

    def request(self, name: str, schema: Schema, temperature: float, **values: str) -> Request:
        """Return the request for a form, from the prompts of that name."""
        system = {
            "title": self.rubric.title,
            "axes": "\n".join(f"- {axis.key} ({axis.title}): {axis.asks}" for axis in self.rubric.axes),
            "form": example(schema),
            "language": _language(self.language),
            "domain": fragment(self.rubric.name, name),
        }
        return Request(
            (Message("system", fill(name, **system)), Message("user", fill(f"{name}_ask", **values))),
            temperature=temperature,
            max_tokens=MAX_TOKENS,
            schema=schema,
            session=f"{name}/{self.place}",
        )

    async def ask(self, request: Request, parse: Callable[[Any], _T], which: str = "first") -> _T:
        """Send a request under its own name in the cache, and parse the answer."""
        name = f"{self.place}/{which}"
        named = replace(request, nonce=f"{name}/{self.retries.get(name, 0)}")
        try:
            return await ask(self.chat, named, parse)
        except AnswerError:
            self.retries[name] = self.retries.get(name, 0) + 1
            raise

    async def settle(
        self,
        request: Request,
        parse: Callable[[Any], _T],
        check: Callable[[_T], Sequence[Fault]],
        reason: str,
    ) -> _T:
        """Return an answer without faults. Ask a second time if the first has any; then refuse the item."""
        first = await self.ask(request, lambda data: (parse(data), data))
        if not (faults := await asyncio.to_thread(check, first[0])):
            return first[0]
        answer = Message("assistant", json.dumps(first[1], ensure_ascii=False))
        correction = fill("again", problems="\n".join(f"- {fault.message}" for fault in faults))
        messages = (*request.messages, answer, Message("user", correction))
        second = await self.ask(replace(request, messages=messages), parse, "again")
        if faults := await asyncio.to_thread(check, second):
            raise RefusedError(reason, _public(faults))
        return second


def _public(faults: Sequence[Fault]) -> str:
    texts = list(dict.fromkeys(fault.public for fault in faults))
    more = [f"and {len(texts) - MAX_FAULTS} more"] if len(texts) > MAX_FAULTS else []
    return "; ".join([*texts[:MAX_FAULTS], *more])


def fill(name: str, **values: str) -> str:
    """Return a prompt with its placeholders filled in."""
    text = files("mapo").joinpath("realsim", "prompts", f"{name}.md").read_text(encoding="utf-8")
    return Template(text).substitute(values).strip()


# ---- decontextualise


@dataclass(frozen=True, slots=True)
class CaseNotes:
    """Notes on a conversation, and the conversation redacted of what the model listed as identifying."""

    notes: dict[str, str]
    redacted: Redacted
    listed: int


async def decontextualise(step: ModelStep, conversation: Conversation, local: Redacted) -> CaseNotes:
    """Return notes on the person's state without anything that identifies them."""
    entry = form(text=TEXT, kind=one_of(("name", "place", "organisation", "handle", "other")))
    schema = form_from({"identifying": list_of(entry), "usable": BOOLEAN, **dict.fromkeys(NOTES, TEXT)})
    mark = delimiter_of(conversation.id, 0)
    pairs = zip(conversation.turns, local.texts, strict=True)
    lines = [f"{turn.side}: {quote(text, mark)}" for turn, text in pairs]
    request = step.request(
        "decontextualise", schema, 0.0, mark=mark, conversation=block("conversation", lines, mark)
    )

    def check(answer: dict[str, Any]) -> list[Fault]:
        redacted = redact(local.texts, known=_confirmed(answer, local), values=local.values)
        return private_faults(redacted, {key: answer[key] for key in NOTES})

    answer = await step.settle(request, lambda data: check_form(data, schema), check, "leak")
    if not answer["usable"]:
        raise RefusedError("unusable", "the model found no person with a concern in the conversation")
    if empty := [key for key in ("situation", "feelings", "needs") if not answer[key]]:
        raise RefusedError("unusable", f"the model left these notes empty: {', '.join(empty)}")
    listed = _confirmed(answer, local)
    redacted = await asyncio.to_thread(redact, local.texts, listed, local.values)
    return CaseNotes({key: answer[key] for key in NOTES}, redacted, len(listed))


def _confirmed(answer: Mapping[str, Any], local: Redacted) -> list[tuple[str, str]]:
    """Return what the model listed as identifying, if it occurs in the conversation and is more than a short
    common word."""
    made = local.values.made
    text = PLACEHOLDER.sub(lambda match: " " if match[0] in made else match[0], "\n".join(local.texts))
    dense = squeeze(text)
    confirmed = []
    for item in answer["identifying"]:
        text = item["text"].strip("\"'“”‘’.,，。 ")
        key = squeeze(text)
        common = text.isascii() and text.islower() and len(key) < 4
        ours = any(match[0] in made for match in PLACEHOLDER.finditer(text))
        if key and key in dense and len(text) <= 200 and not common and not ours:
            confirmed.append((item["kind"], text))
    return confirmed


def private_faults(redacted: Redacted, fields: Mapping[str, str]) -> list[Fault]:
    """Return the private values and placeholders in an answer, with the field each one occurs in."""
    values = redacted.values
    kinds = {written: values.kinds[key] for key, written in values.written.items()}
    faults, located = [], set()
    leaked = leaks(values, " ".join(fields.values()))
    for name, text in fields.items() if leaked else ():
        for value in leaks(values, text):
            located.add(value)
            public = f"{name}: contains a private value of the conversation ({kinds.get(value, 'other')})"
            faults.append(Fault(f'{name}: "{value}" may not occur', public))
    for value in leaked:
        if value not in located:
            public = f"a private value of the conversation ({kinds.get(value, 'other')}) spans several fields"
            faults.append(Fault(f'"{value}" may not occur', public))
    faults += [
        Fault(f"{name}: marks like [name 1] may not occur", f"{name}: contains a placeholder like [name 1]")
        for name, text in fields.items()
        if PLACEHOLDER.search(text)
    ]
    return faults


# ---- recontextualise


def scenario_schema(rubric: Rubric, categories: Sequence[str]) -> Schema:
    """Return the schema of an invented scenario; without `categories`, any category is allowed."""
    beat = {"says": list_of(TEXT)}
    return form(
        persona=form(name=TEXT, age=INTEGER, traits=list_of(TEXT), speech=TEXT, background=TEXT),
        topic=TEXT,
        category=one_of(categories) if categories else TEXT,
        opening=TEXT,
        wants_to_say=TEXT,
        hopes_for=TEXT,
        threshold=one_of(_GRADES),
        priorities=form_from(dict.fromkeys(rubric.keys, one_of(_GRADES))),
        stages=list_of(form(kind=one_of(("start", "turn", "outburst", "outcome")), title=TEXT, **beat)),
        memories=list_of(form(period=one_of(("childhood", "youth", "adulthood", "recent")), **beat)),
        guarded=list_of(TEXT),
        eased=list_of(TEXT),
    )


async def recontextualise(
    step: ModelStep,
    case: str,
    notes: CaseNotes,
    build: Callable[[dict[str, Any]], Scenario],
    check_story: Callable[[Scenario], list[Fault]],
    categories: Sequence[str],
) -> Scenario:
    """Return an invented scenario with a person in the state of the notes. `build` makes a scenario from the
    form or raises InputError; `check_story` returns its faults."""
    schema = scenario_schema(step.rubric, categories)
    mark = delimiter_of(case, 1)
    lines = [quote(json.dumps(notes.notes, ensure_ascii=False), mark)]
    request = step.request("recontextualise", schema, 1.0, mark=mark, notes=block("notes", lines, mark))

    def check(scenario: Scenario) -> list[Fault]:
        return [
            *private_faults(notes.redacted, dict(text_fields(invented_part(scenario)))),
            *check_story(scenario),
        ]

    return await step.settle(request, lambda data: build(check_form(data, schema)), check, "invalid")


def invented_part(scenario: Scenario) -> dict[str, Any]:
    """Return the fields of a scenario that the model wrote."""
    fixed = ("id", "domain", "language", "threshold", "priorities")
    return {key: value for key, value in asdict(scenario).items() if key not in fixed}


def text_fields(data: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield name and text of every text in nested data, such as ("stages[0].title", "...")."""
    if isinstance(data, str):
        yield name, data
    elif isinstance(data, Mapping):
        for key, part in data.items():
            yield from text_fields(part, f"{name}.{key}" if name else str(key))
    elif isinstance(data, list | tuple):
        for number, part in enumerate(data):
            yield from text_fields(part, f"{name}[{number}]")


def all_text(scenario: Scenario) -> str:
    """Return every word of a scenario, including names and titles."""
    who = scenario.persona
    titles = [stage.title for stage in scenario.stages]
    return "\n".join([who.name, *who.traits, who.speech, scenario.category, *titles, scenario.text()])


# ---- review


async def review(step: ModelStep, scenario: Scenario) -> None:
    """Have a model check the whole scenario. Raise RefusedError with the checks that failed."""
    schema = form_from({name: form(fine=BOOLEAN, problem=TEXT) for name in CHECKS})
    mark = delimiter_of(scenario.id, 2)
    file = block("file", [quote(full_persona(scenario, step.rubric), mark)], mark)
    means = {item.key: item for item in step.rubric.indicators}
    levels = "\n".join(
        f"{means[key].title}: {means[key].means[level]}" for key, level in scenario.start_levels.items()
    )
    request = step.request("review", schema, 0.0, mark=mark, file=file, levels=levels or "(nothing)")
    answer = await step.ask(request, lambda data: check_form(data, schema))
    if failed := [name for name in CHECKS if not answer[name]["fine"]]:
        failures = "; ".join(_CHECK_FAILURES[name] for name in failed)
        raise RefusedError("unsafe" if "safe" in failed else "inconsistent", failures)


def _language(code: str) -> str:
    from mapo.scenarios.scenario import Persona

    return language_of(Scenario("x", Persona("x"), "", "x", language=code))
