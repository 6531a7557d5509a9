"""The judge played by a model: fills in the start form and, after each reply, the turn form.

Forms and JSON schemas are generated from the rubric. A form is accepted only if it is complete and valid; a
missing or unknown key, a level outside its table or a text that is not a string is an error with its
location. If the repair attempts of `mapo.models.structured.ask` fail as well, the judgement is missing data.
In the schema the level comes last, so that a model with constrained decoding quotes evidence and gives a
reason before it decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mapo.errors import InputError
from mapo.measure.rubric import Rubric
from mapo.models.chat import DEFAULT_SAMPLING, Chat, Request, Sampling
from mapo.models.structured import ask
from mapo.sandbox.prompting import DEFAULT_PROMPTS, Prompts, escaped, full_persona, language_of
from mapo.sandbox.transcript import delimiter_of, quoted_turns
from mapo.scenarios.scenario import Scenario
from mapo.types import AxisMarks, Levels, Mark, Message, StartLevels, Turn

MAX_TOKENS = 4096
LONGEST = 2000
"""Maximum number of characters kept of an evidence or reason."""
_MARK_KEYS = ("evidence", "reason", "level")


class ModelJudge:
    """A Judge for one dialogue. It sees the complete scenario and the earlier turns, but not their levels.

    `system` replaces the default system prompt for turn forms (`turn_system`). `member` is the judge's name
    on a panel.
    """

    def __init__(
        self,
        chat: Chat,
        scenario: Scenario,
        rubric: Rubric,
        seed: int = 0,
        session: str = "",
        attempt: int = 0,
        sampling: Sampling = DEFAULT_SAMPLING,
        system: str = "",
        member: str = "",
        prompts: Prompts = DEFAULT_PROMPTS,
    ) -> None:
        self.chat = chat
        self.prompts = prompts
        self.sampling = sampling
        self.scenario = scenario
        self.rubric = rubric
        self.mark = delimiter_of(scenario.id, seed)
        self.session = f"{session or f'{scenario.id}/{seed}'}/judge"
        self._start_nonce = "/".join([f"attempt {attempt}"] * bool(attempt) + [member] * bool(member))
        self._turn_schema = turn_schema(rubric)
        self._turn_system = system or turn_system(scenario, rubric, prompts)

    async def start(self) -> StartLevels:
        """Fill in the start form.

        The request is the same for all siblings, so that a cache answers it once for all of them. Only a
        retry of a broken dialogue and each member of a panel have requests of their own.
        """
        schema = start_schema(self.rubric)
        described = common_parts(self.scenario, self.rubric, schema)
        indicators = describe_indicators(self.rubric)
        system = self.prompts.fill("judge_start", self.scenario.domain, indicators=indicators, **described)
        shown = self.prompts.fill("judge_start_ask", who=escaped(self.scenario.persona.name))
        request = self._request(system, shown, schema, 0, self._start_nonce)
        return await ask(self.chat, request, lambda data: parse_start(data, self.rubric))

    async def judge(self, turns: Sequence[Turn]) -> Levels:
        """Fill in the turn form for the last of `turns`."""
        if not turns:
            raise InputError("there is no turn to judge", fix="Pass at least one turn")
        question = self.prompts.fill("judge_turn_ask", turn=len(turns))
        shown = f"{quoted_turns(turns, self.mark, self.prompts)}\n\n{question}"
        request = self._request(self._turn_system, shown, self._turn_schema, len(turns), self.session)
        return await ask(self.chat, request, lambda data: parse_turn(data, self.rubric))

    async def explain(self, turns: Sequence[Turn], levels: Levels) -> Levels:
        """Return the turn form of the last of `turns` with these levels, and evidence and reason for each."""
        flat = [
            f"{key} {side} {mark.level}"
            for key in self.rubric.keys
            for side, mark in (("progress", levels[key].progress), ("regression", levels[key].regression))
        ]
        question = self.prompts.fill("explain_ask", turn=len(turns), levels=", ".join(flat))
        shown = f"{quoted_turns(turns, self.mark, self.prompts)}\n\n{question}"
        schema = fixed_turn_schema(levels, self.rubric)
        request = self._request(self._turn_system, shown, schema, len(turns), self.session)
        return await ask(self.chat, request, lambda data: parse_fixed_turn(data, levels, self.rubric))

    def _request(self, system: str, shown: str, schema: Mapping[str, Any], turn: int, nonce: str) -> Request:
        request = Request(
            messages=(Message("system", system), Message("user", shown)),
            temperature=0.0,
            max_tokens=MAX_TOKENS,
            schema=schema,
            session=self.session,
            nonce=nonce,
            turn=turn,
        )
        return self.sampling.of(request)


def turn_system(scenario: Scenario, rubric: Rubric, prompts: Prompts = DEFAULT_PROMPTS) -> str:
    """Return the judge's system prompt for turn forms."""
    described = common_parts(scenario, rubric, turn_schema(rubric))
    return prompts.fill("judge_turn", scenario.domain, axes=describe_axes(rubric), **described)


