"""Do two sets of texts share anything? Exact copies, near copies, and short texts inside longer ones.

A text becomes the set of its shingles: runs of five words, or of eight characters in Chinese and Japanese,
which write no spaces. Two independent texts share next to none, while a copy in which every tenth word was
changed still shares half of them. All shingles of all texts are hashed into one array; sorted, it shows
which stand more than once, and only texts that share enough of those are compared.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mapo.scenarios.scenario import Scenario

WORDS = 5
CHARACTERS = 8
NEAR = 0.12
"""Jaccard similarity from which two texts count as near copies. Of EMPA's 1,010 cards, written to one
pattern, no two reach 0.05; copies with one word (in Chinese, character) in ten changed stay above 0.18."""
CONTAINED = 0.4
"""Share of the shorter text's shingles found in the longer one from which it counts as contained."""

Hashes = NDArray[np.int64]

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
    hashes = _shingles({key: text for key, text in plain.items() if text})
    pairs = _candidates(hashes)
    shingles = {key: frozenset(hashes[key].tolist()) for key in {key for pair in pairs for key in pair}}
    found = []
    for a, b in pairs:
        if overlap := _compare(a, b, plain, shingles):
            found.append(overlap)
    return sorted(found, key=lambda x: (-x.similarity, x.a, x.b))


def texts_of(scenarios: Iterable[Scenario]) -> dict[str, str]:
    """The prose of scenarios by id, without the person's name: a copy under another name is a copy."""
    return {s.id: _unnamed(s.text(), s.persona.name) for s in scenarios}


def _unnamed(text: str, name: str) -> str:
    if name not in text:
        return text
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


@lru_cache(maxsize=2048)  # a command may compare the shipped scenarios several times
def normalised(text: str) -> str:
    """A text without case, marks and punctuation: its words with a space between, or, where most of it is
    Chinese or Japanese, its characters with none."""
    if text.isascii():  # as below, in a fraction of the time
        return " ".join(text.translate(_ASCII).split())
    folded = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text).casefold())
    words = _NO_WORD.sub(" ", folded).strip()
    together = words.replace(" ", "")
    return together if len(_UNSPACED.findall(together)) * 2 > len(together) else words


_ASCII = "".join(chr(code).lower() if chr(code).isalnum() else " " for code in range(128))
_INVISIBLE = re.compile(r"[\u00ad\u200b-\u200f\u2060\ufeff]")
_NO_WORD = re.compile(r"[\W_]+")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]")


def _shingles(plain: Mapping[str, str]) -> dict[str, Hashes]:
    """The hashes of each text's shingles, in their order. One shorter than a shingle is a shingle itself."""
    found = {}
    for spaced, length in ((True, WORDS), (False, CHARACTERS)):
        units = {key: _units(text, spaced, length) for key, text in plain.items() if (" " in text) == spaced}
        rolled = _rolled(np.concatenate([np.zeros(0, np.int64), *units.values()]), length)
        start = 0
        for key, own in units.items():
            found[key] = rolled[start : start + len(own) - length + 1]
            start += len(own)
    return {key: found[key] for key in plain}


@lru_cache(maxsize=2048)
def _units(text: str, spaced: bool, fewest: int) -> Hashes:
    """The words or characters of a text as numbers, with zeros behind where they are too few."""
    if spaced:
        words = text.split()
        found = np.fromiter(map(hash, words), np.int64, len(words))
    else:
        found = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.int64)
    return np.pad(found, (0, fewest - len(found))) if len(found) < fewest else found


def _rolled(units: Hashes, length: int) -> Hashes:
    """The hash of each run of so many units: a polynomial in their numbers, modulo 2**64."""
    count = max(0, len(units) - length + 1)
    found = np.zeros(count, np.int64)
    for start in range(length):
        found = found * _FACTOR + units[start : start + count]
    return found


_FACTOR = np.int64(0x1E3779B97F4A7C15)  # odd and without a pattern


def _candidates(hashes: Mapping[str, Hashes]) -> list[tuple[str, str]]:
    """Pairs that share enough to be worth comparing."""
    size = {key: len(own) for key, own in hashes.items()}  # becomes the number of different shingles
    holders: dict[int, list[str]] = defaultdict(list)
    for shingle, key in _repeated(hashes):
        if key in holders[shingle][-1:]:
            size[key] -= 1
        else:
            holders[shingle].append(key)
    shared: Counter[tuple[str, str]] = Counter()
    linked: set[tuple[str, str]] = set()
    for keys in holders.values():
        if len(keys) > _COMMON:
            linked.update(pairwise(keys))
        else:
            shared.update(combinations(keys, 2))
    # A common shingle may have been left out of the count, hence the margin below NEAR.
    enough = {(a, b) for (a, b), count in shared.items() if count >= NEAR / 2 * min(size[a], size[b])}
    return sorted(enough | linked)


def _repeated(hashes: Mapping[str, Hashes]) -> Iterator[tuple[int, str]]:
    """The few shingles that stand more than once, in the order of the texts, each with its text."""
    if not hashes:
        return
    keys = list(hashes)
    every = np.concatenate(list(hashes.values()))
    text = np.repeat(np.arange(len(keys)), [len(own) for own in hashes.values()])
    order = np.argsort(every)
    same = np.diff(every[order]) == 0
    places = np.sort(order[np.append(same, False) | np.append(False, same)])
    for shingle, number in zip(every[places].tolist(), text[places].tolist(), strict=True):
        yield shingle, keys[number]


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
