"""What identifies people and has a form of its own: addresses, numbers, dates, handles; English and Chinese.

The patterns are data (`words/patterns.toml`) and only name the kind. Whether a number passes its checksum or
is in use is not asked: a card number with a wrong digit is still somebody's, so any long run of digits goes.
That is why no library of valid numbers is needed here. Patterns are tried in order on text with plain digits
and letters (`folded`), and what one has taken is no longer there for the next.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

NAME_KINDS = ("name", "place", "organisation")
KINDS = (
    *("email", "url", "secret", "handle", "ip", "iban", "national_id", "account", "date", "plate", "phone"),
    *("card", "postcode", "address", "number"),
    *NAME_KINDS,
)


class Found(NamedTuple):
    kind: str
    start: int
    end: int


class Pattern(NamedTuple):
    kind: str
    expression: re.Pattern[str]

    def spans(self, text: str) -> Iterator[Found]:
        group = "x" if "x" in self.expression.groupindex else 0
        for match in self.expression.finditer(text):
            yield Found(self.kind, *match.span(group))


def folded(text: str) -> str:
    """The same text, position by position, in plain forms: full-width and styled letters and digits."""
    return text if text.isascii() else "".join(map(_plain, text))


@lru_cache(maxsize=4096)
def _plain(char: str) -> str:
    plain = unicodedata.normalize("NFKC", char)
    return plain if len(plain) == 1 else char


def find_forms(text: str) -> Iterator[Found]:
    """Everything in the folded `text` that has such a form, the surest first; they may overlap."""
    for pattern in read_patterns("patterns", re.ASCII):
        yield from pattern.spans(text)


@lru_cache
def read_patterns(file: str, flags: int = 0, **macros: str) -> tuple[Pattern, ...]:
    """The patterns of a file, its macros and the given ones put in."""
    text = (
        files("mapo").joinpath("realsim", "private", "wordlists", f"{file}.toml").read_text(encoding="utf-8")
    )
    data = tomllib.loads(text)
    known = {**data["macros"], **macros}

    def full(text: str) -> str:
        return re.sub(r"%([A-Z]+)%", lambda found: known[found[1]], text)

    return tuple(
        Pattern(item["kind"], re.compile(full(item["text"]), flags | (re.I if item.get("case") else 0)))
        for item in data["pattern"]
    )
