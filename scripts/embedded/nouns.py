"""Exchanging nouns: the same story about other things, so that what a model learns is to take up what was said.

Exchanged in a line and in its replies, nouns still agree; exchanged in a reply alone, the reply talks of something that
nobody mentioned.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache

from texts import Line, Person, train_scenarios, written_people

_WORD = re.compile(r"[A-Za-z]+")
_AN = re.compile(r"\b([Aa]) (?=[aeiou])")
_A = re.compile(r"\b([Aa])n (?=[^aeiou\W])")


_DETERMINED = re.compile(
    r"\b(?:the|a|an|my|your|his|her|its|our|their|this|that|these|those|every|each|another) (?:[a-z]+ )?([a-z]+)\b"
)
_ONSETS = [
    "b",
    "bl",
    "br",
    "c",
    "cl",
    "d",
    "dr",
    "f",
    "fl",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "pr",
    "r",
    "s",
    "sk",
    "sl",
    "st",
    "t",
    "tr",
    "v",
    "w",
]
_CODAS = ["ck", "d", "g", "l", "ll", "m", "n", "nd", "nk", "p", "rd", "rk", "rn", "st", "t", "x"]
MADE_UP = 0.3
NUMBERS = (
    "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
    "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
)  # fmt: skip
_PERSON = re.compile(
    r".*(?:er|or|ist|man|men|woman|women|ers|ors|ists)|.*(?:mum|dad|mom|aunt|uncle|son|girl|boy|child|wife|friend|cousin|niece|nephew|twin|baby|babies|people|family|boss|nurse|priest|couple)s?"
)


@lru_cache
def nouns() -> tuple[frozenset[str], frozenset[str]]:
    """Return singular and plural names of things: last words of the things in written stories that mostly follow a
    determiner, without people."""
    people = (*written_people(), *train_scenarios())
    heads = {thing.split()[-1] for person in people for thing in person.things}
    plain = {
        head
        for head in heads
        if head.isascii() and head.isalpha() and head.islower() and 3 <= len(head) <= 11
    }
    texts = [
        t.lower()
        for p in people
        for line in p.lines
        for t in (line.text, *(reply for _, reply in line.replies))
    ]
    every = Counter(word for text in texts for word in _WORD.findall(text))
    after = Counter(word for text in texts for word in _DETERMINED.findall(text))
    plain = {word for word in plain if after[word] >= 0.4 * every[word] and not _PERSON.fullmatch(word)}
    many = {word for word in plain if word.endswith("s") and not word.endswith(("ss", "us", "is"))}
    return frozenset(plain - many), frozenset(many)


@lru_cache
def _sorted_nouns() -> tuple[list[str], list[str]]:
    one, many = nouns()
    return sorted(one), sorted(many)


def known_nouns(text: str) -> set[str]:
    """Return the nouns of a text that can be exchanged."""
    one, many = nouns()
    return {word for word in _WORD.findall(text.lower()) if word in one or word in many}


def known_numbers(text: str) -> set[str]:
    """Return the number words of a text."""
    return {word for word in _WORD.findall(text.lower()) if word in NUMBERS}


def other(noun: str, rng: random.Random) -> str:
    """Return another noun of the same number, or another number."""
    if noun in NUMBERS:
        return rng.choice([word for word in NUMBERS if word != noun])
    one, many = _sorted_nouns()
    choices = many if noun in nouns()[1] else one
    return next(word for word in iter(lambda: rng.choice(choices), "") if word != noun)


def made_up(noun: str, rng: random.Random) -> str:
    """Return a word that does not exist, of the same number: it can only be taken up by copying it."""
    syllables = (rng.choice(_ONSETS) + rng.choice("aeiou") for _ in range(rng.choice((1, 2, 2))))
    word = "".join(syllables) + rng.choice(_CODAS)
    return f"{word}s" if noun in nouns()[1] else word


def with_nouns(text: str, changes: Mapping[str, str]) -> str:
    """Return a text with its nouns and numbers changed and its articles adapted."""
    if not changes:
        return text

    def change(match: re.Match[str]) -> str:
        word = match[0]
        new = changes.get(word.lower(), word)
        return new[:1].upper() + new[1:] if word[0].isupper() else new

    changed = _WORD.sub(change, text)
    if changed == text:
        return text
    return _A.sub(r"\1 ", _AN.sub(r"\1n ", changed))


def exchanged(person: Person, rng: random.Random, share: float) -> Person:
    """Return the person with about `share` of the nouns and numbers in lines exchanged, in lines and replies alike.
    Three in ten of the new nouns are made up."""
    spoken = set().union(*(known_nouns(line.text) for line in person.lines))
    changes = {
        noun: (made_up if rng.random() < MADE_UP else other)(noun, rng)
        for noun in sorted(spoken)
        if rng.random() < share
    }
    counted = set().union(*(known_numbers(line.text) for line in person.lines))
    changes |= {number: other(number, rng) for number in sorted(counted) if rng.random() < share}
    lines = [
        Line(
            with_nouns(line.text, changes),
            line.mood,
            line.feeling,
            line.shown,
            [(kind, with_nouns(reply, changes)) for kind, reply in line.replies],
        )
        for line in person.lines
    ]
    return Person(person.id, lines, person.things)
