"""The steps that a model does: decontextualise, recontextualise, review. Each is one form, parsed strictly.

An answer that fits its form may still be unusable, because it contains something private or a copied
sentence. The model is then told once what is wrong; after that the item is refused with its reason
(`RefusedError`). Conversations and notes are quoted in the prompts as data, so nothing in them can act as an
instruction.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from string import Template
from typing import Any, TypeVar

from mapo.errors import AnswerError
from mapo.measure.rubric import Rubric
from mapo.models.chat import Chat, Request
from mapo.models.structured import ask
from mapo.realsim.json_schema import TEXT, TRUTH, WHOLE, Schema, checked, example, form, keyed, listed, one_of
from mapo.realsim.reading.read import Conversation
from mapo.realsim.redaction.folding import squeeze
from mapo.realsim.redaction.redact import PLACEHOLDER, Cleaned, clean, leaks
from mapo.sandbox.prompting import fragment, language_of, whole_person
from mapo.sandbox.transcript import block, mark_of, quote
from mapo.scenarios.scenario import Scenario
from mapo.types import Message

MAX_TOKENS = 6000
CHECKS = ("consistent", "fits_levels", "safe", "invented")
NOTES = ("situation", "feelings", "needs", "at_stake", "relations", "history", "speech", "course")
_GRADES = ("low", "medium", "high")
_T = TypeVar("_T")


class RefusedError(Exception):
    """An item is not to be made: `reason` is one word, `detail` quotes nothing private."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, slots=True)
class Step:
    """A model at work for one item in one step (`place`). `anew` counts how often the recorded answer to one
    of its requests was unusable, so that this one is asked anew and what was paid for before is not."""

    chat: Chat
    rubric: Rubric
    language: str
    place: str = ""
    anew: dict[str, int] = field(default_factory=dict)

    def request(self, name: str, schema: Schema, temperature: float, **shown: str) -> Request:
        told = {
            "title": self.rubric.title,
            "axes": "\n".join(f"- {axis.key} ({axis.title}): {axis.asks}" for axis in self.rubric.axes),
            "form": example(schema),
            "language": _language(self.language),
            "domain": fragment(self.rubric.name, name),
        }
        return Request(
            (Message("system", fill(name, **told)), Message("user", fill(f"{name}_ask", **shown))),
            temperature=temperature,
            max_tokens=MAX_TOKENS,
            schema=schema,
            session=f"{name}/{self.place}",
        )

    async def ask(self, request: Request, parse: Callable[[Any], _T], which: str = "first") -> _T:
        """One request of this step, by its own name in the cache."""
        name = f"{self.place}/{which}"
        asked = replace(request, nonce=f"{name}/{self.anew.get(name, 0)}")
        try:
            return await ask(self.chat, asked, parse)
        except AnswerError:
            self.anew[name] = self.anew.get(name, 0) + 1
            raise

    async def settle(
        self, request: Request, parse: Callable[[Any], _T], wrong: Callable[[_T], Sequence[str]], reason: str
    ) -> _T:
        """The answer once nothing is wrong with it; a second one is asked for, then it is refused."""
        first = await self.ask(request, lambda data: (parse(data), data))
        if not (problems := await asyncio.to_thread(wrong, first[0])):
            return first[0]
        shown = Message("assistant", json.dumps(first[1], ensure_ascii=False))
        told = Message("user", fill("again", problems="\n".join(f"- {line}" for line in problems)))
        asked = replace(request, messages=(*request.messages, shown, told))
        second = await self.ask(asked, parse, "again")
        if problems := await asyncio.to_thread(wrong, second):
            raise RefusedError(reason, f"{len(problems)} problems left after a second try")
        return second


def fill(name: str, **values: str) -> str:
    text = files("mapo").joinpath("realsim", "prompts", f"{name}.md").read_text(encoding="utf-8")
    return Template(text).substitute(values).strip()


# ---- decontextualise


@dataclass(frozen=True, slots=True)
class Essence:
    """What was kept of a conversation, and the conversation itself without what the model found too."""

    notes: dict[str, str]
    cleaned: Cleaned
    listed: int


async def decontextualise(step: Step, talk: Conversation, local: Cleaned) -> Essence:
    entry = form(text=TEXT, kind=one_of(("name", "place", "organisation", "handle", "other")))
    schema = keyed({"identifying": listed(entry), "usable": TRUTH, **dict.fromkeys(NOTES, TEXT)})
    mark = mark_of(talk.id, 0)
    pairs = zip(talk.turns, local.texts, strict=True)
    lines = [f"{turn.side}: {quote(text, mark)}" for turn, text in pairs]
    request = step.request(
        "decontextualise", schema, 0.0, mark=mark, conversation=block("conversation", lines, mark)
    )

    def wrong(answer: dict[str, Any]) -> list[str]:
        cleaned = clean(local.texts, known=_believed(answer, local), values=local.values)
        return _told(cleaned, " ".join(answer[key] for key in NOTES))

    answer = await step.settle(request, lambda data: checked(data, schema), wrong, "leak")
    if not answer["usable"]:
        raise RefusedError("unusable", "no person with a concern of their own")
    if empty := [key for key in ("situation", "feelings", "needs") if not answer[key]]:
        raise RefusedError("unusable", f"nothing under {', '.join(empty)}")
    found = _believed(answer, local)
    cleaned = await asyncio.to_thread(clean, local.texts, found, local.values)
    return Essence({key: answer[key] for key in NOTES}, cleaned, len(found))


