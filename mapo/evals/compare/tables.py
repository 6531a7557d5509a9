"""A comparison as people read it: terminal, Markdown, LaTeX. For programs: `compare_files.py`.

Names of models and judges come from files and endpoints, so each form gets them with its own signs made
harmless: no markup in a terminal, no HTML or table bars in Markdown, no commands in LaTeX.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich import box
from rich.table import Table

from mapo.evals.compare.columns import Column
from mapo.evals.compare.comparison import Comparison
from mapo.evals.compare.entries import Entry
from mapo.evals.compare.files import as_csv, as_json
from mapo.scoring.tables import escape
from mapo.text import printable, terminal

METHOD = (
    "Intervals: 95 %, bootstrap over cases, widened for few; none below 6 or where all are alike. Passes: in "
    "percent, Wilson's if a case has one dialogue. Differences: in points, case by case. "
    "p: sign-flip test by case; Holm: corrected among all differences of the table."
)
_HEAD = ("difference", "95 % interval", "p", "p (Holm)", "cases")
_HASH = re.compile(r"\b([0-9a-f]{7})[0-9a-f]{9,}\b")


# ---- what stands in a place


def figure(entry: Entry | None, column: Column) -> str:
    """A cell's number: passes as counted, others to two places, n/of where something is missing."""
    if entry is None:
        return "-"
    if entry.invalid:
        return f"invalid ({entry.invalid})"
    if entry.value is None:
        return f"no score ({entry.n}/{entry.of})"
    return f"{entry.passes}/{entry.n}" if column.name == "passes" else f"{entry.value:.2f}"


def ends(interval: tuple[float, float] | None, form: str = ".1f") -> str:
    return "" if interval is None else f"{interval[0]:{form}} to {interval[1]:{form}}"


def chance(p: float | None) -> str:
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"


class Differences(NamedTuple):
    """The table of differences: `left` columns of words, then numbers."""

    title: str
    head: list[str]
    rows: list[list[str]]
    left: int


def differences(found: Comparison) -> Differences:
    """One baseline stands in the title; several, in a column."""
    short = {column.label: column.short for column in found.columns}
    several = len(found.baselines) > 1
    rows = [
        [
            *([d.model, d.baseline] if several else [d.model]),
            short[d.column],
            f"{d.mean:+.2f}",
            ends(d.interval, "+.1f"),
            chance(d.p),
            chance(d.p_holm),
            f"{d.n}, {d.missing} missing" if d.missing else str(d.n),
        ]
        for d in found.differences
    ]
    title = "Differences" if several else f"Differences from {found.models[0]}"
    head = ["model", *(["from"] if several else []), "score", *_HEAD]
    return Differences(f"{title}, case by case", head, rows, 3 if several else 2)


def _score_rows(found: Comparison) -> list[list[tuple[str, str]]]:
    """A row a model: (number, interval) for each column."""
    rows = []
    for model in found.models:
        entries = [found.cells.get((model, c.label)) for c in found.columns]
        rows.append(
            [
                (figure(e, c), ends(e.interval) if e else "")
                for e, c in zip(entries, found.columns, strict=True)
            ]
        )
    return rows


def legend(found: Comparison) -> list[str]:
    """What each column's numbers mean, one line for the columns that share it: first what tells it from
    others. Hashes are cut: they are there to be told apart."""
    told: dict[tuple[str, str], list[str]] = {}
    for column in found.columns:
        every = [f"{key} {value}" for key, value in column.meaning.items()]
        settings = ", ".join(dict.fromkeys([*column.apart, *every]))
        told.setdefault((column.title, _HASH.sub(r"\1", settings)), []).append(column.short)
    return [f"{'; '.join(names)}: {title}, {s}" for (title, s), names in told.items()]


# ---- terminal


