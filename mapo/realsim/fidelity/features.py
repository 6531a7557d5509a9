"""Plain numbers about how a user writes, one value per dialogue. Word lists cover English and Chinese."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from mapo.sandbox.faults.manners import shingles, tokens, warm

Messages = Sequence[str]

_FIRST_PERSON = frozenset({"i", "me", "my", "mine", "myself", "i'm", "i've", "i'd", "i'll", "我", "咱", "俺"})
_HEDGES = re.compile(
    r"\b(?:maybe|perhaps|probably|i guess|i think|i suppose|kind of|kinda|sort of|sorta|not sure|might)\b"
    r"|可能|也许|大概|好像|或许|应该是|不太确定|吧[，。！？…\s]|吧$",
    re.IGNORECASE,
)
_FEELINGS = re.compile(
    r"\b(?:sad|angry|mad|afraid|scared|anxious|worried|nervous|lonely|tired|exhausted|hurt|ashamed|guilty|upset"
    r"|frustrated|stressed|happy|glad|relieved|proud|hate|love|cry|cried|crying|sick of|miss)\b"
    r"|难过|伤心|生气|愤怒|害怕|担心|焦虑|紧张|孤独|累|委屈|内疚|羞|烦|压力|开心|高兴|放心|骄傲|讨厌|爱|哭|想念|失望",
    re.IGNORECASE,
)
_POLITE = re.compile(
    r"\b(?:thank you|thanks|thx|please|sorry|excuse me|appreciate)\b"
    r"|谢谢|感谢|多谢|请(?!假|客)|麻烦你|不好意思|对不起|抱歉",
    re.IGNORECASE,
)
_END = re.compile(r"[.!?…。！？~～)）\]】\"”'’」]\s*$")


def _share(messages: Messages, holds: Callable[[str], object]) -> float:
    return sum(bool(holds(message)) for message in messages) / len(messages)


def _lengths(messages: Messages) -> list[int]:
    return [len(tokens(message)) for message in messages]


def _first_person(messages: Messages) -> float:
    words = [word.replace("’", "'") for message in messages for word in tokens(message)]
    return sum(word in _FIRST_PERSON for word in words) / max(1, len(words))


def _early(messages: Messages) -> float:
    """Share of all words that are in the first third of the messages."""
    lengths = _lengths(messages)
    return sum(lengths[: -(-len(lengths) // 3)]) / max(1, sum(lengths))


def _repetition(messages: Messages) -> float:
    """Share of word sequences that the same user wrote in an earlier message."""
    seen: set[tuple[str, ...]] = set()
    repeated = total = 0
    for message in messages:
        now = shingles(message)
        repeated, total = repeated + len(now & seen), total + len(now)
        seen |= now
    return repeated / max(1, total)


def _diversity(messages: Messages) -> float:
    """Distinct words / sqrt(2 * words), Carroll's measure, which depends little on the amount of text."""
    words = [word for message in messages for word in tokens(message)]
    return len(set(words)) / float(np.sqrt(2 * max(1, len(words))))


FEATURES: dict[str, Callable[[Messages], float]] = {
    "messages": lambda messages: float(len(messages)),
    "words per message": lambda messages: float(np.mean(_lengths(messages))),
    "spread of lengths": lambda messages: float(np.std(_lengths(messages))),
    "questions": lambda messages: _share(messages, lambda text: "?" in text or "？" in text),
    "first person": _first_person,
    "hedges": lambda messages: _share(messages, _HEDGES.search),
    "feelings": lambda messages: _share(messages, _FEELINGS.search),
    "politeness": lambda messages: _share(messages, _POLITE.search),
    "without final punctuation": lambda messages: _share(messages, lambda text: not _END.search(text)),
    "told in the first third": _early,
    "repetition": _repetition,
    "lexical diversity": _diversity,
    "warm last message": lambda messages: float(warm(messages[-1])),
}
"""One number per dialogue. Shares are of messages, except those of words (first person, told in the first
third)."""


def feature_rows(users: Sequence[Messages]) -> NDArray[np.float64]:
    """Return [dialogue, feature]."""
    return np.array([[of(messages) for of in FEATURES.values()] for messages in users], dtype=np.float64)
