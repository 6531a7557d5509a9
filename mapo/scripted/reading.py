"""Analyses replies by their words: what the scripted judges of all domains share.

English only, and no language understanding: function words, word order and overlap. It detects whether a
reply takes up particulars of what was told, and whether it is empty, stuffed with keywords, a copy of the
person's words or a repetition. Each domain defines further kinds of phrases (`Phrases`), which
`Reading.finds` looks for. docs/scripted-world.md describes how this can be fooled.
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
"""Number of words above which a reply is too long."""

Phrases = Mapping[str, re.Pattern[str]]
"""Patterns by the kind of phrase that a domain's judge looks for."""


def phrase_book(kinds: Mapping[str, Sequence[str]]) -> Phrases:
    """Compile the regular expressions of each kind, for lower-case text and at word boundaries."""
    return {kind: re.compile(rf"\b(?:{'|'.join(some)})\b") for kind, some in kinds.items()}


@lru_cache
def function_words() -> frozenset[str]:
    """Return the English function words."""
    return frozenset(_english()["function_words"].split())


@lru_cache
def _determiners() -> frozenset[str]:
    return frozenset(_english()["determiners"].split())


@lru_cache
def _english() -> dict[str, str]:
    return tomllib.loads((files("mapo") / "scripted" / "english.toml").read_text(encoding="utf-8"))


def words(text: str) -> list[str]:
    """Return the lower-case words of a text."""
    return _WORD.findall(text.lower().replace("\u2019", "'"))


@lru_cache(maxsize=65536)
def content(text: str) -> frozenset[str]:
    """Return the content words, truncated to stems of five letters so that endings do not matter."""
    function = function_words()
    return frozenset(w[:5] for w in words(text) if w not in function)


def particulars(text: str) -> list[str]:
    """Return the longer content words of a line without annotations."""
    return [w for w in words(text) if len(w) > 3 and w not in function_words()]


def skeleton(sentence: str) -> str:
    """Return the formula of a sentence: its function words in order, with a gap for each run of other words.

    All determiners count as the same word, and a list of things counts as one thing.
    """
    return _LISTED.sub("the _", _with_gaps(sentence))


def _with_gaps(sentence: str) -> str:
    function, determiners = function_words(), _determiners()
    tokens = ["the" if w in determiners else w if w in function else "_" for w in words(sentence)]
    return " ".join(m for i, m in enumerate(tokens) if m != "_" or i == 0 or tokens[i - 1] != "_")


def grams(text: str, n: int = 4) -> set[tuple[str, ...]]:
    """Return the word n-grams of a text."""
    w = words(text)
    return {tuple(w[i : i + n]) for i in range(len(w) - n + 1)}


def small_word_pairs(text: str) -> list[tuple[str, str]]:
    """Return pairs of neighbouring function words within clauses."""
    function, pairs = function_words(), []
    for clause in _CLAUSE.split(text):
        tokens = words(clause)
        pairs += [(a, b) for a, b in pairwise(tokens) if a in function and b in function]
    return pairs


@lru_cache
def _known_pairs() -> frozenset[tuple[str, ...]]:
    text = (files("mapo") / "scripted" / "bigrams.txt").read_text(encoding="utf-8")
    return frozenset(tuple(line.split()) for line in text.splitlines())


