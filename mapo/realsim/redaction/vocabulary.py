"""Word lists: speaker roles, names, places, and words that are capitalised anyway.

They are data (`wordlists/*.toml`, words separated by spaces) and were written for this package.
`vocabulary.txt` holds lower-case English words: those that the shipped scenarios use at least twice, and some
from chats. A word that is not among them may be a name.
"""

from __future__ import annotations

import re
import tomllib
from functools import lru_cache
from importlib.resources import files

SHORT = 3
"""Words with fewer letters are always treated as ordinary."""
_ENDINGS = ("s", "es", "d", "ed", "ing", "ly", "er", "est", "y", "ness", "ful", "less")


@lru_cache
def words(file: str, key: str) -> frozenset[str]:
    """Return a word list of `wordlists/FILE.toml`."""
    return frozenset(_tables(file)[key].split())


@lru_cache
def vocabulary() -> frozenset[str]:
    """Return the lower-case English words that are not names."""
    return frozenset(_read("vocabulary.txt").split())


def ordinary(word: str) -> bool:
    """Return whether a lower-case word, or its stem, is in the vocabulary."""
    parts = re.split(r"['’-]", word)
    if len(parts) > 1:
        return all(ordinary(part) for part in parts)
    known = vocabulary()
    if word in known or len(word) < SHORT:
        return True
    for end in _ENDINGS:
        root = word.removesuffix(end)
        if root != word and {root, f"{root}e", root[:-1]} & known:
            return True
    return any(word[:i] in known and word[i:] in known for i in range(3, len(word) - 2))


def _read(name: str) -> str:
    return files("mapo").joinpath("realsim", "redaction", "wordlists", name).read_text(encoding="utf-8")


@lru_cache
def _tables(file: str) -> dict[str, str]:
    return {key: str(value) for key, value in tomllib.loads(_read(f"{file}.toml")).items()}
