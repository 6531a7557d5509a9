"""The judge, played by a model: fills in the start form and, after each reply, the turn form.

Forms and schemas are made from the rubric. A form is taken whole or not at all: a missing or unknown
key, a level that is not in its table or a text that is no text is an error with its place, and after the
repairs of `forms.ask` the judgement is missing data. In the schema a level comes last, so that a model
whose answer is held to it quotes and reasons before it decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mapo.errors import InputError
from mapo.measure.rubric import Rubric
from mapo.models.chat import OWN_WAY, Chat, Request, Sampling
from mapo.models.structured import ask
from mapo.sandbox.prompting import fill, language_of, whole_person
from mapo.sandbox.transcript import mark_of, quoted_turns
from mapo.scenarios.scenario import Scenario
from mapo.types import AxisMarks, Levels, Mark, Message, StartLevels, Turn

MAX_TOKENS = 4096
LONGEST = 2000
"""Characters of evidence or reason that are kept."""
_MARK_KEYS = ("evidence", "reason", "level")


class ModelJudge:
    """A Judge for one dialogue. It sees the person's whole file, and earlier turns but not their levels.

    `system` is what it is told about turn forms, where that is not our own prompt (`turn_system`). `seat` is
    its name on a panel."""

    def __init__(
        self,
        chat: Chat,
        scenario: Scenario,
        rubric: Rubric,
        seed: int = 0,
        session: str = "",
        attempt: int = 0,
        sampling: Sampling = OWN_WAY,
        system: str = "",
        seat: str = "",
    ) -> None:
        self.chat = chat
        self.sampling = sampling
        self.scenario = scenario
        self.rubric = rubric
        self.mark = mark_of(scenario.id, seed)
        self.session = f"{session or f'{scenario.id}/{seed}'}/judge"
        self._start_nonce = "/".join([f"attempt {attempt}"] * bool(attempt) + [seat] * bool(seat))
        self._turn_schema = turn_schema(rubric)
        self._turn_system = system or turn_system(scenario, rubric)

    async def start(self) -> StartLevels:
        """The start form. Its request is the same for all siblings, so a cache answers it once for them; a
        dialogue that broke before asks anew, and so does every seat of a panel."""
        schema = start_schema(self.rubric)
        described = told_to_judge(self.scenario, self.rubric, schema)
        indicators = describe_indicators(self.rubric)
        system = fill("judge_start", self.scenario.domain, indicators=indicators, **described)
        shown = fill("judge_start_ask", who=self.scenario.persona.name)
        request = self._request(system, shown, schema, nonce=self._start_nonce)
        return await ask(self.chat, request, lambda data: parse_start(data, self.rubric))

    async def judge(self, turns: Sequence[Turn]) -> Levels:
        """The turn form for the last of `turns`."""
        if not turns:
            raise InputError("there is no reply to judge", fix="Judge after the first turn")
        shown = f"{quoted_turns(turns, self.mark)}\n\n{fill('judge_turn_ask', turn=len(turns))}"
        request = self._request(self._turn_system, shown, self._turn_schema, nonce=self.session)
        return await ask(self.chat, request, lambda data: parse_turn(data, self.rubric))

    def _request(self, system: str, shown: str, schema: Mapping[str, Any], nonce: str = "") -> Request:
        request = Request(
            messages=(Message("system", system), Message("user", shown)),
            temperature=0.0,
            max_tokens=MAX_TOKENS,
            schema=schema,
            session=self.session,
            nonce=nonce,
        )
        return self.sampling.of(request)


def turn_system(scenario: Scenario, rubric: Rubric) -> str:
    """What the judge is told about turn forms, before the conversation."""
    described = told_to_judge(scenario, rubric, turn_schema(rubric))
    return fill("judge_turn", scenario.domain, axes=describe_axes(rubric), **described)


def told_to_judge(scenario: Scenario, rubric: Rubric, schema: Mapping[str, Any]) -> dict[str, str]:
    """What both of the judge's prompts hold: the form, the person and their language."""
    return {
        "form": _blank(schema),
        "person": whole_person(scenario, rubric),
        "language": language_of(scenario),
    }


