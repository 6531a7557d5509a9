"""What the judge marked, and why: the share of judged turns by axis, level and reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from mapo.measure.rubric import Rubric
from mapo.report.document.blocks import NAME, Block, Heading, told
from mapo.show.tables import Table
from mapo.text import clip
from mapo.types import Dialogue

OFTEN = 0.01
"""A reason is named from this share of the turns on, if it was given twice: plain code gives few, a model
words each anew."""
MOST = 8
"""Reasons of a level that are named; so few for harm are named however rare they are."""
ABOUT = (
    "Share of the judged turns; a turn may have several marks. Levels above 0 are progress, below 0 harm. "
    "A reason given once, or in fewer than 1 % of the turns, is counted under any reason and not named, "
    "except for harm that has few reasons; eight a level are named at most."
)

Seen = tuple[str, int, str | None]
"""Axis, level, why; None: whyever."""


def marks(sets: Mapping[str, Sequence[Dialogue]], rubric: Rubric | None) -> list[Block]:
    """A row an axis, level and reason, a column a set; the axes as the rubric has them."""
    judged = {name: sum(t.levels is not None for d in own for t in d.turns) for name, own in sets.items()}
    counts = {name: Counter(_given(sets[name])) for name, n in judged.items() if n}
    turns = [n for n in judged.values() if n]
    titles = {axis.key: f"{axis.title} ({axis.key})" for axis in rubric.axes} if rubric else {}
    rows = []
    for axis, level, why in _ordered(list(counts.values()), turns, list(titles)):
        shares = [found[axis, level, why] / n for found, n in zip(counts.values(), turns, strict=True)]
        told_shares = (f"{told(100 * share, '.1f')} %" for share in shares)
        named = "any reason" if why is None else clip(why, NAME)
        rows.append([titles.get(axis, axis), f"{level:+d}", named, *told_shares])
    if not rows:
        return []
    table = Table(["axis", "level", "why", *counts], rows, note=ABOUT, left=3)
    return [Heading("What the judge marked"), table]


def _ordered(counts: Sequence[Counter[Seen]], turns: Sequence[int], axes: Sequence[str]) -> Iterator[Seen]:
    """Level by level: all of its marks, unless one reason is behind them, and the reasons to be named."""
    every = sum(counts, Counter[Seen]())
    place = {axis: i for i, axis in enumerate(axes)}
    levels = {mark[:2] for mark in every}
    for axis, level in sorted(levels, key=lambda key: (place.get(key[0], len(axes)), key[0], -key[1])):
        own = [mark for mark in every if mark[:2] == (axis, level) and mark[2] is not None]
        if level > 0 or len(own) > MOST:
            often = [m for m in own if any(c[m] >= OFTEN * n for c, n in zip(counts, turns, strict=True))]
            own = [m for m in often if every[m] > 1]
        named = sorted(own, key=lambda m: (-every[m], m[2]))
        if not named or every[named[0]] < every[axis, level, None]:
            yield axis, level, None
        yield from named[:MOST]


def _given(dialogues: Sequence[Dialogue]) -> Iterator[Seen]:
    for turn in (turn for dialogue in dialogues for turn in dialogue.turns):
        for axis, both in (turn.levels or {}).items():
            for mark in (both.progress, both.regression):
                if mark.level:
                    yield axis, mark.level, None
                    if mark.reason:
                        yield axis, mark.level, mark.reason
