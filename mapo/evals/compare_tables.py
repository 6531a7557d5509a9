"""A comparison as people read it: terminal, Markdown, LaTeX. For programs: `compare_files.py`.

Names of models and judges come from files and endpoints, so each form gets them with its own signs made
harmless: no markup in a terminal, no HTML or table bars in Markdown, no commands in LaTeX.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rich import box
from rich.table import Table

from mapo.evals.compare import Column, Comparison, Difference
from mapo.evals.compare_files import as_csv, as_json
from mapo.evals.entries import Entry
from mapo.evals.tables import escape
from mapo.text import printable, terminal

METHOD = (
    "Intervals: 95 %, bootstrap over cases, widened for few; none below 6 or where all are alike. Passes: in "
    "percent, Wilson's if a case has one dialogue. Differences: points of 100, case by case. "
    "p: sign-flip test by case; Holm: corrected among all differences of the table."
)
_HEAD = ("model", "score", "difference", "95 % interval", "p", "p (Holm)", "cases")


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


def _difference_row(d: Difference) -> list[str]:
    return [
        d.model,
        d.column,
        f"{d.mean:+.2f}",
        ends(d.interval, "+.1f"),
        chance(d.p),
        chance(d.p_holm),
        f"{d.n}, {d.missing} missing" if d.missing else str(d.n),
    ]


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
    """What each column's numbers mean, one line for the columns that share it."""
    told: dict[tuple[str, str], list[str]] = {}
    for column in found.columns:
        settings = ", ".join(f"{key} {value}" for key, value in column.meaning.items())
        told.setdefault((column.benchmark, settings), []).append(column.label)
    return [f"{'; '.join(labels)}: {benchmark}, {s}" for (benchmark, s), labels in told.items()]


def _title(found: Comparison) -> str:
    return f"Differences from {found.models[0]}, case by case"


# ---- terminal


def print_comparison(found: Comparison) -> None:
    console = terminal()
    console.width = max(console.width, 110)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("model", overflow="fold")
    for column in found.columns:
        table.add_column(escape(column.label), justify="right", overflow="fold")
    for model, row in zip(found.models, _score_rows(found), strict=True):
        table.add_row(escape(model), *(f"{n}\n[dim]{i}[/]" if i else n for n, i in row))
    console.print(table)
    if found.differences:
        table = Table(box=box.SIMPLE_HEAD, title=escape(_title(found)), title_justify="left")
        for at, head in enumerate(_HEAD):
            table.add_column(head, justify="left" if at < 2 else "right", overflow="fold")
        for d in found.differences:
            table.add_row(*map(escape, _difference_row(d)))
        console.print(table)
        console.print(f"[dim]{METHOD}[/]")
    for line in legend(found):
        console.print(f"[dim]{escape(line)}[/]", soft_wrap=True)
    for note in found.notes:
        console.print(f"note: {escape(note)}", soft_wrap=True)


# ---- Markdown


def markdown(found: Comparison) -> str:
    heads = ["model", *(_md(c.label) for c in found.columns)]
    rows = [
        [_md(model), *(f"{n} ({i})" if i else n for n, i in row)]
        for model, row in zip(found.models, _score_rows(found), strict=True)
    ]
    parts = [_md_table(heads, rows)]
    if found.differences:
        rows = [[_md(cell) for cell in _difference_row(d)] for d in found.differences]
        parts += [f"{_md(_title(found))}:", _md_table(_HEAD, rows), METHOD]
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
    heads = ["model", *(c.label for c in found.columns)]
    rows = [
        [model, *(f"{n} [{i}]" if i else n for n, i in row)]
        for model, row in zip(found.models, _score_rows(found), strict=True)
    ]
    parts = ["% \\usepackage{booktabs}", _tabular(heads, rows, 1)]
    if found.differences:
        parts += ["", _tabular(_HEAD, [_difference_row(d) for d in found.differences], 2)]
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
