"""Rows of a CSV file with their line numbers. A malformed row is skipped without affecting the others.

A quoted cell may span lines, and one that is never closed would swallow everything up to the next quote. So a
row of several lines is parsed strictly: if it does not end properly, its first line is skipped, and parsing
continues with the next line.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence

from mapo.realsim.reading.decode import DecodedLine

LONGEST_CELL = 1 << 27


def rows_of(lines: Sequence[DecodedLine], comma: str) -> Iterator[tuple[int, list[str] | None]]:
    """Yield the line number and the cells of each row; None instead of cells for an unclosed quote."""
    csv.field_size_limit(LONGEST_CELL)
    at = 0
    while at < len(lines):
        row, used = _row(lines, at, comma)
        yield lines[at].number, row
        at += used


def _row(lines: Sequence[DecodedLine], at: int, comma: str) -> tuple[list[str] | None, int]:
    """Return the cells of the row that starts at index `at`, and the number of lines it spans."""
    rest = (f"{lines[number].text}\n" for number in range(at, len(lines)))
    strict = csv.reader(rest, delimiter=comma, strict=True)
    try:
        row = next(strict)
        return row, strict.line_num
    except csv.Error:
        pass
    # Parse a single line leniently: it may contain stray quotes, as in: "so" she said, 3" wide.
    lenient = csv.reader([f"{lines[at].text}\n", ""], delimiter=comma)
    try:
        row = next(lenient)
    except csv.Error:
        return None, 1
    return (row if lenient.line_num == 1 else None), 1
