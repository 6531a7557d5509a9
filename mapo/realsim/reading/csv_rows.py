"""Rows of a CSV file with their line numbers; a broken row costs only that row.

A quoted cell may span lines, and one that is never closed would swallow the rest of the file, or everything
up to the next quote. So a row of several lines is parsed strictly: if it does not end properly, its first
line is dropped, and parsing goes on with the next line.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence

from mapo.realsim.reading.decode import Line

LONGEST_CELL = 1 << 27


def rows_of(lines: Sequence[Line], comma: str) -> Iterator[tuple[int, list[str] | None]]:
    """The line of each row, and its cells; None for a line whose quote opens a row that never ends."""
    csv.field_size_limit(LONGEST_CELL)
    at = 0
    while at < len(lines):
        row, used = _row(lines, at, comma)
        yield lines[at].number, row
        at += used


def _row(lines: Sequence[Line], at: int, comma: str) -> tuple[list[str] | None, int]:
    """The cells of the row that begins at `at`, and how many lines it takes."""
    rest = (f"{lines[number].text}\n" for number in range(at, len(lines)))
    strict = csv.reader(rest, delimiter=comma, strict=True)
    try:
        row = next(strict)
        return row, strict.line_num
    except csv.Error:
        pass
    # A line of its own may be written carelessly: "so" she said, 3" wide.
    alone = csv.reader([f"{lines[at].text}\n", ""], delimiter=comma)
    try:
        row = next(alone)
    except csv.Error:
        return None, 1
    return (row if alone.line_num == 1 else None), 1
