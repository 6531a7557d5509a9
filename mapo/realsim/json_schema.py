"""Forms as JSON schemas: built from a few kinds of parts, shown as an example, validated strictly.

The parts are those that the strict mode of every endpoint accepts. Messages of `checked` name the place that
differs from the form and never quote its content, which may be private.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mapo.errors import InputError

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
TRUTH: Schema = {"type": "boolean"}
WHOLE: Schema = {"type": "integer"}
MOST = 200
"""Entries of a list that are read."""
LONGEST = 4000
"""Characters of one text."""


def one_of(choices: Sequence[str]) -> Schema:
    return {"type": "string", "enum": list(choices)}


def listed(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def form(**parts: Schema) -> Schema:
    return keyed(parts)


def keyed(parts: Mapping[str, Schema]) -> Schema:
    return {
        "type": "object",
        "properties": dict(parts),
        "required": list(parts),
        "additionalProperties": False,
    }


def example(schema: Schema) -> str:
    """The form with a stub in each place, for endpoints that only read about it."""
    return json.dumps(_example(schema), ensure_ascii=False)


def _example(schema: Schema) -> Any:
    if "enum" in schema:
        return " | ".join(schema["enum"])
    if schema["type"] == "object":
        return {key: _example(part) for key, part in schema["properties"].items()}
    if schema["type"] == "array":
        return [_example(schema["items"])]
    return {"string": "...", "boolean": True, "integer": 0}[schema["type"]]


def checked(data: Any, schema: Schema, where: str = "the form") -> Any:
    """`data`, its texts without space around them; InputError at the first place that is not as asked."""
    kind = schema["type"]
    if kind == "object":
        return _object(data, schema["properties"], where)
    if kind == "array":
        if not isinstance(data, list) or len(data) > MOST:
            raise InputError(f"not a list of at most {MOST} entries", where=where)
        return [checked(item, schema["items"], f"{where}[{number}]") for number, item in enumerate(data)]
    if kind == "string":
        if not isinstance(data, str) or len(data) > LONGEST:
            raise InputError(f"not a text of at most {LONGEST} characters", where=where)
        if "enum" in schema and data.strip() not in schema["enum"]:
            raise InputError("none of the choices", where=where, fix=f"One of: {', '.join(schema['enum'])}")
        return data.strip()
    wanted = bool if kind == "boolean" else int
    if type(data) is not wanted:
        raise InputError("not true or false" if wanted is bool else "no whole number", where=where)
    return data


def _object(data: Any, parts: Mapping[str, Schema], where: str) -> dict[str, Any]:
    fix = f"A JSON object with exactly the keys {', '.join(parts)}"
    if not isinstance(data, dict):
        raise InputError("not an object", where=where, fix=fix)
    if missing := [key for key in parts if key not in data]:
        raise InputError(f"missing {', '.join(missing)}", where=where, fix=fix)
    if len(data) > len(parts):
        raise InputError(f"{len(data) - len(parts)} keys that were not asked for", where=where, fix=fix)
    return {key: checked(data[key], part, f"{where}.{key}") for key, part in parts.items()}
