"""Prompt templates (`prompts/*.md`) and the scenario's person as text.

`$domain` in a template is replaced by the file of the same name in the domain's own `prompts/` folder, if it
exists, so that everything about a domain stays in its folder. Constant text comes first, then the person:
siblings share the whole beginning of their prompts, and the calls of one dialogue differ only in what
follows.
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

# "<" opens the special tokens of most chat templates and our own delimiters; others are "[INST]", "[gMASK]".
OPENERS = re.compile(r"<|\[(?=/?g?[A-Z]{3})")
_TEMPLATES = Path(str(files("mapo") / "sandbox" / "prompts"))


def fill(name: str, domain: str = "", **values: str | int) -> str:
    """Fill in the template `name`. A missing value raises KeyError."""
    template = Template(_read(_TEMPLATES / f"{name}.md"))
    return template.substitute(values, domain=fragment(domain, name)).strip()


@lru_cache
def table(name: str) -> dict[str, str]:
    """Return a table of short texts by key."""
    return {key: str(text) for key, text in tomllib.loads(_read(_TEMPLATES / f"{name}.toml")).items()}


def fragment(domain: str, name: str) -> str:
    """Return the text that a domain adds to a template, empty if it has no such file."""
    folder = known_folder(domain)
    file = folder / "prompts" / f"{name}.md" if folder else None
    return _read(file).strip() if file and file.is_file() else ""


@lru_cache
def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def language_of(scenario: Scenario) -> str:
    """Return the name of the scenario's language for a prompt."""
    return _LANGUAGES.get(scenario.language, f"the language with the code '{escaped(scenario.language)}'")


def persona_text(scenario: Scenario, rubric: Rubric) -> str:
    """Describe the person without the stages and memories that are revealed later."""
    persona = scenario.persona
    facts = {
        "Name": persona.name,
        "Age": "" if persona.age is None else str(persona.age),
        "Character": ", ".join(persona.traits),
        "Way of speaking": persona.speech,
        "Background": persona.background,
        "Topic": scenario.topic if scenario.topic != scenario.opening else "",
        "First words": scenario.opening,
        "Hopes for": scenario.hopes_for,
        "Threshold": scenario.threshold,
    }
    lines = [f"{name}: {escaped(text)}" for name, text in facts.items() if text]
    lines += [
        f"Need ({scenario.priorities[axis.key]}): {axis.title}. {axis.asks}"
        for axis in rubric.axes
        if axis.key in scenario.priorities
    ]
    return "\n".join(lines)


def full_persona(scenario: Scenario, rubric: Rubric) -> str:
    """Describe the person completely, with stages and memories numbered from 0, for director and judge."""
    lines = [persona_text(scenario, rubric)]
    if scenario.wants_to_say:
        lines.append(f"Wants to say: {escaped(scenario.wants_to_say)}")
    if scenario.stages:
        lines += ["", "Stages of the story, in order:"]
        lines += [f"{i} ({x.kind}) {escaped(x.title)}: {beat_text(x)}" for i, x in enumerate(scenario.stages)]
    if scenario.memories:
        lines += ["", "Memories:"]
        lines += [f"{i} ({x.period}): {beat_text(x)}" for i, x in enumerate(scenario.memories)]
    return "\n".join(lines)


def beat_text(beat: Beat) -> str:
    """Return what the person says in a beat, as one line."""
    return escaped(" ".join(beat.says))


def escaped(text: str) -> str:
    """Escape scenario text for a prompt, so that it cannot start a line or open a special token.

    Text without line breaks and such openings is unchanged.
    """
    return "\n    | ".join(OPENERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text).splitlines())