@dataclass(slots=True)
class Reader:
    """Reads the replies of one dialogue in order and remembers earlier messages."""

    phrases: Phrases = field(default_factory=dict)
    user_grams: set[tuple[str, ...]] = field(default_factory=set)
    user_stems: set[str] = field(default_factory=set)
    reply_grams: set[tuple[str, ...]] = field(default_factory=set)
    formula_counts: Counter[str] = field(default_factory=Counter)

    def user_said(self, text: str) -> None:
        """Remember a user message."""
        self.user_grams |= grams(text)
        self.user_stems |= content(text)

    def read(self, text: str) -> Reading:
        """Analyse a reply and remember it."""
        tokens = words(text)
        sentences = [x for x in _SENTENCE.findall(text) if words(x)]
        fresh = []
        for sentence in sentences:
            formula = skeleton(sentence)
            if self.formula_counts[formula] < 2:
                fresh.append(sentence)
            self.formula_counts[formula] += 1
        reply_grams = grams(text)
        parroted = len(reply_grams & self.user_grams) / len(reply_grams) if reply_grams else 0.0
        repeated = (
            len(reply_grams & self.reply_grams) / len(reply_grams)
            if reply_grams
            else float(bool(tokens) and tuple(tokens) in self.reply_grams)
        )
        self.reply_grams |= reply_grams
        if not reply_grams and tokens:
            self.reply_grams.add(tuple(tokens))
        degenerate = _degenerate(tokens, text, len(sentences)) or _heaps_words(sentences, self.user_stems)
        return Reading(text, tuple(tokens), " ".join(fresh), parroted, repeated, degenerate, self.phrases)


def _degenerate(tokens: list[str], text: str, sentences: int) -> bool:
    """Return whether a reply is empty, fragmentary or word salad.

    Sentences of fewer than five words on average count as fragments. In running English about three of four
    pairs of neighbouring function words occur in our own prose (`bigrams.txt`), in word salad hardly one in
    ten.
    """
    n = len(tokens)
    if n < 4 or n < 5 * sentences - 1:
        return True
    function = function_words()
    share = sum(w in function for w in tokens) / n
    if not 0.25 <= share <= 0.95 or (n >= 12 and len(set(tokens)) / n < 0.5):
        return True
    pairs, known = small_word_pairs(text), _known_pairs()
    if n >= 10 and len(pairs) < 0.12 * n:  # sentences have neighbouring function words, lists have none
        return True
    return len(pairs) >= 4 and sum(pair in known for pair in pairs) < 0.4 * len(pairs)


def _heaps_words(sentences: list[str], user_stems: set[str]) -> bool:
    """Return whether a reply piles up the person's own words: too many of them, or lists of nouns."""
    copied = [content(sentence) & user_stems for sentence in sentences]
    lists = any(_LIST_OF_THREE.search(_with_gaps(sentence)) for sentence in sentences)
    return lists or any(len(stems) > 7 for stems in copied) or len(frozenset().union(*copied)) > 14


@dataclass(frozen=True, slots=True)
class Reading:
    """The analysis of one reply. `fresh` is the text without sentences whose formula was already used twice;
    only it can earn progress.
    """

    text: str
    words: tuple[str, ...]
    fresh: str
    parroted: float
    repeated: float
    degenerate: bool
    phrases: Phrases = field(default_factory=dict)

    @property
    def copied(self) -> bool:
        """Whether the reply mostly copies the person's words."""
        return self.parroted > 0.35

    @property
    def stale(self) -> bool:
        """Whether the reply repeats earlier replies or consists only of worn formulas."""
        return self.repeated > 0.5 or not self.fresh.strip()

    @property
    def sound(self) -> bool:
        """Whether the reply consists of real sentences that are neither copied nor repeated."""
        return not (self.degenerate or self.copied or self.stale)

    @property
    def long(self) -> bool:
        """Whether the reply is too long."""
        return len(self.words) > LONG

    def mentions(self, terms: Iterable[str]) -> list[str]:
        """Return the particulars that the reply takes up."""
        stems = content(self.fresh)
        return [term for term in terms if (c := content(term)) and len(c & stems) * 2 >= len(c)]

    def covers(self, phrase: str) -> bool:
        """Return whether the reply contains at least half of the phrase's content words."""
        return bool(self.mentions([phrase]))

    def finds(self, kind: str) -> str:
        """Return the first phrase of that kind in the reply, or an empty string."""
        return self._search(kind, self.text)

    def does(self, kind: str) -> bool:
        """Return whether `fresh` contains a phrase of that kind."""
        return bool(self._search(kind, self.fresh))

    def _search(self, kind: str, text: str) -> str:
        match = self.phrases[kind].search(text.lower().replace("\u2019", "'"))
        return match[0] if match else ""
