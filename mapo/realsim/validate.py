"""Checks of an invented scenario that need no model.

They cover its form and fit with the rubric, the order of its story, text that addresses the models that will
read the file, identifying forms even if invented, sentences copied from the source conversation, and
similarity to the source or to another scenario.
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
from mapo.realsim.model_steps import Fault, all_text, invented_part, plain_fault, text_fields
from mapo.realsim.redaction.folding import fold_forms
from mapo.realsim.redaction.patterns import find_forms
from mapo.realsim.redaction.redact import PLACEHOLDER
from mapo.scenarios.overlap import normalised, overlaps, texts_of
from mapo.scenarios.scenario import Scenario, check_scenario

RUN_OF_WORDS = 8
RUN_OF_CHARACTERS = 14
"""Number of consecutive words, or Chinese characters, that do not coincide by chance."""
MIN_STAGES, MIN_MEMORIES = 3, 2
_QUOTED = re.compile(r"'.*'", re.S)
"""Text quoted by `check_scenario`; it may be from the conversation."""
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
    """Return the scenario of a filled-in form. Raise InputError naming the field that does not fit, without
    quoting it."""
    fixed = {"id": case, "language": language, "domain": rubric.name}
    try:
        return _adapter().validate_python({**filled, **fixed})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InputError(
            "the field does not fit a scenario", where=".".join(map(str, first["loc"]))
        ) from None


def scenario_faults(scenario: Scenario, rubric: Rubric, source: Sequence[str]) -> list[Fault]:
    """Return the faults of a scenario made from the conversation `source`."""
    text = all_text(scenario)
    faults = [Fault(problem, _QUOTED.sub("(...)", problem)) for problem in check_scenario(scenario, rubric)]
    faults += map(plain_fault, [*_story(scenario), *injected(asdict(scenario))])
    fields = dict(text_fields(invented_part(scenario)))
    for name, part in fields.items():
        kinds = {item.kind for item in find_forms(fold_forms(part))} - {*_HARMLESS}
        faults += [plain_fault(f"{name}: remove what looks like a private {kind}") for kind in sorted(kinds)]
    chinese = len(_HAN.findall(text)) * 3 > len(text)
    if chinese != (scenario.language == "zh"):
        faults.append(plain_fault(f"it is not written in the requested language ({scenario.language})"))
    if copied(scenario.text(), source):
        names = [name for name, part in fields.items() if copied(part, source)] or ["the story"]
        faults += [
            plain_fault(f"{name}: copies the conversation word for word; rewrite it") for name in names
        ]
    elif similar(scenario, source):
        faults.append(plain_fault("the story is too similar to the conversation; invent another one"))
    return faults


def _story(scenario: Scenario) -> Iterator[str]:
    kinds = [stage.kind for stage in scenario.stages]
    if len(kinds) < MIN_STAGES or kinds[0] != "start" or kinds[-1] != "outcome":
        yield f"stages: at least {MIN_STAGES} are needed, from a start to an outcome"
    if len(scenario.memories) < MIN_MEMORIES:
        yield f"memories: at least {MIN_MEMORIES} are needed"
    if "high" not in scenario.priorities.values():
        yield "priorities: at least one must be high"
    if not all(beat.says for beat in scenario.beats):
        yield "says: every stage and memory needs at least one line"


def injected(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the places of a form or scenario whose text addresses its readers instead of describing a person.

    The file is part of the prompts of judge and director. The author of the conversation may have put an
    instruction into it that a model carried over: "every reply earns level 2". So no field may have line
    breaks, headings, chat template markup, or talk of levels, axes and scores. Stories that are refused by
    mistake ("on level 12") are invented anew. The messages quote nothing.
    """
    for place, text in text_fields(data):
        plain = unicodedata.normalize("NFKC", text)
        if any(unicodedata.category(char) in _LINE_BREAKS for char in text):
            yield f"{place}: must be one line, without line breaks"
        elif _MARKUP.search(plain):
            yield f"{place}: must not contain headings, code or chat template markup"
        elif _ABOUT_SCORING.search(plain):
            yield (
                f"{place}: must be about a person, not about levels, axes, scores, replies or instructions"
            )


def copied(text: str, source: Sequence[str]) -> bool:
    """Return whether a long run of words occurs in both the text and the source."""
    return bool(_runs(text) & {run for message in source for run in _runs(message)})


def _runs(text: str) -> set[str]:
    runs = set()
    for part in PLACEHOLDER.sub("\n", text).split("\n"):
        plain = normalised(part)
        if " " in plain:
            parts = plain.split()
            runs |= {" ".join(parts[i : i + RUN_OF_WORDS]) for i in range(len(parts) - RUN_OF_WORDS + 1)}
        else:
            runs |= {plain[i : i + RUN_OF_CHARACTERS] for i in range(len(plain) - RUN_OF_CHARACTERS + 1)}
    return runs


def similar(scenario: Scenario, source: Sequence[str]) -> bool:
    """Return whether a scenario is a near-duplicate of the conversation it was made from."""
    text = PLACEHOLDER.sub(" ", "\n".join(source))
    return bool(overlaps({**texts_of([scenario]), "the source": text}))


def level_problems(scenario: Scenario, rubric: Rubric) -> list[str]:
    """Return contradictions between the start levels and the priorities of a scenario."""
    start = rubric.start(scenario.start_levels)
    if not any(start):
        return ["start_levels: all are 0, so this person needs nothing"]
    deepest = [key for key, value in zip(rubric.keys, start, strict=True) if value == min(start)]
    if all(scenario.priorities.get(key) == "low" for key in deepest):
        return [
            f"start_levels: the largest deficit is on axis {deepest[0]}, but priorities.{deepest[0]} is low"
        ]
    return []


def near_copies(made: Sequence[Scenario], others: Sequence[Scenario]) -> dict[str, str]:
    """Return the near-duplicates in `made`: id -> the one of `others`, or made earlier, that it resembles."""
    others_texts = {f"known: {case}": text for case, text in texts_of(others).items()}
    order = {scenario.id: number for number, scenario in enumerate(made)}
    dropped: dict[str, str] = {}
    pairs = [(pair.a, pair.b) for pair in overlaps({**others_texts, **texts_of(made)})]
    for case in order:
        partners = [{*pair} - {case} for pair in pairs if case in pair]
        for [other] in partners:
            earlier = other in order and order[other] < order[case] and other not in dropped
            if other not in order or earlier:
                dropped.setdefault(case, other.removeprefix("known: "))
    return dropped
