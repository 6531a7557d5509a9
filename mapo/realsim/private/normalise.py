"""Letters without their dress: no accents, nothing invisible, none of another script that look the same.

"Wiśniewska" is found as "Wisniewska", with a Cyrillic "і", and spelt out letter by letter. `bare` keeps every
position, so that what is found can be replaced; `stripped` need not, and takes away more.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache

from mapo.realsim.private.words import vocabulary

_LIKE = str.maketrans(
    "аеорсухіјѕһԁкАВЕКМНОРСТХУІЈЅοανιρκΑΒΕΖΗΙΚΜΝΟΡΤΥΧıłøđðɑɡŁØĐÐ",
    "aeopcyxijshdkABEKMHOPCTXYIJSoavipkABEZHIKMNOPTYXiloddagLODD",
)
"""Letters that look like Latin ones, from Cyrillic, Greek and the edges of Latin."""
_SEVERAL = str.maketrans({"ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE"})
_WORD = re.compile(r"[^\W_]+")
_HAN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_LEAST_LATIN, _LEAST_CHINESE = 5, 3
"""Letters of a name that do not meet by chance when it is written in pieces."""
_LETTERS_THAT_ARE_WORDS = ("a", "i")


def bare(text: str) -> str:
    """The same text, position by position, in plain letters."""
    return text if text.isascii() else "".join(map(_plain, text))


def stripped(text: str) -> str:
    """The text in plain letters, without marks and characters that nobody sees."""
    if text.isascii():
        return text
    plain = bare(unicodedata.normalize("NFKC", text)).translate(_SEVERAL)
    return "".join(char for char in plain if unicodedata.category(char) not in ("Mn", "Cf"))


@lru_cache(maxsize=4096)
def _plain(char: str) -> str:
    apart = unicodedata.normalize("NFKD", char)
    letters = [part for part in apart if unicodedata.category(part) != "Mn"]
    return (letters[0] if len(letters) == 1 else char).translate(_LIKE)


class Pieces:
    """A stripped text as one run of letters and digits, and where its words begin and end in it."""

    def __init__(self, plain: str) -> None:
        found = [part for word in _WORD.findall(plain.casefold()) for part in _parts(word)]
        self._words: dict[int, str] = {}
        self._ends: set[int] = set()
        at = 0
        for word in found:
            self._words[at] = word
            at += len(word)
            self._ends.add(at)
        self._dense = "".join(found)

    def hold(self, names: Iterable[str]) -> bool:
        """Whether one of `names` stands here from the beginning of a word to the end of another."""
        return any(self._holds("".join(_WORD.findall(name.casefold()))) for name in names)

    def _holds(self, name: str) -> bool:
        if len(name) < (_LEAST_CHINESE if _HAN.search(name) else _LEAST_LATIN):
            return False
        at = self._dense.find(name)
        while at >= 0:
            if at in self._words and at + len(name) in self._ends and not self._plain_words(at, len(name)):
                return True
            at = self._dense.find(name, at + 1)
        return False

    def _plain_words(self, start: int, length: int) -> bool:
        """Whether what stands there is a row of English words: "am in a" is no Amina. One word alone is for
        others to tell."""
        words, at = [], start
        while at < start + length:
            words.append(self._words[at])
            at += len(words[-1])
        known = vocabulary()
        return len(words) == 1 or all(
            word in known if len(word) > 1 else word in _LETTERS_THAT_ARE_WORDS for word in words
        )


def _parts(word: str) -> list[str]:
    """Each Chinese character is a word of its own."""
    return list(word) if _HAN.search(word) else [word]
