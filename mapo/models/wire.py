"""Conversion between our types and OpenAI's: `Request` to a chat body, a response body to `Answer`.

Servers differ in the parameters they support. A `Dialect` says which ones to send, and `fallback` what to try
after a server refused a request. Response bodies are untrusted: anything may be missing or of another type.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from mapo.body_fields import check_body
from mapo.models.chat import ANY_OBJECT, Answer, Request, ToolCall, Usage
from mapo.text import without_thinking
from mapo.types import Reply

JsonMode = Literal["schema", "object", "text"]

MAX_TOKEN_CHARS = 32
"""Characters per token that an answer may have on average: more than any text, runs of spaces included."""
MIN_ANSWER_CHARS = 1 << 15
"""Characters that an answer may always have: small values of max_tokens are often not respected exactly."""
MAX_TOOL_CALLS, MAX_NAME_CHARS = 64, 200

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_ABOUT_JSON = re.compile(r"response_format|json_schema|json_object|json schema|grammar|guided", re.IGNORECASE)


def storable(text: str) -> str:
    """Replace NUL and lone surrogates, which neither UTF-8 nor our records can represent."""
    return _UNSTORABLE.sub("\ufffd", text)


# ---- requests


@dataclass(frozen=True, slots=True)
class Dialect:
    """The parameters a server supports. `json` is how a schema is requested: as a JSON schema, as any JSON
    object, or ("text") only in the prompt."""

    json: JsonMode = "schema"
    length: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    temperature: bool = True
    min_p: bool = True


def request_body(request: Request, model: str, dialect: Dialect) -> dict[str, Any]:
    """Return the body of a chat completion request. Raises InputError for free fields that would replace or
    reveal something."""
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
    any_object = request.schema == ANY_OBJECT and dialect.json == "schema"
    if request.schema is not None and dialect.json == "schema" and not any_object:
        form = {"name": "form", "strict": True, "schema": dict(request.schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    elif any_object or (request.schema is not None and dialect.json == "object"):
        body["response_format"] = {"type": "json_object"}
    return {**body, **check_body(request.body)} if request.body else body


def left_out(request: Request, dialect: Dialect) -> tuple[str, ...]:
    """Return the sampling parameters of the request that are not sent in this dialect."""
    omitted = {"temperature": not dialect.temperature, "min_p": bool(request.min_p) and not dialect.min_p}
    return tuple(name for name, is_omitted in omitted.items() if is_omitted)


def fallback(dialect: Dialect, request: Request, message: str) -> Dialect | None:
    """Return the dialect to try next if the server's error message is about a parameter, else None."""
    if dialect.length == "max_tokens" and "max_completion_tokens" in message:
        return replace(dialect, length="max_completion_tokens")
    if dialect.temperature and "temperature" in message:  # some reasoning models have a fixed temperature
        return replace(dialect, temperature=False)
    if dialect.min_p and request.min_p and "min_p" in message:  # not a parameter of OpenAI's API
        return replace(dialect, min_p=False)
    if request.schema is None or dialect.json == "text" or not _ABOUT_JSON.search(message):
        return None
    return replace(dialect, json="object" if dialect.json == "schema" else "text")


def token_estimate(request: Request) -> int:
    """Estimate the tokens of a call: four bytes per prompt token, and the longest possible reply."""
    size = sum(len(m.content.encode("utf-8", "replace")) for m in request.messages)
    extra = (request.schema, [t.parameters for t in request.tools])
    return (size + len(canonical(extra))) // 4 + request.max_tokens


def plausible_usage(usage: Usage, request: Request) -> Usage:
    """Limit the tokens that a server claims for a request to a generous multiple of the estimate.

    Prompts may be longer than estimated because of hidden system prompts, and completions because of hidden
    thinking. An absurd number would make costs meaningless and use up a token limit for hours.
    """
    limit = 4 * token_estimate(request) + 100_000
    prompt, completion = min(usage.prompt, limit), min(usage.completion, limit)
    return Usage(prompt, min(usage.cached, prompt), completion)


