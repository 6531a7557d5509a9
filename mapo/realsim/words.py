"""Lists of words: the roles of speakers, names, places, words that are written with a capital anyway.

They are data (`words/*.toml`, texts of words with spaces between) and were written down for this package.
"""

from __future__ import annotations

import tomllib
from functools import lru_cache
from importlib.resources import files


@lru_cache
def words(file: str, key: str) -> frozenset[str]:
    return frozenset(_tables(file)[key].split())


@lru_cache
def _tables(file: str) -> dict[str, str]:
    text = files("mapo").joinpath("realsim", "words", f"{file}.toml").read_text(encoding="utf-8")
    return {key: str(value) for key, value in tomllib.loads(text).items()}