def common_parts(scenario: Scenario, rubric: Rubric, schema: Mapping[str, Any]) -> dict[str, str]:
    """Return the parts that both of the judge's prompts share: form, person and language."""
    return {
        "form": _example_form(schema),
        "person": full_persona(scenario, rubric),
        "language": language_of(scenario),
    }


def describe_axes(rubric: Rubric) -> str:
    """Describe each axis for the judge: its question and the meaning of each level."""
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
    """Describe each indicator of the start form for the judge."""
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
    """Return the JSON schema of the turn form."""
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


def fixed_turn_schema(levels: Levels, rubric: Rubric) -> dict[str, Any]:
    """Return the JSON schema of the turn form with given levels. Evidence and reason come after the level."""
    return _object(
        {
            key: _object(
                {
                    "progress": _fixed_mark_schema(levels[key].progress.level),
                    "regression": _fixed_mark_schema(levels[key].regression.level),
                }
            )
            for key in rubric.keys
        }
    )


def start_schema(rubric: Rubric) -> dict[str, Any]:
    """Return the JSON schema of the start form."""
    return _object({item.key: _mark_schema(range(len(item.deficit))) for item in rubric.indicators})


def parse_turn(data: object, rubric: Rubric) -> Levels:
    """Parse a turn form from decoded JSON. Raises InputError with the location of the problem."""
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


def parse_fixed_turn(data: object, levels: Levels, rubric: Rubric) -> Levels:
    """Parse a turn form that must have given levels."""
    form = parse_turn(data, rubric)
    for key in rubric.keys:
        for side in ("progress", "regression"):
            written, wanted = (getattr(marks[key], side).level for marks in (form, levels))
            if written != wanted:
                raise InputError(
                    f"the level is {written}, not {wanted}",
                    where=f"{key}.{side}.level",
                    fix="Keep the levels that are already decided",
                )
    return form


def parse_start(data: object, rubric: Rubric) -> StartLevels:
    """Parse a start form from decoded JSON. Raises InputError with the location of the problem."""
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
            f"{str(level)[:40]!r} is not a valid level",
            where=f"{where}.level",
            fix=f"Use one of the integers {', '.join(map(str, levels))}",
        )
    for name, text in (("evidence", evidence), ("reason", reason)):
        if not isinstance(text, str):
            raise InputError("not a string", where=f"{where}.{name}", fix="Use a string; it may be empty")
    return Mark(level, evidence.strip()[:LONGEST], reason.strip()[:LONGEST])


def _keys(data: object, wanted: Sequence[str], where: str) -> dict[str, Any]:
    """Return `data` if it is an object with exactly the keys `wanted`."""
    fix = f"Use a JSON object with exactly the keys {', '.join(wanted)}"
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


def _fixed_mark_schema(level: int) -> dict[str, Any]:
    texts: dict[str, Any] = {"evidence": {"type": "string"}, "reason": {"type": "string"}}
    return _object({"level": {"type": "integer", "enum": [level]}, **texts})


def _mark_schema(levels: range) -> dict[str, Any]:
    # Only keywords that the strict mode of every endpoint accepts: no limits on lengths or numbers.
    texts: dict[str, Any] = {"evidence": {"type": "string"}, "reason": {"type": "string"}}
    return _object({**texts, "level": {"type": "integer", "enum": list(levels)}})


def _example_form(schema: Mapping[str, Any]) -> str:
    """Return an example of the form, for endpoints without structured output: every level 0, every text
    `...`.
    """

    def example(part: Mapping[str, Any]) -> Any:
        if part["type"] == "object":
            return {key: example(inner) for key, inner in part["properties"].items()}
        return 0 if part["type"] == "integer" else "..."

    lines = [f"{json.dumps(key)}: {json.dumps(example(part))}" for key, part in schema["properties"].items()]
    return "{" + ",\n ".join(lines) + "}"