def canonical(data: object) -> str:
    """Return canonical JSON: equal data give equal text. Keys sorted, no spaces, ASCII only."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False, default=dict)


# ---- responses


def parse_response(body: bytes) -> Answer:
    """Parse a chat completion; the answer's text may be empty. Raises ValueError if there is no answer."""
    try:
        data = json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise ValueError("the response is not JSON") from None
    if not isinstance(data, dict):
        raise ValueError("the response is not a JSON object")
    if error := data.get("error"):  # some gateways report failures with status 200
        message = error.get("message") if isinstance(error, dict) else error
        raise ValueError(f"the response is an error: {message}")
    choices = data.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise ValueError("the response contains no message")
    text = _text(message.get("content")) or _text(message.get("refusal"))
    finish: Literal["stop", "length"] = "length" if choice.get("finish_reason") == "length" else "stop"
    return Answer(
        Reply(text, finish),
        _tool_calls(message.get("tool_calls")),
        _usage(data.get("usage")),
        thinking=_thinking(message, text, data.get("usage")),
    )


def _thinking(message: dict[str, Any], text: str, usage: object) -> int:
    """Return the tokens of thinking: as the server counts them, or estimated from a separate field or from a
    `<think>` block in the text."""
    details = usage.get("completion_tokens_details") if isinstance(usage, dict) else None
    if counted := _count(details.get("reasoning_tokens")) if isinstance(details, dict) else 0:
        return counted
    separate = _text(message.get("reasoning_content")) or _text(message.get("reasoning"))
    inline = text[: len(text) - len(without_thinking(text))]
    thoughts = separate or (inline if "<think>" in inline or "</think>" in inline else "")
    return -(-len(thoughts.encode()) // 4)


def bounded_answer(answer: Answer, request: Request) -> Answer:
    """Cut an answer that is longer than `max_tokens` can be. A server that ignores that limit would otherwise
    make every later prompt of a dialogue megabytes long."""
    limit = max(MIN_ANSWER_CHARS, request.max_tokens * MAX_TOKEN_CHARS)
    calls = tuple(
        ToolCall(c.name[:MAX_NAME_CHARS], c.arguments[:limit]) for c in answer.tool_calls[:MAX_TOOL_CALLS]
    )
    reply = (
        answer.reply
        if len(answer.text) <= limit
        else replace(answer.reply, text=answer.text[:limit], finish="length")
    )
    return replace(answer, reply=reply, tool_calls=calls)


def _text(content: object) -> str:
    if isinstance(content, list):  # content parts
        texts = (part.get("text") for part in content if isinstance(part, dict))
        content = "".join(text for text in texts if isinstance(text, str))
    return storable(content) if isinstance(content, str) else ""


def _tool_calls(calls: object) -> tuple[ToolCall, ...]:
    parsed = []
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            arguments = function.get("arguments", "")
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            parsed.append(ToolCall(storable(function["name"]), storable(text)))
    return tuple(parsed)


def _usage(usage: object) -> Usage:
    if not isinstance(usage, dict):
        return Usage()
    details = usage.get("prompt_tokens_details")
    prompt = _count(usage.get("prompt_tokens"))
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else 0
    return Usage(prompt, min(cached, prompt), _count(usage.get("completion_tokens")))


def _count(value: object) -> int:
    return value if type(value) is int and value > 0 else 0


# ---- storage


def dump_answer(answer: Answer) -> str:
    """Return an answer as JSON, for `load_answer`."""
    return canonical({name: part for name, part in asdict(answer).items() if name != "thinking"})


def load_answer(text: str) -> Answer:
    """Return the answer that `dump_answer` wrote."""
    try:
        data = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    reply: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in data["reply"].items()
    }
    calls = tuple(ToolCall(**call) for call in data["tool_calls"])
    answer = Answer(Reply(**reply), calls, Usage(**data["usage"]), tuple(data.get("left_out", ())))
    texts = (answer.text, *(part for call in calls for part in (call.name, call.arguments)), *answer.left_out)
    counts = (answer.usage.prompt, answer.usage.cached, answer.usage.completion)
    if not all(isinstance(part, str) for part in texts) or not all(type(n) is int and n >= 0 for n in counts):
        raise TypeError("a part of the answer has another type")
    if answer.reply.finish not in ("stop", "length"):
        raise ValueError(f"an answer cannot end with {answer.reply.finish!r}")
    return answer
