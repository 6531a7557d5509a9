"""The blocks of a report: headings, paragraphs, tables, pictures, two dialogues side by side.

Sections build blocks; `page.py` renders them as HTML, `markdown.py` as Markdown. Blocks hold text exactly as
it was read, whoever wrote it. The renderers escape it and cut long names, turns and lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mapo.runs.contents import number
from mapo.show.figures import Picture
from mapo.show.tables import Table
from mapo.types import Dialogue

NAME = 120
"""Characters of a name that are shown."""
SPEECH = 4000
"""Characters of a turn that are shown."""
LISTED = 12
"""Lines of a list that are shown before the rest is only counted."""


@dataclass(frozen=True, slots=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Words:
    text: str


@dataclass(frozen=True, slots=True)
class Tile:
    """One number to see first: what it is, the number, what it rests on."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Tiles:
    tiles: Sequence[Tile]


@dataclass(frozen=True, slots=True)
class Lines:
    """A list; long ones are cut."""

    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Side:
    """One of two dialogues beside each other; `credit` has a number or None a turn."""

    title: str
    dialogue: Dialogue
    credit: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Talk:
    left: Side
    right: Side


Block = Heading | Words | Tiles | Table | Lines | Picture | Talk


@dataclass(frozen=True, slots=True)
class Report:
    title: str
    lead: str
    blocks: Sequence[Block]
    lacking: Sequence[str] = ()
    """Why runs that were asked for are not in it."""
    caution: str = ""
    """What nobody may miss who reads a number in it."""


# ---- numbers as text


def told(value: object, digits: str = ".1f", missing: str = "–") -> str:
    """A number in so many digits."""
    found = number(value)
    if found is None:
        return missing
    shown = format(found, digits)
    if shown.strip("+-0.,"):
        return shown
    return shown.replace("-", "+" if digits.startswith("+") else "")  # no zero is negative


def span(interval: object, digits: str = ".1f", missing: str = "–") -> str:
    """An interval as "low to high"."""
    ends = [number(end) for end in interval] if isinstance(interval, list | tuple) else []
    if len(ends) != 2 or None in ends:
        return missing
    return f"{told(ends[0], digits)} to {told(ends[1], digits)}"
