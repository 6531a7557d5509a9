"""Tables of the report: rows of numbers, some of them missing, and the columns that show them."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
Table = tuple[str, dict[str, str], list[Row]]
"""What a table is about, its columns (title and format), and its rows."""
EMPTY_TABLE: Table = "", {}, []


def add_mean(row: Row, name: str, value: dict[str, Any] | None) -> None:
    """Add a mean and its interval to a row, as far as there are any."""
    if value is None:
        return
    row[name] = value["mean"]
    if value["interval"] is not None:
        row[f"{name}_low"], row[f"{name}_high"] = value["interval"]


def with_interval(title: str, name: str, digits: str) -> dict[str, str]:
    """Return the columns of a mean and of its interval, which some rows lack."""
    return {
        title: f"{{{name}:{digits}}}",
        f"95 %, {title}": f"{{{name}_low:{digits}}} to {{{name}_high:{digits}}}",
    }


def table(setup: str, columns: dict[str, str], rows: list[Row]) -> Table:
    """Return a table without missing values, and without the columns that no row can fill."""
    kept = [{key: value for key, value in row.items() if value is not None} for row in rows]
    shown = {title: form for title, form in columns.items() if any(_fills(form, row) for row in kept)}
    return setup, shown, kept


def _fills(form: str, row: Row) -> bool:
    try:
        form.format_map(row)
    except KeyError:
        return False
    return True
