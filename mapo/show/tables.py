"""Tables: one type, and one renderer per output (terminal, Markdown, LaTeX, HTML).

Cells are plain text from anywhere, model names and judges' words included. Each renderer escapes them for its
output: no markup in a terminal, no HTML or table bars in Markdown, no commands in LaTeX. For HTML, templates
escape what `plain_rows` returns.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from mapo.text import clip, printable, terminal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

MAX_NAME_WIDTH = 40
"""Widest name of the first column that is kept on one line if the other columns leave room for it."""


class NumberCell(NamedTuple):
    """A number with its interval, both formatted. A terminal shows the interval below the number."""

    value: str
    interval: str = ""


Cell = str | NumberCell


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

PIPE_WIDTH = 110
"""Width of output that goes to a pipe or a file, where there is no terminal and COLUMNS is not set."""
_LEAST_NAME = 16
_LEAST_TEXT = 12
_WHOLE_CELL = 24
"""Cells up to this width, numbers and intervals among them, are never broken."""


def output_console(**options: Any) -> Console:
    """Return a console of the terminal's real width; a pipe gets `PIPE_WIDTH` unless COLUMNS is set."""
    if not os.environ.get("COLUMNS") and not any(_is_terminal(stream) for stream in (sys.stdout, sys.stderr)):
        options.setdefault("width", PIPE_WIDTH)
    return terminal(**options)


def _is_terminal(stream: object) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)())


def print_tables(tables: Iterable[Table], width: int | None = None) -> None:
    """Print the tables that have rows, each with its title and note, at the terminal's width or at `width`.

    A table that does not fit is first set with narrow gaps and wrapped headers, then with wrapped names, and
    finally split by columns into several tables, each with the name columns.
    """
    console = output_console(**({} if width is None else {"width": width}))
    for table in tables:
        if table.rows:
            if table.title:
                print_line(table.title, style="bold", console=console)
            for part in _parts(replace(table, title=""), console.width):
                console.print(part)
            if table.note:
                print_line(table.note, console=console)


def print_line(text: str, *, style: str = "dim", console: Console | None = None) -> None:
    """Print a line of text as it is, wrapped between words at the terminal's width."""
    (console or output_console()).print(printable(text), style=style, markup=False)


