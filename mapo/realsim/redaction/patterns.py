"""Private information with a recognisable form: addresses, numbers, dates, handles; English and Chinese.

The patterns are data (`wordlists/patterns.toml`) and only name the kind. Checksums are not verified: a card
number with a wrong digit may still be identifying, so any long run of digits is replaced, and no library of
valid numbers is needed. Patterns are tried in order on text with plain digits and letters (`fold_forms`); a
later pattern does not see what an earlier one has matched.
"""

from __future__ import annotations

import re
import tomllib
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


class PrivateSpan(NamedTuple):
    """Position and kind of something private in a text."""

    kind: str
    start: int
    end: int


class Pattern(NamedTuple):
    """A regular expression for one kind; its group `x`, if any, is the private part."""

    kind: str
    expression: re.Pattern[str]

    def spans(self, text: str) -> Iterator[PrivateSpan]:
        """Yield all matches in a text."""
        group = "x" if "x" in self.expression.groupindex else 0
        for match in self.expression.finditer(text):
            yield PrivateSpan(self.kind, *match.span(group))


def find_forms(text: str) -> Iterator[PrivateSpan]:
    """Yield all matches in the folded `text`, most reliable first; they may overlap."""
    for pattern in read_patterns("patterns", re.ASCII):
        yield from pattern.spans(text)


@lru_cache
def read_patterns(file: str, flags: int = 0, **macros: str) -> tuple[Pattern, ...]:
    """Return the patterns of a file, with its own and the given macros expanded."""
    path = files("mapo").joinpath("realsim", "redaction", "wordlists", f"{file}.toml")
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    known = {**data["macros"], **macros}

    def expand(text: str) -> str:
        return re.sub(r"%([A-Z]+)%", lambda match: known[match[1]], text)

    return tuple(
        Pattern(item["kind"], re.compile(expand(item["text"]), flags | (re.I if item.get("case") else 0)))
        for item in data["pattern"]
    )
