"""Rows of a table, each with its line, so that one broken row costs that row alone.

A cell in quotes may go on over lines, and one that is never closed would take the rest of the file, or all up
to the next quote. So a row of several lines is read strictly: where it does not end as a row should, its
first line is given up, and reading goes on with the next one.
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
