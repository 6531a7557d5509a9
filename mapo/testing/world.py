"""Answers for all roles behind one loopback server, by the model named in the request.

The models "policy", "user", "director" and "judge" are simulated: policy and user say a new line each time,
the director lets the conversation go on (as a tool call or a JSON form), and the judge fills in the requested
form. For tests and benchmarks of the complete loop over real HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from typing import Any

from mapo.domain_folders import DEFAULT
from mapo.measure.rubric import Rubric

ROLES = ("policy", "user", "director", "judge")


def world(
    progress: Callable[[int], int] = lambda _: 1, regression: Callable[[int], int] = lambda _: 0
) -> Callable[[dict[str, Any]], str | dict[str, Any]]:
    """Return an `answer` function for LoopbackServer; the judge's levels may depend on the number of the
    call.
    """
    numbers = count(1)

    def answer(body: dict[str, Any]) -> str | dict[str, Any]:
        n, role = next(numbers), body["model"]
        if role == "judge":
            return json.dumps(_filled(_schema(body), progress(n), regression(n)))
        if role == "director" and "tools" in body:
            return {"content": None, "tool_calls": [_call("go_on", {"reason": "as before"})]}
        if role == "director":
            return json.dumps({"act": "go_on", "item": "", "reason": "as before"})
        return _line(n)

    return answer


_NOUNS = [
    "lamp",
    "river",
    "stair",
    "coat",
    "spoon",
    "gate",
    "bell",
    "letter",
    "field",
    "chair",
    "storm",
    "bread",
    "clock",
    "ladder",
    "window",
    "dog",
]


def _line(n: int) -> str:
    """Return a short line that differs from its neighbours."""
    a, b, c = (_NOUNS[(n * step + step) % len(_NOUNS)] for step in (1, 5, 11))
    return f"{a.capitalize()} {n}, {b} {n * 7}: {c}."


def _schema(body: dict[str, Any]) -> dict[str, Any]:
    requested = (body.get("response_format") or {}).get("json_schema")
    schema: dict[str, Any] = requested["schema"] if requested else _default_form()
    return schema


_MARK = {"type": "object", "properties": {"level": {"type": "integer"}, "evidence": {}, "reason": {}}}
_AXIS = {"type": "object", "properties": {"progress": _MARK, "regression": _MARK}}


def _default_form() -> dict[str, Any]:
    """Return the schema of the default domain's turn form, for requests without a schema."""
    return {"type": "object", "properties": dict.fromkeys(Rubric.load(DEFAULT).keys, _AXIS)}


def _filled(schema: dict[str, Any], up: int, down: int, name: str = "") -> Any:
    """Fill in a schema: `up` for progress and start levels, `down` for regression."""
    if schema.get("type") == "object":
        return {
            key: _filled(part, up, down, key if key in ("progress", "regression") else name)
            for key, part in schema["properties"].items()
        }
    if "enum" in schema or schema.get("type") == "integer":
        return down if name == "regression" else up
    return "as it stands there"


def _call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": "call-1", "type": "function", "function": function}
