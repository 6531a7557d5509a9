"""Search for known private values in a text, also where they are written differently or only in part.

A value, and the parts of it that identify it alone (a given name, the name in an e-mail address, a street
without its town), is indexed by its first words. The text is scanned once, and at each word only the values
that start with it are compared, so thousands of values cost little more than a few. `LetterRun` finds names
that are spelt out or run together.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from mapo.realsim.redaction.vocabulary import ordinary, vocabulary, words

_CJK = r"\u3040-\u30ff\u3400-\u9fff"
_HAN = re.compile(rf"[{_CJK}]")
_LETTER = rf"[^\W_{_CJK}]"
_LATIN = re.compile(_LETTER)
_SPACE = re.compile(r"\s+")
_FIRST = re.compile(rf"{_LETTER}+|[{_CJK}]")
_DISTRICT = re.compile(r"([A-Z]{1,2}\d[A-Z\d]?) ?\d[A-Z]{2}|([A-Z]\d[A-Z]) ?\d[A-Z]\d", re.I)
"""The first half of a British or Canadian postcode."""
_CODE = re.compile(r"(?=\w*\d)(?=\w*[^\W\d_])\w+")
_DEEP = 4
"""Maximum number of first words used as an index key."""
_LEAST_IN_A_MAIL, _LEAST_CHINESE, _LEAST_LATIN = 6, 4, 9
"""Minimum number of letters for a part to identify a value: the name in an e-mail, a piece of an address."""
_WORD = re.compile(r"[^\W_]+")
_LEAST_RUN_LATIN, _LEAST_RUN_CHINESE = 5, 3
"""Minimum number of letters for a name that is unlikely to arise by chance from pieces of other words."""
_LETTERS_THAT_ARE_WORDS = ("a", "i")


class _Part(NamedTuple):
    words: tuple[str, ...]
    any_case: bool


_MONTH_ONLY = re.compile(r"[A-Za-z]{3,9}\.?|(?:\d{1,2}|[一二三四五六七八九十]{1,2})月[份初底上中下旬]*")


class ValueIndex:
    """The identifying parts of values, indexed by their first words."""

    def __init__(self) -> None:
        self._parts: defaultdict[tuple[str, ...], dict[_Part, list[str]]] = defaultdict(dict)

    def add(self, key: str, written: str, kind: str, *, loose: bool) -> None:
        """Add a value. `loose`: it was explicitly named as private, so it matches in any case."""
        for part in identifying_parts(written, kind):
            if first := _FIRST.search(part):
                tail = part[first.start() :]
                begin = tuple(word.casefold() for word in _FIRST.findall(tail)[:_DEEP])
                known = _Part(tuple(tail.split()), _in_any_case(tail, loose))
                self._parts[begin].setdefault(known, []).append(key)

    def matches(self, plain: str) -> Iterator[tuple[list[str], int, int]]:
        """Yield keys, start and end of every value in the plain text; they may overlap."""
        words = list(_FIRST.finditer(plain))
        low = [word[0].casefold() for word in words]
        for number, word in enumerate(words):
            for deep in range(1, min(_DEEP, len(words) - number) + 1):
                begin = tuple(low[number : number + deep])
                for part, keys in self._starting_with(begin):
                    if end := _end(part, plain, word.start()):
                        yield keys, word.start(), end

    def _starting_with(self, begin: tuple[str, ...]) -> Iterator[tuple[_Part, list[str]]]:
        """Yield the parts that start with these words, also without a final "s" ("the Okonkwos")."""
        yield from self._parts.get(begin, {}).items()
        if begin[-1].endswith("s"):
            yield from self._parts.get((*begin[:-1], begin[-1][:-1]), {}).items()


def identifying_parts(written: str, kind: str) -> list[str]:
    """Return a value and the parts of it that identify it alone. A month without a year identifies nobody:
    it is replaced where it is a date, and is no leak elsewhere."""
    whole = written.strip()
    if kind == "date" and _MONTH_ONLY.fullmatch(whole):
        return []
    parts = [whole]
    if kind == "name" and _HAN.search(whole):
        alone = len(whole) >= 3 and not whole.endswith(tuple(words("chinese", "titles")))
        parts += [whole[1:]] if alone else []
    elif kind == "name":
        parts += [part for part in re.split(r"[\s.]+", whole) if len(part) > 2]
    elif kind == "email":
        parts += [x for x in [whole.split("@")[0]] if len(x) >= _LEAST_IN_A_MAIL]
    elif kind == "address":
        pieces = (piece.strip(" .-") for piece in re.split(r"[,，]|\d+", whole))
        parts += [piece for piece in pieces if _long(piece)]
    elif kind == "postcode" and (district := _DISTRICT.fullmatch(whole)):
        parts.append(district[1] or district[2])
    return list(dict.fromkeys(parts))


def _long(piece: str) -> bool:
    letters = sum(char.isalnum() for char in piece)
    return letters >= (_LEAST_CHINESE if _HAN.search(piece) else _LEAST_LATIN)


@lru_cache
def _also_words() -> frozenset[str]:
    return words("english", "also_words") | words("english", "capitals")


def _in_any_case(word: str, loose: bool) -> bool:
    """Return whether a part matches in any case: not if it may be an ordinary word in lower case."""
    low = word.casefold()
    if _CODE.fullmatch(word):
        return True
    return len(word) >= 4 and low not in _also_words() and (loose or not ordinary(low))


def _end(part: _Part, plain: str, start: int) -> int:
    """Return where a part that starts at `start` ends, with any space between its words; 0 if it does not
    match."""
    at = start
    for word in part.words:
        if at > start:
            gap = _SPACE.match(plain, at)
            at = gap.end() if gap else len(plain)
        actual = plain[at : at + len(word)]
        if actual != word and not (part.any_case and actual.casefold() == word.casefold()):
            return 0
        at += len(word)
    if _HAN.match(plain[at - 1]):
        return 0 if at - start == 1 and not _alone(plain, start) else at
    if part.any_case and plain[at : at + 1] in ("s", "S") and not _LATIN.match(plain, at + 1):
        return at
    return 0 if _LATIN.match(plain, at) else at


def _alone(plain: str, at: int) -> bool:
    """Return whether a single Chinese character is used like a name: by itself, or next to a title."""
    before, after = plain[max(0, at - 1) : at], plain[at + 1 : at + 3]
    if before in tuple("小老阿") or after.startswith((*words("chinese", "titles"), *"某哥姐叔婶嫂")):
        return True
    return not (_HAN.match(before) or _HAN.match(after))


class LetterRun:
    """A folded text as one run of letters and digits that remembers where words start and end."""

    def __init__(self, plain: str) -> None:
        pieces = [part for word in _WORD.findall(plain.casefold()) for part in _parts(word)]
        self._words: dict[int, str] = {}
        self._ends: set[int] = set()
        at = 0
        for word in pieces:
            self._words[at] = word
            at += len(word)
            self._ends.add(at)
        self._dense = "".join(pieces)

    def contains(self, names: Iterable[str]) -> bool:
        """Return whether one of `names` occurs from the start of a word to the end of another."""
        return any(self._contains("".join(_WORD.findall(name.casefold()))) for name in names)

    def _contains(self, name: str) -> bool:
        if len(name) < (_LEAST_RUN_CHINESE if _HAN.search(name) else _LEAST_RUN_LATIN):
            return False
        at = self._dense.find(name)
        while at >= 0:
            if at in self._words and at + len(name) in self._ends and not self._plain_words(at, len(name)):
                return True
            at = self._dense.find(name, at + 1)
        return False

    def _plain_words(self, start: int, length: int) -> bool:
        """Return whether these letters are several English words: "am in a" is not Amina. A single word is
        left to `ValueIndex`."""
        words, at = [], start
        while at < start + length:
            words.append(self._words[at])
            at += len(words[-1])
        known = vocabulary()
        return len(words) == 1 or all(
            word in known if len(word) > 1 else word in _LETTERS_THAT_ARE_WORDS for word in words
        )


def _parts(word: str) -> list[str]:
    """Split Chinese into characters: each is a word of its own."""
    return list(word) if _HAN.search(word) else [word]