def rich_table(table: Table, widths: Sequence[int] | None = None) -> RichTable:
    """Return the table for a rich console. With `widths`, cells are wrapped to them and gaps are narrow."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    narrow = widths is not None
    result = RichTable(
        box=box.SIMPLE_HEAD,
        title=Text(printable(table.title)) if table.title else None,
        title_justify="left",
        show_header=bool(table.columns),
        collapse_padding=narrow,
        pad_edge=not narrow,
    )
    for i in range(table.width):
        result.add_column(
            Text(printable(table.columns[i])) if table.columns else "",
            justify="left" if i < table.left else "right",
            overflow="fold",
            width=widths[i] if widths is not None else None,
        )
    for row in table.rows:
        result.add_row(*(_rich_cell(cell, widths[i] if widths else None) for i, cell in enumerate(row)))
    return result


def _rich_cell(cell: Cell, width: int | None = None) -> Text:
    from rich.text import Text

    if isinstance(cell, str):
        text = printable(cell)
        return Text(text if width is None else _breakable(text, width))
    result = Text(printable(cell.value))
    return result.append(f"\n{printable(cell.interval)}", style="dim") if cell.interval else result


def _breakable(text: str, width: int) -> str:
    """Break words that are wider than `width` after a separator (model names, paths) where they have one."""
    from rich.cells import cell_len

    words = []
    for word in text.split(" "):
        lines = [""]
        for part in re.split(r"(?<=[/:_.\-])", word) if cell_len(word) > width else [word]:
            if lines[-1] and cell_len(lines[-1] + part) > width:
                lines.append("")
            lines[-1] += part
        words.append("\n".join(lines))
    return " ".join(words)


def _parts(table: Table, width: int) -> list[RichTable]:
    """Return the table as one or several tables that fit into `width`."""
    columns = [_column_width(table, i) for i in range(table.width)]
    if sum(c.natural + 3 for c in columns) + 1 <= width:
        return [rich_table(table)]
    whole_names = [c.least for c in columns]
    if columns[0].natural <= MAX_NAME_WIDTH:
        whole_names[0] = columns[0].natural
    for least in (whole_names, [c.least for c in columns]):
        if _total(least) <= width:
            return [rich_table(table, _widened(least, columns, width))]
    parts = _split(table, columns, width)
    return [rich_table(_with_columns(table, part), widths) for part, widths in parts]


class _ColumnWidth(NamedTuple):
    """Widths of a column: without any wrapping, and the least at which it is still readable."""

    natural: int
    least: int


def _column_width(table: Table, i: int) -> _ColumnWidth:
    from rich.cells import cell_len

    cells = [row[i] for row in table.rows if i < len(row)]
    lines = [
        line
        for cell in cells
        for text in ([cell] if isinstance(cell, str) else cell)
        for line in printable(text).split("\n")
    ]
    header = printable(table.columns[i]) if table.columns else ""
    header_word = max(map(cell_len, header.split()), default=0)
    natural = max(map(cell_len, (header, *lines)), default=0)
    content = max(map(cell_len, lines), default=0)
    longest_word = max((cell_len(word) for line in lines for word in line.split()), default=0)
    if i == 0:
        least = _LEAST_NAME
    elif i >= table.left and content <= _WHOLE_CELL:
        least = content
    else:
        least = max(_LEAST_TEXT, min(longest_word, _WHOLE_CELL))
    return _ColumnWidth(natural, min(natural, max(least, header_word)))


def _total(widths: Sequence[int]) -> int:
    """Return the width of a table with narrow gaps: two characters between columns, one at each edge."""
    return sum(widths) + 2 * (len(widths) - 1) + 2


def _widened(least: Sequence[int], columns: Sequence[_ColumnWidth], width: int) -> list[int]:
    """Distribute the room that is left, always to the column that lacks most."""
    widths = list(least)
    for _ in range(width - _total(least)):
        lacking = [c.natural - w for c, w in zip(columns, widths, strict=True)]
        if max(lacking) <= 0:
            break
        widths[lacking.index(max(lacking))] += 1
    return widths


def _split(table: Table, columns: Sequence[_ColumnWidth], width: int) -> list[tuple[list[int], list[int]]]:
    """Return for each part the columns it holds and their widths. The name columns repeat."""
    names = list(range(table.left)) if table.left < table.width else [0]
    room = width // 2 // len(names)
    fixed = [min(columns[i].natural, max(room, columns[i].least)) for i in names]
    rest = range(len(names), table.width)
    groups = _grouped(rest, fixed, columns, width, len(rest))
    even = _grouped(rest, fixed, columns, width, -(-len(rest) // len(groups)))
    groups = even if len(even) == len(groups) else groups
    parts = []
    for group in groups:
        least = [*fixed, *(columns[i].least for i in group)]
        chosen = [*names, *group]
        parts.append((chosen, _widened(least, [columns[i] for i in chosen], width)))
    return parts


def _grouped(
    chosen: Iterable[int], fixed: Sequence[int], columns: Sequence[_ColumnWidth], width: int, most: int
) -> list[list[int]]:
    """Group columns so that each group has at most `most` and fits beside the `fixed` widths."""
    groups: list[list[int]] = [[]]
    for i in chosen:
        wanted = [*fixed, *(columns[j].least for j in (*groups[-1], i))]
        if groups[-1] and (_total(wanted) > width or len(groups[-1]) == most):
            groups.append([])
        groups[-1].append(i)
    return groups


def _with_columns(table: Table, chosen: Sequence[int]) -> Table:
    return replace(
        table,
        columns=[table.columns[i] for i in chosen] if table.columns else (),
        rows=[[row[i] for i in chosen if i < len(row)] for row in table.rows],
        left=sum(i < table.left for i in chosen),
    )


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
