"""Tables: one type, and one renderer per output (terminal, Markdown, LaTeX, HTML).

Cells are plain text from anywhere, model names and judges' words included. Each renderer escapes them for its
output: no markup in a terminal, no HTML or table bars in Markdown, no commands in LaTeX. For HTML, templates
escape what `plain_rows` returns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from mapo.text import clip, printable, terminal

if TYPE_CHECKING:
    from rich.table import Table as RichTable
    from rich.text import Text

MAX_NAME_WIDTH = 40
"""Characters of the first column that a terminal keeps on one line."""


class Estimate(NamedTuple):
    """A number with its interval, both formatted. A terminal shows the interval below the number."""

    value: str
    interval: str = ""


Cell = str | Estimate


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under column names. `columns` may be empty: then there is no header."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    _: KW_ONLY
    title: str = ""
    note: str = ""
    """A sentence or two below the table."""
    left: int = 1
    """The first `left` columns hold names and are aligned left; the others hold numbers."""
    folded: bool = False
    """In HTML, show only the title until the reader opens the table."""

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.columns) or max(map(len, self.rows), default=0)


def plain_rows(table: Table) -> list[list[str]]:
    """Return the rows as plain text, estimates as "value (interval)"."""
    return [[_plain(cell) for cell in row] for row in table.rows]


def _plain(cell: Cell, brackets: str = "()") -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell.value} {brackets[0]}{cell.interval}{brackets[1]}" if cell.interval else cell.value


def interval_text(ends: Sequence[float] | None, form: str = ".1f", missing: str = "") -> str:
    """Format an interval as "low to high"."""
    return missing if ends is None else f"{ends[0]:{form}} to {ends[1]:{form}}"


def p_text(p: float | None, missing: str = "") -> str:
    """Format a p-value."""
    return missing if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


# ---- terminal


def print_tables(tables: Iterable[Table], min_width: int = 110) -> None:
    """Print the tables that have rows, each with its title and note. A pipe has no width of its own, and a
    narrow terminal breaks lines more readably than folded cells: so output is at least `min_width` wide."""
    console = terminal()
    console.width = max(console.width, min_width)
    for table in tables:
        if table.rows:
            console.print(rich_table(table))
            if table.note:
                console.print(printable(table.note), style="dim", markup=False)


def rich_table(table: Table) -> RichTable:
    """Return the table for a rich console."""
    from rich import box
    from rich.cells import cell_len
    from rich.table import Table as RichTable
    from rich.text import Text

    title = Text(printable(table.title)) if table.title else None
    shown = RichTable(box=box.SIMPLE_HEAD, title=title, title_justify="left", show_header=bool(table.columns))
    # Names stay whole and the other columns fold; a first column of sentences folds too.
    names = all(cell_len(row[0]) <= MAX_NAME_WIDTH for row in plain_rows(table) if row)
    for i in range(table.width):
        shown.add_column(
            Text(printable(table.columns[i])) if table.columns else "",
            justify="left" if i < table.left else "right",
            overflow="fold",
            no_wrap=i == 0 and names,
        )
    for row in table.rows:
        shown.add_row(*map(_rich_cell, row))
    return shown


def _rich_cell(cell: Cell) -> Text:
    from rich.text import Text

    if isinstance(cell, str):
        return Text(printable(cell))
    text = Text(printable(cell.value))
    return text.append(f"\n{printable(cell.interval)}", style="dim") if cell.interval else text


def fit_columns(table: Table, width: int) -> list[Table]:
    """Split a table with many number columns into tables of at most `width` characters, to be printed one
    below the other. The name columns repeat."""
    from rich.cells import cell_len

    rows = [[[cell] if isinstance(cell, str) else list(cell) for cell in row] for row in table.rows]

    def room(at: int) -> int:
        texts = (table.columns[at], *(text for row in rows for text in row[at]))
        return 3 + max(map(cell_len, texts))

    names = sum(min(MAX_NAME_WIDTH, room(at)) for at in range(table.left))
    parts: list[list[int]] = [[]]
    used = names
    for at in range(table.left, table.width):
        if parts[-1] and used + room(at) > width:
            parts.append([])
            used = names
        parts[-1].append(at)
        used += room(at)
    kept = [[*range(table.left), *part] for part in parts]
    return [
        replace(
            table,
            columns=[table.columns[at] for at in part],
            rows=[[row[at] for at in part] for row in table.rows],
        )
        for part in kept
    ]


# ---- Markdown


def markdown_text(text: object, limit: int | None = None) -> str:
    """Return `text` as one line that Markdown shows literally, inside tables too."""
    line = " ".join((printable(str(text)) if limit is None else clip(text, limit)).split())
    escaped = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]#|~$!])", r"\\\1", escaped)


def markdown_table(table: Table, level: int = 0, limit: int | None = None) -> str:
    """Return title, table and note as Markdown. The title is a heading of that level, bold text for level 0.
    Cells are cut after `limit` characters."""
    parts = []
    if table.title:
        title = markdown_text(table.title, limit)
        parts.append(f"{'#' * level} {title}" if level else f"**{title}**")
    if table.rows:
        head = [*table.columns] or [""] * table.width
        rule = ["---" if i < table.left else "---:" for i in range(table.width)]
        rows = [[markdown_text(cell, limit) for cell in row] for row in (head, *plain_rows(table))]
        parts.append(markdown_rows([rows[0], rule, *rows[1:]]))
    if table.note:
        parts.append(markdown_text(table.note))
    return "\n\n".join(parts)


def markdown_rows(rows: Iterable[Iterable[str]]) -> str:
    """Return rows of cells that are Markdown already, the rule included, as the lines of a table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


# ---- LaTeX

_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
}


def latex_text(text: str) -> str:
    """Return `text` as one line that LaTeX sets literally."""
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(printable(text).split()))


def latex_table(table: Table) -> str:
    """Return a tabular with the rules of booktabs, without title and note."""

    def line(cells: Sequence[Cell]) -> str:
        # An empty group first: \\ would take a [ or * at the start of the next line for its argument.
        return "{} " + " & ".join(latex_text(_plain(cell, "[]")) for cell in cells) + r" \\"

    columns = "l" * table.left + "r" * (table.width - table.left)
    head = [line(table.columns), r"\midrule"] if table.columns else []
    body = [r"\toprule", *head, *map(line, table.rows), r"\bottomrule"]
    return "\n".join([rf"\begin{{tabular}}{{{columns}}}", *body, r"\end{tabular}"])
