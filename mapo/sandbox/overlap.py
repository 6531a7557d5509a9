"""Do two sets of texts share anything? Exact copies, near copies, and short texts inside longer ones.

A text becomes the set of its shingles: runs of five words, or of eight characters in Chinese and Japanese,
which write no spaces. Two independent texts share next to none, while a copy in which every tenth word was
changed still shares half of them. An inverted index finds the pairs worth comparing.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Literal

from mapo.sandbox.scenario import Scenario

WORDS = 5
CHARACTERS = 8
NEAR = 0.12
"""Jaccard similarity from which two texts count as near copies. Of EMPA's 1,010 cards, written to one
pattern, no two reach 0.05; copies with one word (in Chinese, character) in ten changed stay above 0.18."""
CONTAINED = 0.4
"""Share of the shorter text's shingles found in the longer one from which it counts as contained."""

_FEWEST = 10  # shingles below which a text is too short for containment to mean anything
_COMMON = 40  # texts sharing a shingle above which only neighbours are paired, not all with all


@dataclass(frozen=True, slots=True)
class Overlap:
    """`similarity` is 1 for an exact copy, Jaccard for a near one, the contained share otherwise."""

    a: str
    b: str
    similarity: float
    kind: Literal["exact", "near", "contained"]

    def __str__(self) -> str:
        return f"{self.a} and {self.b}: {self.kind} ({self.similarity:.2f})"


def overlaps(texts: Mapping[str, str]) -> list[Overlap]:
    """All pairs that overlap, most alike first. Of many copies of one text, enough pairs to link them all."""
    plain = {key: normalised(text) for key, text in texts.items()}
    shingles = {key: _shingles(text) for key, text in plain.items() if text}
    found = []
    for a, b in _candidates(shingles):
        if overlap := _compare(a, b, plain, shingles):
            found.append(overlap)
    return sorted(found, key=lambda x: (-x.similarity, x.a, x.b))


def texts_of(scenarios: Iterable[Scenario]) -> dict[str, str]:
    """The prose of scenarios by id, without the person's name: a copy under another name is a copy."""
    return {s.id: _unnamed(s.text(), s.persona.name) for s in scenarios}


def _unnamed(text: str, name: str) -> str:
    whole = re.escape(name)
    return re.sub(whole if _UNSPACED.search(name) else rf"\b{whole}\b", " ", text)


def compare_sets(sets: Mapping[str, Sequence[Scenario]]) -> tuple[list[Overlap], list[Overlap]]:
    """What overlaps inside a set, and what between two (leakage); each side is named "set: id"."""
    texts, side = {}, {}
    for name, members in sets.items():
        for case, text in texts_of(members).items():
            texts[f"{name}: {case}"], side[f"{name}: {case}"] = text, name
    pairs = overlaps(texts)
    inside = [pair for pair in pairs if side[pair.a] == side[pair.b]]
    return inside, [pair for pair in pairs if side[pair.a] != side[pair.b]]


def families(keys: Iterable[str], pairs: Iterable[Overlap]) -> list[list[str]]:
    """The keys in groups: whatever overlaps, directly or through others, stays together."""
    root = {key: key for key in keys}

    def top(key: str) -> str:
        while root[key] != key:
            root[key] = root[root[key]]
            key = root[key]
        return key

    for pair in pairs:
        root[top(pair.a)] = top(pair.b)
    groups: dict[str, list[str]] = defaultdict(list)
    for key in root:
        groups[top(key)].append(key)
    return list(groups.values())


def normalised(text: str) -> str:
    """A text without case, marks and punctuation: its words with a space between, or, where most of it is
    Chinese or Japanese, its characters with none."""
    folded = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text).casefold())
    words = _NO_WORD.sub(" ", folded).strip()
    together = words.replace(" ", "")
    return together if len(_UNSPACED.findall(together)) * 2 > len(together) else words


_INVISIBLE = re.compile(r"[\u00ad\u200b-\u200f\u2060\ufeff]")
_NO_WORD = re.compile(r"[\W_]+")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]")


def _shingles(plain: str) -> frozenset[int]:
    if " " not in plain:
        return frozenset(hash(plain[i : i + CHARACTERS]) for i in range(max(1, len(plain) - CHARACTERS + 1)))
    words = plain.split()
    return frozenset(hash(tuple(words[i : i + WORDS])) for i in range(max(1, len(words) - WORDS + 1)))


def _candidates(shingles: Mapping[str, frozenset[int]]) -> list[tuple[str, str]]:
    """Pairs that share enough to be worth comparing."""
    first: dict[int, str] = {}
    holders: dict[int, list[str]] = {}  # of the few shingles that more than one text has
    for key, own in shingles.items():
        for shingle in own:
            other = first.setdefault(shingle, key)
            if other is not key:
                holders.setdefault(shingle, [other]).append(key)
    shared: Counter[tuple[str, str]] = Counter()
    linked: set[tuple[str, str]] = set()
    for keys in holders.values():
        if len(keys) > _COMMON:
            linked.update(pairwise(keys))
        else:
            shared.update(combinations(keys, 2))
    # A common shingle may have been left out of the count, hence the margin below NEAR.
    enough = {
        (a, b)
        for (a, b), count in shared.items()
        if count >= NEAR / 2 * min(len(shingles[a]), len(shingles[b]))
    }
    return sorted(enough | linked)


def _compare(
    a: str, b: str, plain: Mapping[str, str], shingles: Mapping[str, frozenset[int]]
) -> Overlap | None:
    if plain[a] == plain[b]:
        return Overlap(a, b, 1.0, "exact")
    both = len(shingles[a] & shingles[b])
    shorter = min(len(shingles[a]), len(shingles[b]))
    jaccard = both / (len(shingles[a]) + len(shingles[b]) - both)
    if jaccard >= NEAR:
        return Overlap(a, b, jaccard, "near")
    if shorter >= _FEWEST and both / shorter >= CONTAINED:
        return Overlap(a, b, both / shorter, "contained")
    return None
