"""Check of a judge's evidence: are the words it quotes really in the reply?

A judge that quotes words that are not there has rated something else, or was manipulated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from mapo.measure.stats import Interval, wilson
from mapo.sandbox.faults.quotes import letters, quoted
from mapo.types import Levels


@dataclass(frozen=True, slots=True)
class Quotes:
    """Counts of nonzero marks: all, those with evidence, and those whose evidence is in the reply."""

    marks: int
    given: int
    quoted: int

    @property
    def share(self) -> float | None:
        """Share of marks whose evidence is in the reply."""
        return self.quoted / self.marks if self.marks else None

    @property
    def interval(self) -> Interval | None:
        """95 % interval of `share`."""
        return wilson(self.quoted, self.marks) if self.marks else None

    def as_json(self) -> dict[str, Any]:
        """Return the counts, the share and its interval."""
        return {**asdict(self), "share": self.share, "interval": self.interval}


def count_quotes(forms: Iterable[tuple[Levels, str]]) -> Quotes:
    """Count the evidence of a judge's forms, each given with the reply it rates.

    A judge that writes no text in any of them, because its levels are read out, has nothing to count.
    """
    marks = given = quotes = 0
    writes = False
    for levels, reply in forms:
        for axis in levels.values():
            for mark in (axis.progress, axis.regression):
                writes = writes or bool(mark.evidence or mark.reason)
                if mark.level:
                    marks += 1
                    given += bool(letters(mark.evidence))
                    quotes += quoted(mark.evidence, reply)
    if not writes:
        return Quotes(0, 0, 0)
    return Quotes(marks, given, quotes)
