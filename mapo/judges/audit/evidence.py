"""Is a judge's evidence really there? A level rests on words "copied from the reply letter by letter": this
looks.

Compared without case, width, punctuation and spacing; an ellipsis may stand for what was left out, the parts
in their order. A judge that quotes what nobody said has judged something else, or was made to say so.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from mapo.measure.stats import Interval, wilson
from mapo.types import Levels

_GAP = re.compile(r"\.{2,}|…+|\[…\]|\[\.\.\.\]")


def quoted(evidence: str, reply: str) -> bool:
    """Whether the evidence, part by part, stands in the reply in that order."""
    text, at = _plain(reply), 0
    parts = [plain for part in _GAP.split(unicodedata.normalize("NFKC", evidence)) if (plain := _plain(part))]
    for part in parts:
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return bool(parts)


def _plain(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(c for c in folded if unicodedata.category(c)[0] in "LN")


@dataclass(frozen=True, slots=True)
class Quotes:
    """Of the marks that are not 0: how many there are, have evidence, and quote the reply with it."""

    marks: int
    given: int
    quoted: int

    @property
    def share(self) -> float | None:
        return self.quoted / self.marks if self.marks else None

    @property
    def interval(self) -> Interval | None:
        return wilson(self.quoted, self.marks) if self.marks else None

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "share": self.share, "interval": self.interval}


def quotes(judged: Iterable[tuple[Levels, str]]) -> Quotes:
    """Of forms, each with the reply it is about."""
    marks = given = found = 0
    for levels, reply in judged:
        for sides in levels.values():
            for mark in (sides.progress, sides.regression):
                if mark.level:
                    marks += 1
                    given += bool(_plain(mark.evidence))
                    found += quoted(mark.evidence, reply)
    return Quotes(marks, given, found)
