"""Charts made of characters, for terminals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mapo.text import printable

MAX_ROWS = 14
COLUMNS_PER_STEP = 6
"""Widest gap between two neighbouring steps: a run of two steps does not fill the terminal."""
MIN_COLUMNS = 24

Curve = Sequence[tuple[float, float]]
"""Points (x, y)."""


def text_chart(
    curves: Mapping[str, Curve], references: Sequence[tuple[str, float]] = (), *, width: int = 100
) -> list[str]:
    """Return the lines of a chart. `curves` maps a one-character sign to its points; later ones are drawn on
    top. `references` are horizontal lines with their names. Points that share a column are averaged.
    """
    points = [point for curve in curves.values() for point in curve]
    if not points:
        return []
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    values = [*(y for _, y in points), *(y for _, y in references)]
    unit = _unit(min(values), max(values))
    bottom, top = math.floor(min(values) / unit), math.ceil(max(values) / unit)
    ticks = [f"{row * unit:g}" for row in range(top, bottom - 1, -1)]
    labels = [""] * len(ticks)
    for name, y in references:
        row = top - round(y / unit)
        labels[row] += f"{',' if labels[row] else ''} {printable(name)}"
    margin = max(4, *map(len, ticks))
    room = max(MIN_COLUMNS // 2, width - margin - 2 - max(map(len, labels)))
    columns = min(room, max(MIN_COLUMNS, COLUMNS_PER_STEP * round(last - first) + 1))
    rows = [["-" if label and at % 2 == 0 else " " for at in range(columns)] for label in labels]
    for sign, curve in curves.items():
        for at, y in _averaged(curve, first, last, columns):
            rows[top - round(y / unit)][at] = sign
    lines = [
        f"{tick:>{margin}} |{''.join(row)}{label}".rstrip()
        for tick, row, label in zip(ticks, rows, labels, strict=True)
    ]
    start, end = f"{first:g}", f"{last:g}" if last > first else ""
    axis = f"{'step':>{margin}}  {start}{end:>{columns - len(start)}}".rstrip()
    return [*lines, f"{'':{margin}} +{'-' * columns}", axis]


def _averaged(curve: Curve, first: float, last: float, columns: int) -> list[tuple[int, float]]:
    """Return the column and the mean of the points in it."""
    at: dict[int, list[float]] = {}
    for x, y in curve:
        share = (x - first) / (last - first) if last > first else 0.0
        at.setdefault(round(share * (columns - 1)), []).append(y)
    return [(column, sum(ys) / len(ys)) for column, ys in at.items()]


def _unit(low: float, high: float) -> float:
    """Return the smallest round number, at least 1, at which the values fit into `MAX_ROWS` rows."""
    power = 1.0
    while True:
        for digit in (1, 2, 5):
            unit = digit * power
            if math.ceil(high / unit) - math.floor(low / unit) < MAX_ROWS:
                return unit
        power *= 10