def describe_axes(rubric: Rubric) -> str:
    """The axes as the judge reads them: what each asks, and when a level is earned."""
    parts = []
    for axis in rubric.axes:
        lines = [f"## {axis.key}: {axis.title}", axis.asks, "progress:"]
        lines += [f"  {level}: {means}" for level, means in enumerate(axis.progress_means)]
        lines += [
            "regression:",
            *(f"  {-level}: {means}" for level, means in enumerate(axis.regression_means)),
        ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def describe_indicators(rubric: Rubric) -> str:
    return "\n\n".join(
        "\n".join(
            [
                f"## {item.key}: {item.title}",
                *(f"  {level}: {means}" for level, means in enumerate(item.means)),
            ]
        )
        for item in rubric.indicators
    )


def turn_schema(rubric: Rubric) -> dict[str, Any]:
    return _object(
        {
            axis.key: _object(
                {
                    "progress": _mark_schema(range(len(axis.progress))),
                    "regression": _mark_schema(range(0, -len(axis.regression), -1)),
                }
            )
            for axis in rubric.axes
        }
    )


def start_schema(rubric: Rubric) -> dict[str, Any]:
    return _object({item.key: _mark_schema(range(len(item.deficit))) for item in rubric.indicators})


def parse_turn(data: object, rubric: Rubric) -> Levels:
    """A turn form as decoded JSON -> levels, or an InputError that names the place."""
    axes = _keys(data, rubric.keys, "the form")
    levels: Levels = {}
    for axis in rubric.axes:
        sides = _keys(axes[axis.key], ("progress", "regression"), axis.key)
        up, down = range(len(axis.progress)), range(0, -len(axis.regression), -1)
        levels[axis.key] = AxisMarks(
            _parse_mark(sides["progress"], up, f"{axis.key}.progress"),
            _parse_mark(sides["regression"], down, f"{axis.key}.regression"),
        )
    return levels


def parse_start(data: object, rubric: Rubric) -> StartLevels:
    """A start form as decoded JSON -> start levels, or an InputError that names the place."""
    items = _keys(data, [item.key for item in rubric.indicators], "the form")
    return {
        item.key: _parse_mark(items[item.key], range(len(item.deficit)), item.key)
        for item in rubric.indicators
    }


def _parse_mark(data: object, levels: range, where: str) -> Mark:
    mark = _keys(data, _MARK_KEYS, where)
    level, evidence, reason = mark["level"], mark["evidence"], mark["reason"]
    if type(level) is not int or level not in levels:
        raise InputError(
            f"{str(level)[:40]!r} is no level",
            where=f"{where}.level",
            fix=f"Give one of the whole numbers {', '.join(map(str, levels))}",
        )
    for name, text in (("evidence", evidence), ("reason", reason)):
        if not isinstance(text, str):
            raise InputError("not a text", where=f"{where}.{name}", fix="Give a string; it may be empty")
    return Mark(level, evidence.strip()[:LONGEST], reason.strip()[:LONGEST])


def _keys(data: object, wanted: Sequence[str], where: str) -> dict[str, Any]:
    """`data` if it is an object with exactly the wanted keys."""
    fix = f"Give a JSON object with exactly the keys {', '.join(wanted)}"
    if not isinstance(data, dict):
        raise InputError("not an object", where=where, fix=fix)
    missing = [key for key in wanted if key not in data]
    unknown = [str(key)[:40] for key in data if key not in wanted][:5]
    if missing or unknown:
        parts = [f"missing {', '.join(missing)}"] * bool(missing)
        parts += [f"unknown {', '.join(unknown)}"] * bool(unknown)
        raise InputError("; ".join(parts), where=where, fix=fix)
    return data


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _mark_schema(levels: range) -> dict[str, Any]:
    # Only what every endpoint's strict mode accepts: no limits on lengths or numbers.
    texts: dict[str, Any] = {"evidence": {"type": "string"}, "reason": {"type": "string"}}
    return _object({**texts, "level": {"type": "integer", "enum": list(levels)}})


def _blank(schema: Mapping[str, Any]) -> str:
    """An example of the form, for endpoints that only read about it: every level 0, every text a stub."""

    def example(part: Mapping[str, Any]) -> Any:
        if part["type"] == "object":
            return {key: example(inner) for key, inner in part["properties"].items()}
        return 0 if part["type"] == "integer" else "..."

    rows = [f"{json.dumps(key)}: {json.dumps(example(part))}" for key, part in schema["properties"].items()]
    return "{" + ",\n ".join(rows) + "}"
