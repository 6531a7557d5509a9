"""Where known values stand in a text, all of them in one sweep.

A value, and what of it tells alone (a given name, the name in an e-mail, a street without its town), is kept
by the words it begins with. A text is gone through word by word, and only the values that begin like the text
there are looked at, so thousands of values cost no more than a few.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from mapo.realsim.private.words import ordinary, words

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
"""Words by which parts are told apart before they are compared."""
_LEAST_IN_A_MAIL, _LEAST_CHINESE, _LEAST_LATIN = 6, 4, 9
"""Letters of a part that tells: of the name in an e-mail, of a piece of an address."""


class _Part(NamedTuple):
    words: tuple[str, ...]
    any_case: bool


class Standing:
    """Parts of values by the words they begin with, and whose they are."""

    def __init__(self) -> None:
        self._parts: defaultdict[tuple[str, ...], dict[_Part, list[str]]] = defaultdict(dict)

    def add(self, key: str, written: str, kind: str, *, loose: bool) -> None:
        """`loose`: somebody named it, so it counts in any case."""
        for part in telling(written, kind):
            if first := _FIRST.search(part):
                begun = part[first.start() :]
                begin = tuple(word.casefold() for word in _FIRST.findall(begun)[:_DEEP])
                known = _Part(tuple(begun.split()), _in_any_case(begun, loose))
                self._parts[begin].setdefault(known, []).append(key)

    def everywhere(self, plain: str) -> Iterator[tuple[list[str], int, int]]:
        """Keys, start and end of every value in the plain text; they may overlap."""
        found = list(_FIRST.finditer(plain))
        low = [word[0].casefold() for word in found]
        for number, word in enumerate(found):
            for deep in range(1, min(_DEEP, len(found) - number) + 1):
                begin = tuple(low[number : number + deep])
                for part, keys in self._begun(begin):
                    if end := _end(part, plain, word.start()):
                        yield keys, word.start(), end

    def _begun(self, begin: tuple[str, ...]) -> Iterator[tuple[_Part, list[str]]]:
        """The parts that begin so, or so without a last "s" ("the Okonkwos")."""
        yield from self._parts.get(begin, {}).items()
        if begin[-1].endswith("s"):
            yield from self._parts.get((*begin[:-1], begin[-1][:-1]), {}).items()


def telling(written: str, kind: str) -> list[str]:
    """A value, and what of it tells alone."""
    whole = written.strip()
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
    """Not where it may be an ordinary word in small letters."""
    low = word.casefold()
    if _CODE.fullmatch(word):
        return True
    return len(word) >= 4 and low not in _also_words() and (loose or not ordinary(low))


def _end(part: _Part, plain: str, start: int) -> int:
    """Where a part that begins at `start` ends, whatever space is between its words; 0 if it is not there."""
    at = start
    for word in part.words:
        if at > start:
            gap = _SPACE.match(plain, at)
            at = gap.end() if gap else len(plain)
        there = plain[at : at + len(word)]
        if there != word and not (part.any_case and there.casefold() == word.casefold()):
            return 0
        at += len(word)
    if _HAN.match(plain[at - 1]):
        return 0 if at - start == 1 and not _alone(plain, start) else at
    if part.any_case and plain[at : at + 1] in ("s", "S") and not _LATIN.match(plain, at + 1):
        return at
    return 0 if _LATIN.match(plain, at) else at


def _alone(plain: str, at: int) -> bool:
    """Whether one Chinese character stands as a name does: by itself, or beside a title."""
    before, after = plain[max(0, at - 1) : at], plain[at + 1 : at + 3]
    if before in tuple("小老阿") or after.startswith((*words("chinese", "titles"), *"某哥姐叔婶嫂")):
        return True
    return not (_HAN.match(before) or _HAN.match(after))