def _believed(answer: Mapping[str, Any], local: Cleaned) -> list[tuple[str, str]]:
    """What the model lists as identifying, as far as it stands there and is more than a short common word."""
    made = local.values.made
    said = PLACEHOLDER.sub(lambda found: " " if found[0] in made else found[0], "\n".join(local.texts))
    dense = squeeze(said)
    found = []
    for item in answer["identifying"]:
        text = item["text"].strip("\"'“”‘’.,，。 ")
        key = squeeze(text)
        common = text.isascii() and text.islower() and len(key) < 4
        ours = any(found[0] in made for found in PLACEHOLDER.finditer(text))
        if key and key in dense and len(text) <= 200 and not common and not ours:
            found.append((item["kind"], text))
    return found


def _told(cleaned: Cleaned, text: str) -> list[str]:
    """What is private in an answer, as the model is told; it wrote these words itself."""
    found = [f'"{value}" may not occur' for value in leaks(cleaned.values, text)]
    return [*found, *(["marks like [name 1] may not occur"] if PLACEHOLDER.search(text) else [])]


# ---- recontextualise


def scenario_schema(rubric: Rubric, categories: Sequence[str]) -> Schema:
    """The part of a scenario that is invented; axes from the rubric, categories as given or free."""
    beat = {"says": listed(TEXT)}
    return form(
        persona=form(name=TEXT, age=WHOLE, traits=listed(TEXT), speech=TEXT, background=TEXT),
        topic=TEXT,
        category=one_of(categories) if categories else TEXT,
        opening=TEXT,
        wants_to_say=TEXT,
        hopes_for=TEXT,
        threshold=one_of(_GRADES),
        priorities=keyed(dict.fromkeys(rubric.keys, one_of(_GRADES))),
        stages=listed(form(kind=one_of(("start", "turn", "outburst", "outcome")), title=TEXT, **beat)),
        memories=listed(form(period=one_of(("childhood", "youth", "adulthood", "recent")), **beat)),
        guarded=listed(TEXT),
        eased=listed(TEXT),
    )


async def recontextualise(
    step: Step,
    case: str,
    essence: Essence,
    build: Callable[[dict[str, Any]], Scenario],
    problems: Callable[[Scenario], list[str]],
    categories: Sequence[str],
) -> Scenario:
    """An invented person in the state of the notes; `build` makes a scenario of the form, or raises
    InputError, and `problems` says what is wrong with it."""
    schema = scenario_schema(step.rubric, categories)
    mark = mark_of(case, 1)
    notes = [quote(json.dumps(essence.notes, ensure_ascii=False), mark)]
    request = step.request("recontextualise", schema, 1.0, mark=mark, notes=block("notes", notes, mark))

    def wrong(scenario: Scenario) -> list[str]:
        return [*_told(essence.cleaned, all_text(scenario)), *problems(scenario)]

    return await step.settle(request, lambda data: build(checked(data, schema)), wrong, "invalid")


def all_text(scenario: Scenario) -> str:
    """Every word of a scenario, names and titles too."""
    who = scenario.persona
    titles = [stage.title for stage in scenario.stages]
    return "\n".join([who.name, *who.traits, who.speech, scenario.category, *titles, scenario.text()])


# ---- review


async def review(step: Step, scenario: Scenario) -> None:
    """A model's look at the whole; RefusedError with what it found."""
    schema = keyed({name: form(fine=TRUTH, problem=TEXT) for name in CHECKS})
    mark = mark_of(scenario.id, 2)
    file = block("file", [quote(whole_person(scenario, step.rubric), mark)], mark)
    means = {item.key: item for item in step.rubric.indicators}
    levels = "\n".join(
        f"{means[key].title}: {means[key].means[level]}" for key, level in scenario.start_levels.items()
    )
    request = step.request("review", schema, 0.0, mark=mark, file=file, levels=levels or "(nothing)")
    answer = await step.ask(request, lambda data: checked(data, schema))
    if failed := [name for name in CHECKS if not answer[name]["fine"]]:
        raise RefusedError("unsafe" if "safe" in failed else "inconsistent", f"not {', '.join(failed)}")


def _language(code: str) -> str:
    from mapo.scenarios.scenario import Persona

    return language_of(Scenario("x", Persona("x"), "", "x", language=code))
