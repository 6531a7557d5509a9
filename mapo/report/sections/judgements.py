"""Judgements: the share of judged turns by axis, level and reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from mapo.measure.rubric import Rubric
from mapo.report.document.blocks import MAX_NAME, Block, Heading, Paragraph, format_number
from mapo.show.tables import Table
from mapo.text import clip
from mapo.types import Dialogue, Turn
from mapo.types import Mark as FormMark

MIN_SHARE = 0.01
"""Minimum share of turns for a reason to be listed (and at least two turns). Scripted judges give few
reasons; models phrase each one differently."""
MAX_REASONS = 8
"""Maximum reasons per level. Up to this many reasons for harm are listed however rare they are."""
NOTE = (
    "Share of judged turns; a turn may have several levels. Levels above 0 are progress, below 0 harm. "
    'Reasons given once or in fewer than 1 % of the turns are counted under "any reason", unless they are '
    "among few reasons for harm; at most eight per level are listed."
)

Mark = tuple[str, int, str | None]
"""Axis, level, reason; None stands for any reason."""


def judgements(sets: Mapping[str, Sequence[Dialogue]], rubric: Rubric | None) -> list[Block]:
    """Return a table with a row per axis, level and reason, and a column per set of dialogues."""
    judged = {
        name: sum(t.levels is not None for d in dialogues for t in d.turns)
        for name, dialogues in sets.items()
    }
    counts = {name: Counter(_marks(sets[name])) for name, n in judged.items() if n}
    turns = [n for n in judged.values() if n]
    titles = {axis.key: f"{axis.title} ({axis.key})" for axis in rubric.axes} if rubric else {}
    rows = []
    for axis, level, reason in _ordered(list(counts.values()), turns, list(titles)):
        shares = [counter[axis, level, reason] / n for counter, n in zip(counts.values(), turns, strict=True)]
        share_texts = (f"{format_number(100 * share, '.1f')} %" for share in shares)
        reason_text = "any reason" if reason is None else clip(reason, MAX_NAME)
        rows.append([titles.get(axis, axis), f"{level:+d}", reason_text, *share_texts])
    if not rows:
        return []
    table = Table(["axis", "level", "reason", *counts], rows, note=NOTE, left=3)
    return [Heading("Judgements"), table, *readout([d for dialogues in sets.values() for d in dialogues])]


def readout(dialogues: Sequence[Dialogue]) -> list[Block]:
    """Say how sure a judge is whose levels are read out; empty for other judges."""
    chances = [
        place[abs(mark.level)]
        for turn in (turn for dialogue in dialogues for turn in dialogue.turns)
        for mark, place in zip(_marks_in_order(turn), turn.probabilities or (), strict=False)
        if abs(mark.level) < len(place)
    ]
    if not chances:
        return []
    mean = format_number(sum(chances) / len(chances), ".2f")
    return [Paragraph(f"The levels were read out of the judge; their mean probability is {mean}.")]


def _marks_in_order(turn: Turn) -> list[FormMark]:
    return [mark for both in (turn.levels or {}).values() for mark in (both.progress, both.regression)]


def _ordered(counts: Sequence[Counter[Mark]], turns: Sequence[int], axes: Sequence[str]) -> Iterator[Mark]:
    """Yield, per level, the row for any reason (unless a single reason covers it) and the reasons to list."""
    totals = sum(counts, Counter[Mark]())
    position = {axis: i for i, axis in enumerate(axes)}
    levels = {mark[:2] for mark in totals}
    for axis, level in sorted(levels, key=lambda key: (position.get(key[0], len(axes)), key[0], -key[1])):
        reasons = [mark for mark in totals if mark[:2] == (axis, level) and mark[2] is not None]
        if level > 0 or len(reasons) > MAX_REASONS:
            frequent = [
                m for m in reasons if any(c[m] >= MIN_SHARE * n for c, n in zip(counts, turns, strict=True))
            ]
            reasons = [m for m in frequent if totals[m] > 1]
        named = sorted(reasons, key=lambda m: (-totals[m], m[2]))
        if not named or totals[named[0]] < totals[axis, level, None]:
            yield axis, level, None
        yield from named[:MAX_REASONS]


def _marks(dialogues: Sequence[Dialogue]) -> Iterator[Mark]:
    for turn in (turn for dialogue in dialogues for turn in dialogue.turns):
        for axis, both in (turn.levels or {}).items():
            for mark in (both.progress, both.regression):
                if mark.level:
                    yield axis, mark.level, None
                    if mark.reason:
                        yield axis, mark.level, mark.reason
