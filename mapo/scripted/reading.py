"""What a reply says, read off its words: the part of a scripted judge's eyes that every domain needs.

English only, and no understanding: small words, word order and overlap. It sees whether a reply takes up
particulars of what was told; and whether it says nothing, stuffs keywords, hands the person's own words back
or repeats itself. What its words do beyond that is the domain's to know: it names kinds of phrases
(`Phrases`), and `Reading.finds` looks for them. How this can be fooled: docs/scripted-world.md.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)?")
_SENTENCE = re.compile(r"[^.!?\n]+[.!?]*")
_LISTED = re.compile(r"the _(?: (?:and |or |with )*the _)+")
_LIST_OF_THREE = re.compile(r"the _(?: (?:and |or |with )*the _){2}")
_CLAUSE = re.compile(r"[.!?;:,\n]")

LONG = 70
"""Words past which a reply is a lecture."""

Phrases = Mapping[str, re.Pattern[str]]
"""Kinds of phrases a domain's judge looks for."""


def phrase_book(kinds: Mapping[str, Sequence[str]]) -> Phrases:
    """Each kind's regular expressions over lower-case text, matched at word boundaries."""
    return {kind: re.compile(rf"\b(?:{'|'.join(some)})\b") for kind, some in kinds.items()}


@lru_cache
def function_words() -> frozenset[str]:
    return frozenset(_english()["function_words"].split())


@lru_cache
def _determiners() -> frozenset[str]:
    return frozenset(_english()["determiners"].split())


@lru_cache
def _english() -> dict[str, str]:
    return tomllib.loads((files("mapo") / "scripted" / "english.toml").read_text(encoding="utf-8"))


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower().replace("\u2019", "'"))


@lru_cache(maxsize=65536)
def content(text: str) -> frozenset[str]:
    """The words that carry the meaning, cut to stems of five letters so that endings do not matter."""
    function = function_words()
    return frozenset(w[:5] for w in words(text) if w not in function)


def particulars(text: str) -> list[str]:
    """The longer words of a line that nobody annotated."""
    return [w for w in words(text) if len(w) > 3 and w not in function_words()]


def skeleton(sentence: str) -> str:
    """The formula of a sentence: its function words in order, each run of others a gap.

    Determiners count as one word, and a list of things is as long as one thing.
    """
    return _LISTED.sub("the _", _gaps(sentence))


def _gaps(sentence: str) -> str:
    function, determiners = function_words(), _determiners()
    marks = ["the" if w in determiners else w if w in function else "_" for w in words(sentence)]
    return " ".join(m for i, m in enumerate(marks) if m != "_" or i == 0 or marks[i - 1] != "_")


def grams(text: str, n: int = 4) -> set[tuple[str, ...]]:
    w = words(text)
    return {tuple(w[i : i + n]) for i in range(len(w) - n + 1)}


def small_word_pairs(text: str) -> list[tuple[str, str]]:
    """Neighbouring function words, within clauses."""
    function, pairs = function_words(), []
    for clause in _CLAUSE.split(text):
        told = words(clause)
        pairs += [(a, b) for a, b in pairwise(told) if a in function and b in function]
    return pairs


@lru_cache
def _known_pairs() -> frozenset[tuple[str, ...]]:
    text = (files("mapo") / "scripted" / "bigrams.txt").read_text(encoding="utf-8")
    return frozenset(tuple(line.split()) for line in text.splitlines())


@dataclass(slots=True)
class Reader:
    """Reads the replies of one dialogue in order; knows what was said before."""

    phrases: Phrases = field(default_factory=dict)
    heard_from_user: set[tuple[str, ...]] = field(default_factory=set)
    said: set[str] = field(default_factory=set)
    own: set[tuple[str, ...]] = field(default_factory=set)
    formulas: Counter[str] = field(default_factory=Counter)

    def user_said(self, text: str) -> None:
        self.heard_from_user |= grams(text)
        self.said |= content(text)

    def read(self, text: str) -> Reading:
        """What this reply does; and remember it."""
        told = words(text)
        sentences = [x for x in _SENTENCE.findall(text) if words(x)]
        fresh = []
        for sentence in sentences:
            formula = skeleton(sentence)
            if self.formulas[formula] < 2:
                fresh.append(sentence)
            self.formulas[formula] += 1
        here = grams(text)
        parroted = len(here & self.heard_from_user) / len(here) if here else 0.0
        repeated = len(here & self.own) / len(here) if here else float(bool(told) and tuple(told) in self.own)
        self.own |= here
        if not here and told:
            self.own.add(tuple(told))
        degenerate = _degenerate(told, text, len(sentences)) or _heaped(sentences, self.said)
        return Reading(text, tuple(told), " ".join(fresh), parroted, repeated, degenerate, self.phrases)


def _degenerate(told: list[str], text: str, sentences: int) -> bool:
    """Nothing, fragments, or words without sentences.

    Sentences of fewer than five words on average are scraps: nothing one could answer.
    In running English about three of four neighbouring small words are a pair that stands in our own
    prose too; in word salad hardly one in ten.
    """
    n = len(told)
    if n < 4 or n < 5 * sentences - 1:
        return True
    function = function_words()
    share = sum(w in function for w in told) / n
    if not 0.25 <= share <= 0.95 or (n >= 12 and len(set(told)) / n < 0.5):
        return True
    pairs, known = small_word_pairs(text), _known_pairs()
    if n >= 10 and len(pairs) < 0.12 * n:  # sentences have neighbouring small words, lists have none
        return True
    return len(pairs) >= 4 and sum(pair in known for pair in pairs) < 0.4 * len(pairs)


def _heaped(sentences: list[str], said: set[str]) -> bool:
    """Piles up the person's own words instead of choosing among them: many of them, or lists of things."""
    mine = [content(sentence) & said for sentence in sentences]
    lists = any(_LIST_OF_THREE.search(_gaps(sentence)) for sentence in sentences)
    return lists or any(len(m) > 7 for m in mine) or len(frozenset().union(*mine)) > 14


@dataclass(frozen=True, slots=True)
class Reading:
    """`fresh` is the text without sentences whose formula has worn off; progress is read from it alone."""

    text: str
    words: tuple[str, ...]
    fresh: str
    parroted: float
    repeated: float
    degenerate: bool
    phrases: Phrases = field(default_factory=dict)

    @property
    def copied(self) -> bool:
        return self.parroted > 0.35

    @property
    def stale(self) -> bool:
        """Says what it said before, or nothing but worn formulas."""
        return self.repeated > 0.5 or not self.fresh.strip()

    @property
    def sound(self) -> bool:
        """Something is said, and it is the reply's own."""
        return not (self.degenerate or self.copied or self.stale)

    @property
    def long(self) -> bool:
        return len(self.words) > LONG

    def mentions(self, terms: Iterable[str]) -> list[str]:
        """Which of these particulars are taken up."""
        stems = content(self.fresh)
        return [term for term in terms if (c := content(term)) and len(c & stems) * 2 >= len(c)]

    def covers(self, phrase: str) -> bool:
        """At least half of the phrase's meaning is in the reply."""
        return bool(self.mentions([phrase]))

    def finds(self, kind: str) -> str:
        """The first phrase of that kind in the reply, or nothing."""
        return self._search(kind, self.text)

    def does(self, kind: str) -> bool:
        """Is there such a phrase in what has not worn off?"""
        return bool(self._search(kind, self.fresh))

    def _search(self, kind: str, text: str) -> str:
        match = self.phrases[kind].search(text.lower().replace("\u2019", "'"))
        return match[0] if match else ""