def print_comparison(found: Comparison) -> None:
    console = terminal()
    console.width = max(console.width, 110)
    rows = _score_rows(found)
    for part in _fitting(found, rows, console.width):
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("model", overflow="fold")
        for at in part:
            table.add_column(escape(found.columns[at].short), justify="right", overflow="fold")
        for model, row in zip(found.models, rows, strict=True):
            shown = [row[at] for at in part]
            table.add_row(escape(model), *(f"{n}\n[dim]{i}[/]" if i else n for n, i in shown))
        console.print(table)
    if found.differences:
        told = differences(found)
        table = Table(box=box.SIMPLE_HEAD, title=escape(told.title), title_justify="left")
        for at, head in enumerate(told.head):
            table.add_column(head, justify="left" if at < told.left else "right", overflow="fold")
        for cells in told.rows:
            table.add_row(*map(escape, cells))
        console.print(table)
        console.print(f"[dim]{METHOD}[/]")
    for line in legend(found):
        console.print(f"[dim]{escape(line)}[/]", soft_wrap=True)
    for note in found.notes:
        console.print(f"note: {escape(note)}", soft_wrap=True)


def _fitting(found: Comparison, rows: Sequence[Sequence[tuple[str, str]]], width: int) -> list[list[int]]:
    """The columns, as many in a table as there is room for: one under another rather than folded."""
    room = width - min(40, max(len(model) for model in found.models)) - 8
    parts: list[list[int]] = [[]]
    used = 0
    for at, column in enumerate(found.columns):
        wide = 3 + max(len(text) for text in (column.short, *(t for row in rows for t in row[at])))
        if parts[-1] and used + wide > room:
            parts.append([])
            used = 0
        parts[-1].append(at)
        used += wide
    return parts


# ---- Markdown


def markdown(found: Comparison) -> str:
    heads = ["model", *(_md(c.short) for c in found.columns)]
    rows = [
        [_md(model), *(f"{n} ({i})" if i else n for n, i in row)]
        for model, row in zip(found.models, _score_rows(found), strict=True)
    ]
    parts = [_md_table(heads, rows)]
    if found.differences:
        of = differences(found)
        rows = [[_md(cell) for cell in row] for row in of.rows]
        parts += [f"{_md(of.title)}:", _md_table(of.head, rows), METHOD]
    told = [f"- {_md(line)}" for line in (*legend(found), *found.notes)]
    return "\n\n".join([*parts, "\n".join(told)]) + "\n"


def _md(text: str) -> str:
    """Text that Markdown shows as it is, in a table too."""
    plain = " ".join(printable(text).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]#|~$!])", r"\\\1", plain)


def _md_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# ---- LaTeX

_TEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
}


def tex(text: str) -> str:
    """Text that LaTeX sets as it is."""
    return "".join(_TEX.get(sign, sign) for sign in " ".join(printable(text).split()))


def latex(found: Comparison) -> str:
    """Two tabulars with the rules of booktabs, what the numbers mean below them, the notes as comments."""
    heads = ["model", *(c.short for c in found.columns)]
    rows = [
        [model, *(f"{n} [{i}]" if i else n for n, i in row)]
        for model, row in zip(found.models, _score_rows(found), strict=True)
    ]
    parts = ["% \\usepackage{booktabs}", _tabular(heads, rows, 1)]
    if found.differences:
        of = differences(found)
        parts += ["", _tabular(of.head, of.rows, of.left)]
    below = [*([METHOD] if found.differences else []), *legend(found)]
    parts += ["", r"{\footnotesize", *(rf"{tex(line)}\par" for line in below), "}"]
    told = [f"% {' '.join(printable(line).split())}" for line in found.notes]
    return "\n".join([*parts, *told]) + "\n"


def _tabular(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    def line(cells: Sequence[str]) -> str:
        # an empty group: a cell may begin with [ or *, which \\ would take for its own
        return "{} " + " & ".join(tex(cell) for cell in cells) + r" \\"

    columns = "l" * left + "r" * (len(heads) - left)
    body = [line(heads), r"\midrule", *map(line, rows)]
    return "\n".join(
        [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *body, r"\bottomrule", r"\end{tabular}"]
    )


FORMS: dict[str, Callable[[Comparison], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": as_csv,
    "json": as_json,
}
