"""Finds overlap between texts: exact copies, near copies, and short texts contained in longer ones.

A text becomes the set of its shingles: sequences of five words, or of eight characters in Chinese and
Japanese, which do not use spaces. Independent texts share almost none, while a copy with every tenth word
changed still shares half of them. The shingles of all texts are hashed into one sorted array, which shows
those that occur more than once; only texts that share enough of them are compared.
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
"""Jaccard similarity from which two texts count as near copies. No two of EMPA's 1,010 cards, which follow
one pattern, reach 0.05; copies with one word (in Chinese, character) in ten changed stay above 0.18.
"""
CONTAINED = 0.4
"""Fraction of the shorter text's shingles that must occur in the longer text to count as contained."""

Hashes = NDArray[np.int64]

_MIN_SHINGLES = 10  # shorter texts are not tested for containment
_COMMON = 40  # if more texts share a shingle, only neighbours are paired


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two overlapping texts. `similarity` is 1 for exact copies, Jaccard for near copies, else the contained
    fraction.
    """

    a: str
    b: str
    similarity: float
    kind: Literal["exact", "near", "contained"]

    def __str__(self) -> str:
        return f"{self.a} and {self.b}: {self.kind} ({self.similarity:.2f})"


def overlaps(texts: Mapping[str, str]) -> list[Overlap]:
    """Return all overlapping pairs, most similar first; for many copies of one text, enough pairs to connect
    them.
    """
    plain = {key: normalised(text) for key, text in texts.items()}
    hashes = _shingles({key: text for key, text in plain.items() if text})
    pairs = _candidates(hashes)
    shingles = {key: frozenset(hashes[key].tolist()) for key in {key for pair in pairs for key in pair}}
    result = []
    for a, b in pairs:
        if overlap := _compare(a, b, plain, shingles):
            result.append(overlap)
    return sorted(result, key=lambda x: (-x.similarity, x.a, x.b))


def texts_of(scenarios: Iterable[Scenario]) -> dict[str, str]:
    """Return the prose of scenarios by id, without the person's name, so that renamed copies are found."""
    return {s.id: _unnamed(s.text(), s.persona.name) for s in scenarios}


def _unnamed(text: str, name: str) -> str:
    if name not in text:
        return text
    pattern = re.escape(name)
    return re.sub(pattern if _UNSPACED.search(name) else rf"\b{pattern}\b", " ", text)


def compare_sets(sets: Mapping[str, Sequence[Scenario]]) -> tuple[list[Overlap], list[Overlap]]:
    """Return the overlaps within sets and those between sets (leakage); texts are named "set: id"."""
    texts, side = {}, {}
    for name, members in sets.items():
        for case, text in texts_of(members).items():
            texts[f"{name}: {case}"], side[f"{name}: {case}"] = text, name
    pairs = overlaps(texts)
    inside = [pair for pair in pairs if side[pair.a] == side[pair.b]]
    return inside, [pair for pair in pairs if side[pair.a] != side[pair.b]]


def families(keys: Iterable[str], pairs: Iterable[Overlap]) -> list[list[str]]:
    """Group the keys into connected components of overlapping texts."""
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
    """Remove case, diacritical marks and punctuation.

    Words are separated by single spaces; in mostly Chinese or Japanese text, spaces are removed.
    """
    if text.isascii():  # fast path with the same result
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
    """Return the hashes of each text's shingles in order. A text shorter than a shingle counts as one
    shingle.
    """
    shingles = {}
    for spaced, length in ((True, WORDS), (False, CHARACTERS)):
        units = {key: _units(text, spaced, length) for key, text in plain.items() if (" " in text) == spaced}
        rolled = _rolling_hash(np.concatenate([np.zeros(0, np.int64), *units.values()]), length)
        start = 0
        for key, numbers in units.items():
            shingles[key] = rolled[start : start + len(numbers) - length + 1]
            start += len(numbers)
    return {key: shingles[key] for key in plain}


@lru_cache(maxsize=2048)
def _units(text: str, spaced: bool, fewest: int) -> Hashes:
    """Return the words or characters of a text as numbers, padded with zeros to `fewest`."""
    if spaced:
        words = text.split()
        units = np.fromiter(map(hash, words), np.int64, len(words))
    else:
        units = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.int64)
    return np.pad(units, (0, fewest - len(units))) if len(units) < fewest else units


def _rolling_hash(units: Hashes, length: int) -> Hashes:
    """Return the hash of each run of `length` units: a polynomial modulo 2**64."""
    count = max(0, len(units) - length + 1)
    hashes = np.zeros(count, np.int64)
    for start in range(length):
        hashes = hashes * _FACTOR + units[start : start + count]
    return hashes


_FACTOR = np.int64(0x1E3779B97F4A7C15)  # an arbitrary odd number


def _candidates(hashes: Mapping[str, Hashes]) -> list[tuple[str, str]]:
    """Return the pairs that share enough shingles to be compared."""
    size = {
        key: len(values) for key, values in hashes.items()
    }  # reduced below to the number of distinct shingles
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
    # Common shingles are not counted above, hence the margin below NEAR.
    enough = {(a, b) for (a, b), count in shared.items() if count >= NEAR / 2 * min(size[a], size[b])}
    return sorted(enough | linked)


def _repeated(hashes: Mapping[str, Hashes]) -> Iterator[tuple[int, str]]:
    """Yield the shingles that occur more than once, in text order, each with its text."""
    if not hashes:
        return
    keys = list(hashes)
    every = np.concatenate(list(hashes.values()))
    text = np.repeat(np.arange(len(keys)), [len(values) for values in hashes.values()])
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
    if shorter >= _MIN_SHINGLES and both / shorter >= CONTAINED:
        return Overlap(a, b, both / shorter, "contained")
    return None
