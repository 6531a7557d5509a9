"""Foldings of text in which the same word always looks the same, whatever letters it is written in.

"Wiśniewska" is found as "Wisniewska", with a Cyrillic "і", and in full-width letters. `fold_forms` and
`fold_letters` keep every position, so that a match can be replaced in the original text; `fold_all` and
`squeeze` do not, and remove more.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

_LIKE = str.maketrans(
    "аеорсухіјѕһԁкАВЕКМНОРСТХУІЈЅοανιρκΑΒΕΖΗΙΚΜΝΟΡΤΥΧıłøđðɑɡŁØĐÐ",
    "aeopcyxijshdkABEKMHOPCTXYIJSoavipkABEZHIKMNOPTYXiloddagLODD",
)
"""Cyrillic, Greek and extended Latin letters that look like basic Latin ones."""
_SEVERAL = str.maketrans({"ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE"})


def fold_forms(text: str) -> str:
    """Return the text with full-width and styled letters and digits in their plain forms, position by
    position."""
    return text if text.isascii() else "".join(map(_plain_form, text))


@lru_cache(maxsize=4096)
def _plain_form(char: str) -> str:
    plain = unicodedata.normalize("NFKC", char)
    return plain if len(plain) == 1 else char


def fold_letters(text: str) -> str:
    """Return the text without accents and with Latin letters for lookalikes, position by position."""
    return text if text.isascii() else "".join(map(_plain_letter, text))


@lru_cache(maxsize=4096)
def _plain_letter(char: str) -> str:
    apart = unicodedata.normalize("NFKD", char)
    letters = [part for part in apart if unicodedata.category(part) != "Mn"]
    return (letters[0] if len(letters) == 1 else char).translate(_LIKE)


def fold_all(text: str) -> str:
    """Return the text in plain letters, with ligatures expanded and without combining or invisible
    characters."""
    if text.isascii():
        return text
    plain = fold_letters(unicodedata.normalize("NFKC", text)).translate(_SEVERAL)
    return "".join(char for char in plain if unicodedata.category(char) not in ("Mn", "Cf"))


def squeeze(text: str) -> str:
    """Return the letters and digits alone, in plain lower case."""
    return "".join(c for c in unicodedata.normalize("NFKC", text).casefold() if c.isalnum())
