"""What can go wrong between us and a model, by name, for `LoopbackServer`.

    NNN, NNN-retry-after    that HTTP status with an error body, and a Retry-After header
    drop hang               the connection closed without a word; no response at all
    not-http-json cut-body  a response that is no JSON, or only half of it
    no-choices error-200    a response without a message; an error reported with status 200
    empty null length       empty text; no text; text cut in the middle by the token limit
    not-json cut-json wrong-schema bad-level    text that is not the form that was asked for
    wrong-tool bad-arguments                    a call of no known tool; arguments that are no JSON

A fault is chosen by the server's `fault` function: (number of the call from 1, request body) -> name or None.
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
    return fault in IN_TRANSPORT or fault in IN_MESSAGE or STATUS.fullmatch(fault) is not None


def spoil(message: dict[str, Any], fault: str) -> tuple[dict[str, Any], str]:
    """The message with that fault, and its finish reason."""
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
    """The form with every level at 99; a text that is no form becomes one with a level of 99."""
    try:
        form = json.loads(text)
    except ValueError:
        form = {"C": {"progress": {"level": 0}}}

    def raised(data: Any) -> Any:
        if isinstance(data, dict):
            return {key: 99 if key == "level" else raised(value) for key, value in data.items()}
        return [raised(item) for item in data] if isinstance(data, list) else data

    return json.dumps(raised(form))
