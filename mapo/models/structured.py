"""Answers that must have a form: ask, read strictly, show the model its mistake, give up after a while.

What a model writes is taken as JSON only where it leaves no doubt: the whole text, or what follows its
thinking, or one fenced block at the end. Nothing is searched for inside prose: a judge that quotes a reply
full of fake forms must not be read as having filled one in. Used by the judge and by directors without
tool calls.
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

AGAIN = """Your answer could not be used: {problem}.
Answer again: only the JSON object that was asked for, complete, with nothing before or after it."""


LONGEST = 500
"""Characters of a problem that are shown; it may quote the model at length."""

SHOWN = 6000
"""Characters of a failed answer that the model sees again. One that ran on until it was cut off would
otherwise fill the context, and the second attempt would fail by its length alone."""


async def ask(chat: Chat, request: Request, parse: Callable[[Any], _T], *, repairs: int = 2) -> _T:
    """What `parse` makes of the answer's JSON. `parse` raises InputError on what does not fit.

    A model that answers in the wrong form is asked again, its answer and the error before its eyes, at
    most `repairs` times; then AnswerError. Errors of the endpoint pass through.
    """
    for attempt in range(repairs + 1):
        answer = await chat.reply(request)
        try:
            return parse(_read(answer, request))
        except InputError as error:
            problem = storable(str(error)).rstrip(".")[:LONGEST]
        if attempt < repairs:
            shown = Message("assistant", answer.text.strip()[:SHOWN] or "(nothing)")
            told = Message("user", AGAIN.format(problem=problem))
            request = replace(request, messages=(*request.messages, shown, told))
    raise AnswerError(
        f"no usable answer in {repairs + 1} attempts; the last: {problem}",
        where=chat.name,
        fix="Use a model that can fill in forms, or raise max_tokens if answers are cut off",
    )


def _read(answer: Answer, request: Request) -> Any:
    if answer.reply.finish == "length":
        raise InputError(f"it was cut off after {request.max_tokens} tokens; be shorter")
    if not answer.text.strip():
        raise InputError("it was empty")
    return read_json(answer.text)


def read_json(text: str) -> Any:
    """The JSON that `text` is, with no thinking or one lead-in and fence around it; InputError otherwise."""
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
    """The inside of the only fenced block, if the text ends with it."""
    lines = text.split("\n")  # not splitlines: JSON strings may hold other line breaks
    fences = [number for number, line in enumerate(lines) if line.lstrip().startswith("```")]
    if len(fences) != 2 or fences[1] != len(lines) - 1 or lines[-1].strip() != "```":
        return None
    opening = lines[fences[0]].strip().lower()
    return "\n".join(lines[fences[0] + 1 : -1]) if opening in ("```json", "```") else None


def _strict(text: str) -> Any:
    """json.loads without its leniency; strings come back storable. ValueError says what is wrong."""
    try:
        data = json.loads(
            text.strip(), object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite
        )
        return _storable(data)
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key '{twice}' is there twice")
    return found


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"the number {text[:20]} is too large")
    return number


def _storable(data: Any) -> Any:
    """JSON escapes can bring back what was replaced in the text itself."""
    if isinstance(data, str):
        return storable(data)
    if isinstance(data, list):
        return [_storable(item) for item in data]
    if isinstance(data, dict):
        return {storable(key): _storable(value) for key, value in data.items()}
    return data
