"""Structured answers: request JSON, parse it strictly, and on an error ask the model to correct it.

JSON is accepted only where it is unambiguous: the complete text, the text after the model's thinking, or one
fenced block at the end. Prose is not searched for JSON: a judge that quotes a reply containing fake forms
must not be read as having filled one in. Used by the judge and by directors without tool calls.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from mapo.errors import AnswerError, InputError
from mapo.models.chat import Answer, Chat, Request
from mapo.models.wire import storable
from mapo.types import Message

_T = TypeVar("_T")

REPAIR_PROMPT = """Your answer could not be used: {problem}.
Answer again: only the JSON object that was asked for, complete, with nothing before or after it."""


MAX_PROBLEM_CHARS = 500
"""Longest error shown to the model; it may quote the model at length."""

MAX_ANSWER_CHARS = 6000
"""Longest part of a failed answer that is shown to the model again. A runaway answer would otherwise fill the
context, and the second attempt would fail because of its length."""


async def ask(chat: Chat, request: Request, parse: Callable[[Any], _T], *, repairs: int = 2) -> _T:
    """Send a request and return the result of `parse` on the answer's JSON.

    `parse` raises InputError for data it does not accept. The request is then repeated with the failed answer
    and the error, at most `repairs` times; after that AnswerError is raised. EndpointError passes through.
    """
    for attempt in range(repairs + 1):
        answer = await chat.reply(request)
        try:
            return parse(_read(answer, request))
        except InputError as error:
            problem = storable(str(error)).rstrip(".")[:MAX_PROBLEM_CHARS]
        if attempt < repairs:
            failed = Message("assistant", answer.text.strip()[:MAX_ANSWER_CHARS] or "(nothing)")
            correction = Message("user", REPAIR_PROMPT.format(problem=problem))
            request = replace(request, messages=(*request.messages, failed, correction))
    raise AnswerError(
        f"no usable answer in {repairs + 1} attempts; the last: {problem}",
        where=chat.name,
        fix="Use a model that follows JSON schemas, or raise max_tokens if answers are cut off",
    )


def _read(answer: Answer, request: Request) -> Any:
    if answer.reply.finish == "length":
        raise InputError(f"it was cut off after {request.max_tokens} tokens; be shorter")
    if not answer.text.strip():
        raise InputError("it was empty")
    return read_json(answer.text)


def read_json(text: str) -> Any:
    """Parse `text` as JSON, ignoring thinking before it and a single code fence with its lead-in around it.
    Raises InputError if that is not possible."""
    try:
        return _strict(text)
    except ValueError as error:
        problem = str(error)
    body = text.rpartition("</think>")[2].strip()
    fenced = _fenced(body)
    if fenced is None and body == text.strip():
        raise InputError(problem)
    try:
        return _strict(body if fenced is None else fenced)
    except ValueError as error:
        raise InputError(str(error)) from None


def _fenced(text: str) -> str | None:
    """Return the content of the only fenced block if the text ends with it."""
    lines = text.split("\n")  # not splitlines: JSON strings may contain other line breaks
    fences = [number for number, line in enumerate(lines) if line.lstrip().startswith("```")]
    if len(fences) != 2 or fences[1] != len(lines) - 1 or lines[-1].strip() != "```":
        return None
    opening = lines[fences[0]].strip().lower()
    return "\n".join(lines[fences[0] + 1 : -1]) if opening in ("```json", "```") else None


def _strict(text: str) -> Any:
    """Parse JSON, rejecting duplicate keys, NaN and infinity. Strings in the result are storable. Raises
    ValueError."""
    try:
        data = json.loads(
            text.strip(), object_pairs_hook=_unique, parse_constant=_reject, parse_float=_finite
        )
        return _storable(data)
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        keys = [key for key, _ in pairs]
        duplicate = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key '{duplicate}' occurs twice")
    return data


def _reject(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"the number {text[:20]} is too large")
    return number


def _storable(data: Any) -> Any:
    """Make all strings storable: JSON escapes can reintroduce characters that were replaced in the text."""
    if isinstance(data, str):
        return storable(data)
    if isinstance(data, list):
        return [_storable(item) for item in data]
    if isinstance(data, dict):
        return {storable(key): _storable(value) for key, value in data.items()}
    return data
