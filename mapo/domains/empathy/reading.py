"""Analyses what a reply does by its words, for the scripted judge of the empathy domain.

In addition to `mapo.scripted.reading`, it detects whether a reply names a feeling, affirms a deed, suggests a
step or links two things that were told, and whether it gives orders, dismisses, claims to understand or uses
platitudes. docs/scripted-world.md describes how it can be fooled.
"""

from __future__ import annotations

import re
import tomllib
from functools import lru_cache
from importlib.resources import files
from typing import Any

from mapo.scripted import reading as english
from mapo.scripted.reading import LONG, content, function_words, grams, skeleton, small_word_pairs, words

__all__ = [
    "LONG",
    "EmpathyReader",
    "EmpathyReading",
    "content",
    "data",
    "feelings",
    "function_words",
    "grams",
    "named_feelings",
    "skeleton",
    "small_word_pairs",
    "words",
]


@lru_cache
def data(name: str) -> dict[str, Any]:
    """Return the content of a TOML file of this domain."""
    return tomllib.loads((files("mapo") / "domains" / "empathy" / name).read_text(encoding="utf-8"))


@lru_cache
def _phrases() -> english.Phrases:
    return english.phrase_book(data("phrases.toml"))


_NEGATION = re.compile(r"(?:\bnot|n't|\bnever|\bno longer|\bno|\bwithout)\s+(?:\w+\s+)?$")


@lru_cache
def feelings() -> dict[str, dict[str, list[str]]]:
    """Return the names and signs of each feeling."""
    return data("feelings.toml")


@lru_cache
def _names() -> tuple[re.Pattern[str], dict[str, str]]:
    known = {name: feeling for feeling, words in feelings().items() for name in words["names"]}
    longest_first = sorted(known, key=len, reverse=True)
    return re.compile(rf"\b({'|'.join(map(re.escape, longest_first))})\b"), known


def named_feelings(text: str) -> dict[str, str]:
    """Return the feelings that a text names outside negations: feeling -> the word used."""
    pattern, known = _names()
    lower = text.lower()
    found: dict[str, str] = {}
    for match in pattern.finditer(lower):
        if not _NEGATION.search(lower[max(0, match.start() - 24) : match.start()]):
            found.setdefault(known[match[1]], match[1])
    return found


class EmpathyReader(english.Reader):
    """A Reader with this domain's phrases."""

    def __init__(self) -> None:
        super().__init__(_phrases())

    def read(self, text: str) -> EmpathyReading:
        reading = super().read(text)
        return EmpathyReading(**{name: getattr(reading, name) for name in english.Reading.__slots__})


class EmpathyReading(english.Reading):
    """The analysis of one reply, with a method per kind of phrase."""

    def links(self) -> bool:
        return self.does("link")

    def affirms(self) -> bool:
        return self.does("affirm")

    def offers(self) -> bool:
        return self.does("offer")

    def asks_agency(self) -> bool:
        return self.does("agency")

    def orders(self) -> str:
        return self.finds("order")

    def platitude(self) -> str:
        return self.finds("platitude")

    def dismisses(self) -> str:
        return self.finds("dismiss")

    def claims(self) -> str:
        return self.finds("claim")
