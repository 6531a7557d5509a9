"""Finding out with small requests whether a model thinks before it answers, how long, and what stops it.

Servers show thinking in a field of its own, in a `<think>` block, only in the usage, or not at all; then an
answer without text at a low token limit gives it away.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mapo.errors import EndpointError
from mapo.models.chat import Answer, Chat, Request
from mapo.text import without_thinking
from mapo.types import Message

SHORT, LONG = 16, 4096
"""Token limits of the probes: enough for one word, and enough for thinking before it."""
SWITCHES: Mapping[str, Mapping[str, Any]] = {
    "thinking=false": {"chat_template_kwargs": {"enable_thinking": False}},
    "reasoning_effort=none": {"reasoning_effort": "none"},
    "reasoning_effort=minimal": {"reasoning_effort": "minimal"},
    "reasoning_effort=low": {"reasoning_effort": "low"},
}
"""Body fields that may shorten thinking, the most effective first, as options write them."""

_QUESTION = Request((Message("user", "Say hello in one word."),), max_tokens=SHORT)


@dataclass(frozen=True, slots=True)
class ThinkingProbe:
    """How a model answers a short question.

    thinking: tokens before the text; 0 if it does not think. finishes: whether there was any text within
    `LONG` tokens. switch: the key of `SWITCHES` that stops the thinking or at least halves it, else empty;
    thinking_left: the tokens of thinking with it.
    """

    seconds: float
    tokens: int
    thinking: int = 0
    finishes: bool = True
    switch: str = ""
    thinking_left: int = 0

    @property
    def needed(self) -> int:
        """Token limit for a role: twice the thinking before one word, as a power of two from 2048."""
        limit = 2048
        while limit < 2 * self.thinking:
            limit *= 2
        return limit


async def probe_thinking(chat: Chat) -> ThinkingProbe:
    """Ask a short question, and more often if the model thinks. Raises EndpointError if there is no answer
    for another reason."""
    started = time.monotonic()
    first = await _answer(chat, _QUESTION)
    seconds = time.monotonic() - started
    if first is not None and not first.thinking and first.reply.finish == "stop":
        return ThinkingProbe(seconds, first.usage.completion)
    started = time.monotonic()
    whole = await _answer(chat, replace(_QUESTION, max_tokens=LONG))
    if first is not None and whole is not None and not whole.thinking:  # wordy, but without thinking
        return ThinkingProbe(seconds, first.usage.completion)
    spent = LONG if whole is None else max(_spent(whole), 0 if first else SHORT)
    found = ThinkingProbe(
        time.monotonic() - started,
        LONG if whole is None else whole.usage.completion,
        spent,
        whole is not None,
    )
    for name, body in SWITCHES.items():
        left = await _thinking_left(chat, body)
        if left <= spent // 2:
            return replace(found, switch=name, thinking_left=left)
    return found


async def _thinking_left(chat: Chat, body: Mapping[str, Any]) -> int:
    """Return the tokens of thinking with these body fields; `LONG` if they do not help."""
    try:
        short = await _answer(chat, replace(_QUESTION, body=body))
        if short is not None and not short.thinking and short.reply.finish == "stop":
            return 0
        whole = await _answer(chat, replace(_QUESTION, max_tokens=LONG, body=body))
    except EndpointError:  # most servers ignore fields they do not know; some refuse them
        return LONG
    return max(_spent(whole), SHORT) if whole is not None else LONG


async def _answer(chat: Chat, request: Request) -> Answer | None:
    """Return the answer; None if its token limit left no text."""
    try:
        answer = await chat.reply(request)
    except EndpointError as error:
        if "max_tokens" in error.problem:  # ours, and that of OpenAI's models
            return None
        raise
    return answer if without_thinking(answer.text).strip() else None


def _spent(answer: Answer) -> int:
    """Return the tokens of thinking, also if the server only shows that the answer was long."""
    text = len(without_thinking(answer.text).encode())
    return answer.thinking or (answer.usage.completion if answer.usage.completion > SHORT + text else 0)
