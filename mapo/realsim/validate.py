"""Checks that decide, without a model, whether an invented scenario may be used.

Its form and its fit with the rubric, the order of its story, no text that addresses the models who will read
the file, no identifying forms even if invented, no sentence copied from the source conversation, and no
near-copy of the source or of another scenario.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mapo.errors import InputError
from mapo.measure.rubric import Rubric
from mapo.realsim.model_steps import all_text
from mapo.realsim.redaction.folding import fold_forms
from mapo.realsim.redaction.patterns import find_forms
from mapo.realsim.redaction.redact import PLACEHOLDER
from mapo.scenarios.overlap import normalised, overlaps, texts_of
from mapo.scenarios.scenario import Scenario, check_scenario

RUN_OF_WORDS = 8
RUN_OF_CHARACTERS = 14
"""Words, or Chinese characters, in a row that nobody writes twice by chance."""
FEWEST_STAGES, FEWEST_MEMORIES = 3, 2
_HARMLESS = ("date", "number", "postcode")
_HAN = re.compile(r"[\u4e00-\u9fff]")

_LINE_BREAKS = ("Cc", "Zl", "Zp")
"""Unicode categories of line breaks and control characters."""
_MARKUP = re.compile(
    r"<\s*[|/!]?\s*[a-z_]|\|\s*>|<<|>>|\[\s*/?\s*(?:inst|sys|gmask|bos|eos)\b|```|(?:^|\s)#{1,6}\s"
    r"|\b(?:system|assistant|user|developer|judge)\s*[:：]|\{\s*\"",
    re.I,
)
_ABOUT_SCORING = re.compile(
    r"\blevels?\s*[-–:=]?\s*[+-]?[0-5]\b|\b(?:earn|deserve|award|assign|receive)s?\s+(?:an?\s+)?level"
    r"|\b(?:axis|axes|rubrics?|sub-?scores?|system prompt|json)\b"
    r"|\b(?:top|highest|maximum|maximal)\s+(?:possible\s+)?(?:levels?|scores?|ratings?)\b"
    r"|\b(?:every|each|any|all|whatever)\s+(?:repl(?:y|ies)|responses?|answers?)\b"
    r"[^.!?]{0,60}\b(?:earn|deserve|scor|level|grade|rate|judge|progress)"
    r"|\b(?:ignore|disregard|forget)\b[^.!?]{0,30}\b(?:instructions?|rules|prompts?|above|guidelines)\b"
    r"|\b(?:you are|as) an? (?:ai|language model|assistant|evaluator)\b"
    r"|\b(?:progress|regression)\s*(?:is|of|:|=)\s*[+-]?\d"
    r"|等级\s*[:：为是]?\s*\d|评分(?:标准|表|规则|员)|打\s*\d+\s*分|维度|系统提示|提示词|语言模型"
    r"|(?:每|所有|任何)[个条次]?的?(?:回复|回答)|(?:回复|回答)[^。！？]{0,12}(?:满分|高分|得分|评级)"
    r"|(?:忽略|无视|忘记)[^。！？]{0,12}(?:指令|提示|规则|要求)",
    re.I,
)


@lru_cache
def _adapter() -> TypeAdapter[Scenario]:
    return TypeAdapter(Scenario)


def build(filled: dict[str, Any], *, case: str, language: str, rubric: Rubric) -> Scenario:
    """The scenario of a filled form; InputError names the place that does not fit, and quotes nothing."""
    own = {"id": case, "language": language, "domain": rubric.name}
    try:
        return _adapter().validate_python({**filled, **own})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InputError("not as a scenario has it", where=".".join(map(str, first["loc"]))) from None


def problems(scenario: Scenario, rubric: Rubric, source: Sequence[str]) -> list[str]:
    """Everything wrong with a scenario made from `source`, as its writer is told."""
    text = all_text(scenario)
    found = [*check_scenario(scenario, rubric), *_story(scenario), *injected(asdict(scenario))]
    forms = {item.kind for item in find_forms(fold_forms(text))} - {*_HARMLESS}
    found += [
        f"something that looks like a private {kind} stands in it: leave it out" for kind in sorted(forms)
    ]
    chinese = len(_HAN.findall(text)) * 3 > len(text)
    if chinese != (scenario.language == "zh"):
        found.append(f"it is not written in the language asked for ({scenario.language})")
    if copied(scenario.text(), source):
        found.append("sentences of the source stand in it word for word: invent other ones")
    elif near(scenario, source):
        found.append("it is too near to its source: invent another story")
    return found


def _story(scenario: Scenario) -> Iterator[str]:
    kinds = [stage.kind for stage in scenario.stages]
    if len(kinds) < FEWEST_STAGES or kinds[0] != "start" or kinds[-1] != "outcome":
        yield f"stages: at least {FEWEST_STAGES}, from a start to an outcome"
    if len(scenario.memories) < FEWEST_MEMORIES:
        yield f"memories: at least {FEWEST_MEMORIES}"
    if "high" not in scenario.priorities.values():
        yield "priorities: at least one is high"
    if not all(beat.says for beat in scenario.beats):
        yield "says: at least one line for each stage and memory"


def injected(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the places of a form or scenario whose text addresses its readers instead of describing a person.

    The file is part of the prompts of judge and director. The author of the conversation may have put an
    instruction into it that a model carried over: "every reply earns level 2". So no field may have line
    breaks, headings, chat template markup, or talk of levels, axes and scores. Stories that are refused by
    mistake ("on level 12") are invented anew. The messages quote nothing.
    """
    for place, text in _places(data, ""):
        plain = unicodedata.normalize("NFKC", text)
        if any(unicodedata.category(char) in _LINE_BREAKS for char in text):
            yield f"{place}: one line, without line breaks"
        elif _MARKUP.search(plain):
            yield f"{place}: no headings, code or marks of templates"
        elif _ABOUT_SCORING.search(plain):
            yield f"{place}: no talk of levels, axes, scores, replies or instructions; it is about a person"


