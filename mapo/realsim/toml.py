"""A scenario as a TOML file of our own format, read back before it counts."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from mapo.errors import ScenarioError
from mapo.scenarios.scenario import SCHEMA, Scenario, read_scenario
from mapo.store import write_atomic

_TABLES = ("persona", "priorities", "start_levels")
_LISTS = ("stages", "memories")


def write_scenario(scenario: Scenario, path: Path) -> None:
    """The file, complete or not there; ScenarioError if it would not be read as the same scenario."""
    write_atomic(path, toml_of(scenario))
    if read_scenario(path) != scenario:
        raise ScenarioError("was written, but reads differently", where=str(path), fix="Please report this")


def toml_of(scenario: Scenario) -> str:
    data = asdict(scenario)
    heads = [f.name for f in fields(scenario) if f.name not in (*_TABLES, *_LISTS)]
    lines = [
        f"schema = {_value(SCHEMA)}",
        *(f"{name} = {_value(data[name])}" for name in heads if data[name]),
    ]
    for name in _TABLES:
        if data[name]:
            lines += ["", f"[{name}]", *_pairs(data[name])]
    for name in _LISTS:
        for item in data[name]:
            lines += ["", f"[[{name}]]", *_pairs(item)]
    return "\n".join(lines) + "\n"


def _pairs(table: dict[str, Any]) -> list[str]:
    """Keys with a value, what is said last; empty ones are left to their defaults."""
    ordered = sorted(table.items(), key=lambda item: item[0] == "says")
    return [f"{_key(key)} = {_value(value)}" for key, value in ordered if value not in ("", (), None, {})]


def _key(key: str) -> str:
    return key if key.isidentifier() and key.isascii() else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, str):
        # TOML's basic strings are JSON's, but for the one control character that JSON lets stand.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items())
        return f"{{ {inner} }}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return str(value)
