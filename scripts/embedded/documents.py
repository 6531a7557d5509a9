"""Words of texts, which replies are short and clean, and files of rows."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_rows(path: Path) -> Iterator[Callable[[object], object]]:
    """Write JSON rows to a compressed file, which has its name only when it is complete."""
    part = path.with_name(path.name + ".part")
    with gzip.open(part, "wt", encoding="utf-8", compresslevel=3) as file:
        yield lambda row: file.write(json.dumps(row) + "\n")
    os.replace(part, path)


_WORD = re.compile(r"[\w']+")
_PLAIN = re.compile(r"[\w\s.,;:?!'\"()&%/-]+")


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


SHORT = 11
"""Words of the longest reply that is called short. Small models make sense of these far more often than of longer ones."""


def is_short(reply: str) -> bool:
    return len(words(reply)) <= SHORT


def is_clean_reply(text: str, line: str) -> bool:
    """Return whether a reply is a sentence or a few, and does not copy six words of the line."""
    tokens = words(text)
    if not (3 <= len(tokens) <= 40 and _PLAIN.fullmatch(text) and text[-1] in ".?!" and text[0].isupper()):
        return False
    spoken = words(line)
    grams = {tuple(spoken[k : k + 6]) for k in range(len(spoken) - 5)}
    return not any(tuple(tokens[k : k + 6]) in grams for k in range(len(tokens) - 5))
