"""Scenarios: a person, their situation, and what may come out in a conversation.

The native format is one TOML file per scenario (docs/scenarios.md); `empa_cards.py` reads EMPA's cards into
the same type. Everything is validated on load, with file and key in the message. A domain checks for itself
what story beats mean to its scripted roles (`cues`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from mapo.domain_folders import DEFAULT
from mapo.errors import RubricError, ScenarioError
from mapo.measure.rubric import DIFFICULTIES, Rubric
from mapo.untrusted import parse_toml, read_file

SCHEMA = "mapo.scenario/1"

Grade = Literal["low", "medium", "high"]
Period = Literal["childhood", "youth", "adulthood", "recent"]
StageKind = Literal["start", "turn", "outburst", "outcome"]

MAX_BYTES = 1 << 20
"""Maximum size of a scenario file."""

_STRICT = ConfigDict(extra="forbid")
_Text = Annotated[str, Field(min_length=1, pattern=r"\S")]
_Whole = Annotated[int, Field(strict=True, ge=0)]


@dataclass(frozen=True)
class Persona:
    """The person's name, age, character, way of speaking and background."""

    __pydantic_config__ = _STRICT

    name: _Text
    age: _Whole | None = None
    traits: tuple[str, ...] = ()
    speech: str = ""
    background: str = ""


@dataclass(frozen=True)
class Beat:
    """Something the person may say, line by line.

    `about` lists the particulars in it, `cues` what the scripted roles need to know about it. Both may be
    empty for scenarios that are played by models only.
    """

    __pydantic_config__ = _STRICT

    says: tuple[_Text, ...]
    about: tuple[str, ...] = ()
    cues: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Memory(Beat):
    """A beat from the person's past."""

    period: Period = "recent"


@dataclass(frozen=True)
class Stage(Beat):
    """A beat of the current story; stages are told in order."""

    kind: StageKind = "turn"
    title: str = ""


@dataclass(frozen=True)
class Scenario:
    """A person, their situation and what they may reveal.

    If `start_levels` is empty, the judge fills in the start form before the first turn.
    """

    __pydantic_config__ = _STRICT

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    persona: Persona
    topic: str
    opening: _Text
    wants_to_say: str = ""
    hopes_for: str = ""
    threshold: Grade = "medium"
    priorities: dict[str, Grade] = field(default_factory=dict)
    memories: tuple[Memory, ...] = ()
    stages: tuple[Stage, ...] = ()
    start_levels: dict[str, _Whole] = field(default_factory=dict)
    guarded: tuple[str, ...] = ()
    eased: tuple[str, ...] = ()
    category: str = ""
    difficulty: str = ""
    axis: str = ""
    language: Annotated[str, Field(pattern=r"^[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8}){0,4}$")] = "en"
    """A language tag such as en, zh or pt-BR."""
    domain: str = DEFAULT

    @property
    def tags(self) -> dict[str, str]:
        """The tags that reports group by."""
        known = {"category": self.category, "axis": self.axis, "difficulty": self.difficulty}
        return {key: value for key, value in known.items() if value}

    @property
    def beats(self) -> tuple[Beat, ...]:
        """All stages and memories."""
        return (*self.stages, *self.memories)

    def text(self) -> str:
        """Return all prose of the scenario, for overlap checks."""
        parts = [self.topic, self.opening, self.wants_to_say, self.hopes_for, self.persona.background]
        lines = [line for beat in self.beats for line in beat.says]
        return "\n".join([*parts, *lines, *self.guarded, *self.eased])


