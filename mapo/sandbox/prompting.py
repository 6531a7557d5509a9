"""Prompts: the files under `prompts/` filled in, and a scenario's person as text.

A template's `$domain` is the file of the same name in the domain's own `prompts/` folder, where it has
one: what belongs to one domain stays in its folder. Constant text comes first, then the person, so that
siblings share all of it and calls of one dialogue differ only in what follows.
"""

from __future__ import annotations

import re
import tomllib
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from string import Template

from mapo.domain_folders import known_folder
from mapo.measure.rubric import Rubric
from mapo.scenarios.scenario import Beat, Scenario

_LANGUAGES = {
    "en": "English",
    "zh": "Chinese",
    "de": "German",
    "es": "Spanish",
    "fr": "French",
    "ja": "Japanese",
}


# "<" opens the special tokens of most chat templates and our own marks; "[INST]", "[gMASK]" are others.
OPENERS = re.compile(r"<|\[(?=/?g?[A-Z]{3})")
_TEMPLATES = Path(str(files("mapo") / "sandbox" / "prompts"))


def fill(name: str, domain: str = "", **values: str | int) -> str:
    """The template `name` with its values; a missing value is a bug and raises."""
    template = Template(_read(_TEMPLATES / f"{name}.md"))
    return template.substitute(values, domain=fragment(domain, name)).strip()


@lru_cache
def table(name: str) -> dict[str, str]:
    """A table of short texts, by key."""
    return {key: str(text) for key, text in tomllib.loads(_read(_TEMPLATES / f"{name}.toml")).items()}


def fragment(domain: str, name: str) -> str:
    """What a domain adds to a template; nothing for a domain that has no such file."""
    folder = known_folder(domain)
    file = folder / "prompts" / f"{name}.md" if folder else None
    return _read(file).strip() if file and file.is_file() else ""


@lru_cache
def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def language_of(scenario: Scenario) -> str:
    return _LANGUAGES.get(scenario.language, f"the language with the code '{scenario.language}'")


def person(scenario: Scenario, rubric: Rubric) -> str:
    """What the person knows of themself from the first line on, without what is still to be told."""
    who = scenario.persona
    facts = {
        "Name": who.name,
        "Age": "" if who.age is None else str(who.age),
        "Character": ", ".join(who.traits),
        "Way of speaking": who.speech,
        "Background": who.background,
        "Topic": scenario.topic if scenario.topic != scenario.opening else "",
        "First words": scenario.opening,
        "Hopes for": scenario.hopes_for,
        "Threshold": scenario.threshold,
    }
    lines = [f"{name}: {inert(text)}" for name, text in facts.items() if text]
    lines += [
        f"Need ({scenario.priorities[axis.key]}): {axis.title}. {axis.asks}"
        for axis in rubric.axes
        if axis.key in scenario.priorities
    ]
    return "\n".join(lines)


def whole_person(scenario: Scenario, rubric: Rubric) -> str:
    """The whole file, for those who see all: also what is still to be told, numbered from 0."""
    lines = [person(scenario, rubric)]
    if scenario.wants_to_say:
        lines.append(f"Wants to say: {inert(scenario.wants_to_say)}")
    if scenario.stages:
        lines += ["", "Stages of the story, in order:"]
        lines += [f"{i} ({x.kind}) {inert(x.title)}: {told(x)}" for i, x in enumerate(scenario.stages)]
    if scenario.memories:
        lines += ["", "Memories:"]
        lines += [f"{i} ({x.period}): {told(x)}" for i, x in enumerate(scenario.memories)]
    return "\n".join(lines)


def told(beat: Beat) -> str:
    return inert(" ".join(beat.says))


def inert(text: str) -> str:
    """Text of a scenario as data: it begins no line of ours and opens no token of a chat template. What has
    neither line breaks nor such openings stands as it is."""
    return "\n    | ".join(OPENERS.sub(lambda found: f"\\u{ord(found[0]):04x}", text).splitlines())
