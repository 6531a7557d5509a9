"""Requests and answers as they travel: our `Request` to an OpenAI chat body, a response body to our `Answer`.

Servers differ in what they understand; a `Dialect` says how to put a request to one, and `simpler` what to
try after it refused. Response bodies are untrusted: anything may be missing or of another type.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from mapo.models.chat import Answer, Request, ToolCall, Usage
from mapo.types import Reply

JsonMode = Literal["schema", "object", "text"]

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_ABOUT_JSON = re.compile(r"response_format|json_schema|json_object|json schema|grammar|guided", re.IGNORECASE)


def storable(text: str) -> str:
    """`text` without NUL and lone surrogates, which neither UTF-8 nor our records can hold."""
    return _UNSTORABLE.sub("\ufffd", text)


# ---- out


@dataclass(frozen=True, slots=True)
class Dialect:
    """`json`: how a schema is asked for; "text" asks for nothing, the prompt must do it alone."""

    json: JsonMode = "schema"
    length: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    temperature: bool = True
    min_p: bool = True


def body_of(request: Request, model: str, dialect: Dialect) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": m.role, "content": storable(m.content)} for m in request.messages],
        dialect.length: request.max_tokens,
    }
    if dialect.temperature:
        body["temperature"] = request.temperature
    if request.top_p != 1.0:
        body["top_p"] = request.top_p
    if request.min_p and dialect.min_p:
        body["min_p"] = request.min_p
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {"name": t.name, "description": t.description, "parameters": dict(t.parameters)},
            }
            for t in request.tools
        ]
    if request.schema is not None and dialect.json == "schema":
        form = {"name": "form", "strict": True, "schema": dict(request.schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    elif request.schema is not None and dialect.json == "object":
        body["response_format"] = {"type": "json_object"}
    return body


def left_out(request: Request, dialect: Dialect) -> tuple[str, ...]:
    """How the model was to be sampled, and what of that the body does not say."""
    refused = {"temperature": not dialect.temperature, "min_p": bool(request.min_p) and not dialect.min_p}
    return tuple(name for name, gone in refused.items() if gone)


def simpler(dialect: Dialect, request: Request, complaint: str) -> Dialect | None:
    """How to put `request` instead, if the complaint is about the way it was put."""
    if dialect.length == "max_tokens" and "max_completion_tokens" in complaint:
        return replace(dialect, length="max_completion_tokens")
    if dialect.temperature and "temperature" in complaint:  # reasoning models take none but their own
        return replace(dialect, temperature=False)
    if dialect.min_p and request.min_p and "min_p" in complaint:  # no parameter of OpenAI's own
        return replace(dialect, min_p=False)
    if request.schema is None or dialect.json == "text" or not _ABOUT_JSON.search(complaint):
        return None
    return replace(dialect, json="object" if dialect.json == "schema" else "text")


def token_estimate(request: Request) -> int:
    """About four bytes a token for the prompt, and all of the reply."""
    size = sum(len(m.content.encode("utf-8", "replace")) for m in request.messages)
    extra = (request.schema, [t.parameters for t in request.tools])
    return (size + len(canonical(extra))) // 4 + request.max_tokens


def canonical(data: object) -> str:
    """One text for equal data: keys sorted, no spaces, ASCII only."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False, default=dict)


# ---- in


def read_body(body: bytes) -> Answer:
    """The answer in a chat completion; ValueError says why there is none. An empty text is an answer."""
    try:
        data = json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise ValueError("the response is not JSON") from None
    if not isinstance(data, dict):
        raise ValueError("the response is no JSON object")
    if error := data.get("error"):  # some gateways report failures with status 200
        message = error.get("message") if isinstance(error, dict) else error
        raise ValueError(f"the response is an error: {message}")
    choices = data.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise ValueError("the response holds no message")
    text = _text(message.get("content")) or _text(message.get("refusal"))
    finish: Literal["stop", "length"] = "length" if choice.get("finish_reason") == "length" else "stop"
    return Answer(Reply(text, finish), _tool_calls(message.get("tool_calls")), _usage(data.get("usage")))


def _text(content: object) -> str:
    if isinstance(content, list):  # content parts
        content = "".join(_text(part.get("text")) for part in content if isinstance(part, dict))
    return storable(content) if isinstance(content, str) else ""


def _tool_calls(calls: object) -> tuple[ToolCall, ...]:
    found = []
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            arguments = function.get("arguments", "")
            written = arguments if isinstance(arguments, str) else json.dumps(arguments)
            found.append(ToolCall(storable(function["name"]), storable(written)))
    return tuple(found)


def _usage(usage: object) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    details = usage.get("prompt_tokens_details")
    prompt = _count(usage.get("prompt_tokens"))
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    return Usage(prompt, min(cached, prompt), _count(usage.get("completion_tokens")))


def _count(value: object) -> int:
    return value if type(value) is int and value > 0 else 0


# ---- kept


def dump_answer(answer: Answer) -> str:
    """An answer as JSON; `load_answer` gives back an equal one."""
    return canonical(asdict(answer))


def load_answer(text: str) -> Answer:
    data = json.loads(text)
    reply: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in data["reply"].items()
    }
    calls = tuple(ToolCall(**call) for call in data["tool_calls"])
    return Answer(Reply(**reply), calls, Usage(**data["usage"]), tuple(data.get("left_out", ())))