def scenario_digest(scenario: Scenario) -> str:
    """Return a short hash of a scenario's content, for manifests."""
    plain = json.dumps(_adapter().dump_python(scenario), sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


def read_text(path: Path) -> str:
    """Read a small UTF-8 text file."""
    try:
        return read_file(path, MAX_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise ScenarioError(f"cannot be read ({error.strerror})", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"not UTF-8 text ({error})", where=str(path)) from error


def read_scenario(path: Path) -> Scenario:
    """Read one scenario file in the native format.

    Results are cached by content and shared between calls, so treat their dicts as read-only.
    """
    text, where = read_text(path), str(path)
    try:
        return _parse(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        problem = "unknown key" if first["type"] == "unexpected_keyword_argument" else first["msg"]
        raise ScenarioError(problem, where=f"{where}, {key}", fix="See docs/scenarios.md") from None
    except ScenarioError as error:
        raise ScenarioError(error.problem, where=where, fix=error.fix) from None
    except ValueError as error:
        raise ScenarioError(f"not a readable TOML file ({error})", where=where) from error


# Parsing the shipped scenarios takes a second, and a command may load several splits of them. The key is the
# text itself, because a modification time may miss a change.
@lru_cache(maxsize=1024)
def _parse(text: str) -> Scenario:
    data = parse_toml(text)
    schema = data.pop("schema", None)
    if schema != SCHEMA:
        raise ScenarioError(f"schema is {schema!r}, not '{SCHEMA}'", fix="See docs/scenarios.md")
    return _adapter().validate_python(data)


def dump_scenario(scenario: Scenario) -> str:
    """Return a scenario as TOML in the native format, without empty values."""
    import tomli_w

    return tomli_w.dumps({"schema": SCHEMA, **_filled(asdict(scenario))})


def _filled(value: Any) -> Any:
    """Return `value` without empty entries in its tables."""
    if isinstance(value, dict):
        return {key: _filled(item) for key, item in value.items() if item not in ("", (), None, {})}
    return [_filled(item) for item in value] if isinstance(value, tuple) else value


@lru_cache
def _adapter() -> TypeAdapter[Scenario]:
    return TypeAdapter(Scenario)


def check_scenario(scenario: Scenario, rubric: Rubric) -> list[str]:
    """Check whether the parts of a scenario fit each other and the rubric, and return the problems."""
    problems = []
    if scenario.domain != rubric.name:
        problems.append(f"the domain is '{scenario.domain}', but the rubric is '{rubric.name}'")
    axis_known = scenario.axis in rubric.keys
    if scenario.axis and not axis_known:
        problems.append(f"axis: rubric '{rubric.name}' has no axis '{scenario.axis}'")
    if scenario.difficulty and scenario.difficulty not in DIFFICULTIES:
        problems.append(f"difficulty is {scenario.difficulty}, not one of {', '.join(DIFFICULTIES)}")
    if scenario.start_levels:
        problems += _start_problems(scenario, rubric, axis_known)
    unknown = [key for key in scenario.priorities if key not in rubric.keys]
    problems += [f"priorities: rubric '{rubric.name}' has no axis '{key}'" for key in unknown]
    for number, beat in enumerate(scenario.beats, 1):
        spoken = " ".join(beat.says).lower()
        problems += [
            f"beat {number}: '{term}' is listed in `about` but does not occur in `says`"
            for term in beat.about
            if term.lower() not in spoken
        ]
    lines = Counter([scenario.opening, *(line for beat in scenario.beats for line in beat.says)])
    problems += [f"the line '{line}' occurs more than once" for line, times in lines.items() if times > 1]
    return problems


def _start_problems(scenario: Scenario, rubric: Rubric, axis_known: bool) -> list[str]:
    try:
        start = rubric.start(scenario.start_levels)
    except RubricError as error:
        return [str(error)]
    problems = []
    deepest = rubric.keys[start.index(min(start))]
    if axis_known and min(start) != start[rubric.keys.index(scenario.axis)]:
        problems.append(
            f"axis is {scenario.axis}, but the start levels have the largest deficit on {deepest}"
        )
    expected = rubric.difficulty_of(start)
    if scenario.difficulty and expected and scenario.difficulty != expected:
        problems.append(f"difficulty is {scenario.difficulty}, but the start levels correspond to {expected}")
    return problems
