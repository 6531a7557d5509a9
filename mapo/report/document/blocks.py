"""The blocks of a report: headings, paragraphs, tables, pictures, two dialogues side by side.

Sections build blocks; `page.py` renders them as HTML, `markdown.py` as Markdown. Blocks hold untrusted text
unchanged; the renderers escape it and truncate long names, turns and lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mapo.runs.contents import number
from mapo.show.figures import Picture
from mapo.show.tables import Table
from mapo.types import Dialogue

MAX_NAME = 120
"""Maximum characters of a name."""
MAX_TURN_TEXT = 4000
"""Maximum characters of a message."""
MAX_LIST_ITEMS = 12
"""Maximum items of a list; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str


@dataclass(frozen=True, slots=True)
class StatTile:
    """A key number with its label and a detail such as its interval."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class StatTiles:
    tiles: Sequence[StatTile]


@dataclass(frozen=True, slots=True)
class BulletList:
    """A bullet list; long lists are truncated."""

    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class DialogueColumn:
    """One of two dialogues side by side."""

    title: str
    dialogue: Dialogue


@dataclass(frozen=True, slots=True)
class DialoguePair:
    left: DialogueColumn
    right: DialogueColumn


Block = Heading | Paragraph | StatTiles | Table | BulletList | Picture | DialoguePair


@dataclass(frozen=True, slots=True)
class Report:
    title: str
    lead: str
    blocks: Sequence[Block]
    lacking: Sequence[str] = ()
    """Why requested runs are not in the report."""
    caution: str = ""
    """A warning shown before any number."""


# ---- numbers as text


def format_number(value: object, digits: str = ".1f", missing: str = "–") -> str:
    """Format a number with a format specification; `missing` if it is not a finite number."""
    found = number(value)
    if found is None:
        return missing
    shown = format(found, digits)
    if shown.strip("+-0.,"):
        return shown
    return shown.replace("-", "+" if digits.startswith("+") else "")  # no negative zero


def format_interval(interval: object, digits: str = ".1f", missing: str = "–") -> str:
    """Format an interval as "low to high"."""
    ends = [number(end) for end in interval] if isinstance(interval, list | tuple) else []
    if len(ends) != 2 or None in ends:
        return missing
    return f"{format_number(ends[0], digits)} to {format_number(ends[1], digits)}"
