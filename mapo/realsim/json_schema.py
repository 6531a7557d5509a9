"""JSON schemas of the forms that models fill in: building blocks, example and strict validation.

Only constructs that every endpoint accepts in strict mode are used. Messages of `check_form` name the place
that does not fit the schema and never quote the content, which may be private.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mapo.errors import InputError

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
BOOLEAN: Schema = {"type": "boolean"}
INTEGER: Schema = {"type": "integer"}
MAX_ENTRIES = 200
"""Maximum length of a list."""
MAX_CHARACTERS = 4000
"""Maximum length of a text."""


def one_of(choices: Sequence[str]) -> Schema:
    """Return the schema of a text that is one of `choices`."""
    return {"type": "string", "enum": list(choices)}


def list_of(item: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": item}


def form(**parts: Schema) -> Schema:
    """Return the schema of an object with these keys, all required."""
    return form_from(parts)


def form_from(parts: Mapping[str, Schema]) -> Schema:
    """Return the schema of an object, given its parts as a mapping."""
    return {
        "type": "object",
        "properties": dict(parts),
        "required": list(parts),
        "additionalProperties": False,
    }


def example(schema: Schema) -> str:
    """Return the form with a stub in each place, for endpoints without structured output."""
    return json.dumps(_example(schema), ensure_ascii=False)


def _example(schema: Schema) -> Any:
    if "enum" in schema:
        return " | ".join(schema["enum"])
    if schema["type"] == "object":
        return {key: _example(part) for key, part in schema["properties"].items()}
    if schema["type"] == "array":
        return [_example(schema["items"])]
    return {"string": "...", "boolean": True, "integer": 0}[schema["type"]]


def check_form(data: Any, schema: Schema, where: str = "the form") -> Any:
    """Return `data` with stripped texts. Raise InputError at the first place that does not fit the schema."""
    kind = schema["type"]
    if kind == "object":
        return _object(data, schema["properties"], where)
    if kind == "array":
        if not isinstance(data, list) or len(data) > MAX_ENTRIES:
            raise InputError(f"not a list of at most {MAX_ENTRIES} entries", where=where)
        return [check_form(item, schema["items"], f"{where}[{number}]") for number, item in enumerate(data)]
    if kind == "string":
        if not isinstance(data, str) or len(data) > MAX_CHARACTERS:
            raise InputError(f"not a text of at most {MAX_CHARACTERS} characters", where=where)
        if "enum" in schema and data.strip() not in schema["enum"]:
            raise InputError(
                "not one of the choices", where=where, fix=f"Use one of: {', '.join(schema['enum'])}"
            )
        return data.strip()
    wanted = bool if kind == "boolean" else int
    if type(data) is not wanted:
        raise InputError("not true or false" if wanted is bool else "not an integer", where=where)
    return data


def _object(data: Any, parts: Mapping[str, Schema], where: str) -> dict[str, Any]:
    fix = f"Use a JSON object with exactly the keys {', '.join(parts)}"
    if not isinstance(data, dict):
        raise InputError("not an object", where=where, fix=fix)
    if missing := [key for key in parts if key not in data]:
        raise InputError(f"missing {', '.join(missing)}", where=where, fix=fix)
    if len(data) > len(parts):
        raise InputError(f"{len(data) - len(parts)} unknown keys", where=where, fix=fix)
    return {key: check_form(data[key], part, f"{where}.{key}") for key, part in parts.items()}