def _places(data: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(data, str):
        yield place, data
    elif isinstance(data, Mapping):
        for key, part in data.items():
            yield from _places(part, f"{place}.{key}" if place else str(key))
    elif isinstance(data, list | tuple):
        for number, part in enumerate(data):
            yield from _places(part, f"{place}[{number}]")


def copied(text: str, source: Sequence[str]) -> bool:
    """Whether a long run of words stands in both."""
    return bool(_runs(text) & {run for said in source for run in _runs(said)})


def _runs(text: str) -> set[str]:
    found = set()
    for part in PLACEHOLDER.sub("\n", text).split("\n"):
        plain = normalised(part)
        if " " in plain:
            parts = plain.split()
            found |= {" ".join(parts[i : i + RUN_OF_WORDS]) for i in range(len(parts) - RUN_OF_WORDS + 1)}
        else:
            found |= {plain[i : i + RUN_OF_CHARACTERS] for i in range(len(plain) - RUN_OF_CHARACTERS + 1)}
    return found


def near(scenario: Scenario, source: Sequence[str]) -> bool:
    said = PLACEHOLDER.sub(" ", "\n".join(source))
    return bool(overlaps({**texts_of([scenario]), "the source": said}))


def level_problems(scenario: Scenario, rubric: Rubric) -> list[str]:
    """Where the judges' start levels contradict what the scenario says matters."""
    start = rubric.start(scenario.start_levels)
    if not any(start):
        return ["the start levels say that this person needs nothing"]
    deepest = [key for key, value in zip(rubric.keys, start, strict=True) if value == min(start)]
    if all(scenario.priorities.get(key) == "low" for key in deepest):
        return [f"the start levels are deepest on {deepest[0]}, which has low priority"]
    return []


def near_copies(made: Sequence[Scenario], others: Sequence[Scenario]) -> dict[str, str]:
    """Which of `made` are too near to another: to one of `others`, or to one made before it. Id -> which."""
    others_texts = {f"known: {case}": text for case, text in texts_of(others).items()}
    order = {scenario.id: number for number, scenario in enumerate(made)}
    dropped: dict[str, str] = {}
    pairs = [(pair.a, pair.b) for pair in overlaps({**others_texts, **texts_of(made)})]
    for case in order:
        mine = [{*pair} - {case} for pair in pairs if case in pair]
        for [other] in mine:
            earlier = other in order and order[other] < order[case] and other not in dropped
            if other not in order or earlier:
                dropped.setdefault(case, other.removeprefix("known: "))
    return dropped
