"""Faults that `LoopbackServer` can simulate, by name.

    NNN, NNN-retry-after    that HTTP status with an error body, optionally with a Retry-After header
    drop hang               the connection is closed without a response; no response at all
    not-http-json cut-body  a response that is not JSON, or only half of it
    no-choices error-200    a response without a message; an error reported with status 200
    empty null length       empty text; no text; text truncated by the token limit
    not-json cut-json wrong-schema bad-level    text that is not the requested form
    wrong-tool bad-arguments                    a call of an unknown tool; arguments that are not JSON

The server's `fault` function selects a fault: (number of the call from 1, request body) -> name or None.
"""

from __future__ import annotations

import json
import re
from typing import Any

STATUS = re.compile(r"([1-5]\d\d)(-retry-after)?")
IN_TRANSPORT = ("drop", "hang", "not-http-json", "cut-body", "no-choices", "error-200")
IN_MESSAGE = (
    *("empty", "null", "length", "not-json", "cut-json", "wrong-schema", "bad-level"),
    *("wrong-tool", "bad-arguments"),
)


def known(fault: str) -> bool:
    """Return whether a fault of this name exists."""
    return fault in IN_TRANSPORT or fault in IN_MESSAGE or STATUS.fullmatch(fault) is not None


def spoil(message: dict[str, Any], fault: str) -> tuple[dict[str, Any], str]:
    """Return the message with that fault, and its finish reason."""
    text = message.get("content") or ""
    half = text[: len(text) // 2]
    calls = message.get("tool_calls") or [_call("go_on", "{}")]
    arguments = calls[0]["function"]["arguments"]
    texts = {
        "empty": "",
        "null": None,
        "length": half or "cut",
        "cut-json": half or '{"cut',
        "not-json": "I would rather tell you in my own words.",
        "wrong-schema": '{"something": "else"}',
        "bad-level": _out_of_range(text),
    }
    if fault in texts:
        spoilt = {"role": "assistant", "content": texts[fault]}
        return spoilt, "length" if fault == "length" else "stop"
    call = _call("no_such_tool", arguments) if fault == "wrong-tool" else _call(_name(calls), "{not json")
    return {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"


def _call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def _name(calls: list[dict[str, Any]]) -> str:
    return str(calls[0]["function"]["name"])


def _out_of_range(text: str) -> str:
    """Return the form with every level set to 99, or a minimal such form if the text is not a form."""
    try:
        form = json.loads(text)
    except ValueError:
        form = {"C": {"progress": {"level": 0}}}

    def raised(data: Any) -> Any:
        if isinstance(data, dict):
            return {key: 99 if key == "level" else raised(value) for key, value in data.items()}
        return [raised(item) for item in data] if isinstance(data, list) else data

    return json.dumps(raised(form))
