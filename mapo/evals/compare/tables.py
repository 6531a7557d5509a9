"""Comparison output: tables for the terminal, Markdown and LaTeX; CSV and JSON for programs.

CSV has one line per model and score, JSON everything ("mapo.compare/1"). Names of models and judges come from
files and endpoints, so none of them may become a formula in a spreadsheet; `show.tables` escapes the rest.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from typing import Any

from mapo.evals.compare.columns import Column
from mapo.evals.compare.comparison import Comparison, Difference
from mapo.evals.compare.entries import Entry, count
from mapo.evals.compare.entries_empa import EMPA
from mapo.scoring.context import ScoreContext, scenario_set
from mapo.show.tables import (
    Cell,
    NumberCell,
    Table,
    interval_text,
    latex_table,
    latex_text,
    markdown_table,
    markdown_text,
    p_text,
    print_line,
    print_tables,
)
from mapo.text import printable

METHOD = (
    "Intervals: 95 % bootstrap over cases, widened for few cases; none for fewer than 6 cases or equal "
    "values. Passes: in percent; Wilson interval if every case has one dialogue. Differences: in points, "
    "paired by case. "
    "p: sign-flip test; p (Holm): corrected over all differences of the table. Interval and p are computed "
    "in different ways: if the interval excludes 0 but p is above 0.05, or the reverse, the difference is "
    "uncertain."
)
UNMET = "unmet: passes that leave an axis with a deficit outside the target zone."
_HASH = re.compile(r"\b([0-9a-f]{7})[0-9a-f]{9,}\b")


# ---- tables


def figure(entry: Entry | None, column: Column) -> str:
    """Return a cell's number: passes as a count, other scores with two decimals, n/of if incomplete."""
    if entry is None:
        return "-"
    if entry.invalid:
        return f"invalid ({entry.invalid})"
    if entry.value is None:
        return f"no score ({entry.n}/{entry.of})"
    if column.name != "passes":
        return f"{entry.value:.2f}"
    return f"{entry.passes}/{entry.n}" + (f" ({entry.unmet} unmet)" if entry.unmet else "")


def scores_table(comparison: Comparison) -> Table:
    """One row per model, one column per score."""
    rows: list[list[Cell]] = []
    for model in comparison.models:
        entries = [(comparison.cells.get((model, column.label)), column) for column in comparison.columns]
        rows.append(
            [model, *(NumberCell(figure(e, c), interval_text(e.interval) if e else "") for e, c in entries)]
        )
    worlds = contexts(comparison)
    notices = dict.fromkeys(context.notice for context in worlds.values() if context.notice)
    notices |= dict.fromkeys(f"{note}." for context in worlds.values() if (note := context.prompts_note))
    references = dict.fromkeys(context.reference for context in worlds.values() if context.reference)
    return Table(
        ["model", *(column.short for column in comparison.columns)],
        rows,
        title=" ".join(notices),
        note=" ".join([*references, *([UNMET] if any(e.unmet for e in comparison.cells.values()) else [])]),
    )


def contexts(comparison: Comparison) -> dict[str, ScoreContext]:
    """Return judge, roles and scenarios of every column of EMPA scores, by the column's label."""
    result = {}
    for column in comparison.columns:
        if column.benchmark == EMPA:
            cases = {
                c for (_, label), e in comparison.cells.items() if label == column.label for c in e.cases
            }
            domain = column.meaning.get("rubric", "").rpartition(" ")[0]
            roles = {role: column.meaning.get(role, "unknown") for role in ("user", "director", "judge")}
            prompts = column.meaning.get("prompts", "")
            scenarios = scenario_set(domain, cases)
            result[column.label] = ScoreContext(domain, **roles, scenarios=scenarios, prompts=prompts)
    return result


def differences_table(comparison: Comparison) -> Table:
    """One row per difference. A single baseline is named in the title; several get a column."""
    short = {column.label: column.short for column in comparison.columns}
    baselines = comparison.baselines
    several = len(baselines) > 1
    rows = [
        [
            *([d.model, d.baseline] if several else [d.model]),
            short[d.column],
            f"{d.mean:+.2f}",
            interval_text(d.interval, "+.1f"),
            p_text(d.p),
            p_text(d.p_holm),
            str(d.n),
        ]
        for d in comparison.differences
    ]
    names = ["model", *(["from"] if several else []), "score"]
    return Table(
        [*names, "difference", "95 % interval", "p", "p (Holm)", "cases"],
        rows,
        title=f"Differences{'' if several else f' from {baselines[0]}' if baselines else ''}, paired by case",
        note=METHOD,
        left=len(names),
    )


def legend(comparison: Comparison) -> list[str]:
    """Return one line per set of columns with the same meaning: their settings, distinguishing ones first.
    Hashes are shortened."""
    columns: dict[tuple[str, str], list[str]] = {}
    worlds = contexts(comparison)
    for column in comparison.columns:
        every = [f"{key} {value}" for key, value in column.meaning.items()]
        if column.label in worlds:
            every.append(worlds[column.label].scenarios)
        settings = ", ".join(dict.fromkeys([*column.distinctions, *every]))
        columns.setdefault((column.title, _HASH.sub(r"\1", settings)), []).append(column.short)
    return [f"{'; '.join(names)}: {title}, {s}" for (title, s), names in columns.items()]


def print_comparison(comparison: Comparison) -> None:
    """Print the comparison to the terminal."""
    for line in legend(comparison):
        print_line(line)
    print_tables([scores_table(comparison), differences_table(comparison)])
    for note in comparison.notes:
        print_line(f"Note: {note}", style="")


def markdown(comparison: Comparison) -> str:
    """Return both tables in Markdown, then legend and notes."""
    parts = [markdown_table(scores_table(comparison))]
    parts += [markdown_table(differences_table(comparison))] if comparison.differences else []
    lines = [f"- {markdown_text(line)}" for line in (*legend(comparison), *comparison.notes)]
    return "\n\n".join([*parts, "\n".join(lines)]) + "\n"


def latex(comparison: Comparison) -> str:
    """Return two tabulars with the rules of booktabs, their meaning below them, and the notes as comments."""
    parts = ["% \\usepackage{booktabs}", latex_table(scores_table(comparison))]
    parts += ["", latex_table(differences_table(comparison))] if comparison.differences else []
    scores = scores_table(comparison)
    footnotes = [scores.title, scores.note, METHOD if comparison.differences else ""]
    below = [*filter(None, footnotes), *legend(comparison)]
    parts += ["", r"{\footnotesize", *(rf"{latex_text(line)}\par" for line in below), "}"]
    comments = [f"% {' '.join(printable(line).split())}" for line in comparison.notes]
    return "\n".join([*parts, *comments]) + "\n"


# ---- CSV and JSON

_CSV = (
    *("model", "benchmark", "score", "value", "low", "high", "passes", "n", "of", "cases"),
    *("baseline", "common", "missing", "difference", "difference_low", "difference_high", "p", "p_holm"),
    *("judge", "settings", "sampling", "note"),
    *("before", "gain", "gain_low", "gain_high", "gain_p", "gain_p_holm"),
)


def as_csv(comparison: Comparison) -> str:
    """Return one line per model and score, with its difference from the first model and, as `gain`, from the
    model it was trained from."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_CSV)
    for column in comparison.columns:
        for model in comparison.models:
            e, d = comparison.cells.get((model, column.label)), comparison.difference(model, column.label)
            if e is None:
                continue
            score = [e.value, *(e.interval or ("", "")), e.passes, e.n, e.of, count(e.cases)]
            difference: list[Any] = [""] * 8
            if d:
                ends = d.interval or ("", "")
                difference = [_cell(d.baseline), d.n, 0, d.mean, *ends, d.p, d.p_holm]
            names = [_cell(model), column.benchmark, _cell(column.label)]
            gain = _gain(comparison.difference(model, column.label, e.baseline) if e.baseline else None)
            writer.writerow([*names, *score, *difference, *map(_cell, _descriptions(e)), *gain])
    return out.getvalue()


def _gain(d: Difference | None) -> list[Any]:
    return [""] * 6 if d is None else [_cell(d.baseline), d.mean, *(d.interval or ("", "")), d.p, d.p_holm]


def _descriptions(e: Entry) -> list[str]:
    """Return judge, other settings, sampling, and notes."""
    rest = {key: value for key, value in e.meaning.items() if key != "judge"}
    incomplete = f"incomplete: {e.n} of {e.of}" if e.n < e.of else ""
    invalid = f"invalid: {e.invalid}" if e.invalid else ""
    notes = [
        incomplete,
        invalid,
        *(note for note in e.notes if not note.startswith(("incomplete", "invalid"))),
    ]
    listed = ("; ".join(f"{key} {value}" for key, value in part.items()) for part in (rest, e.sampling))
    return [e.meaning.get("judge", ""), *listed, "; ".join(filter(None, notes))]


def _cell(text: str) -> str:
    """Return text that a spreadsheet does not take for a formula."""
    plain = " ".join(printable(text).split())
    return f"'{plain}" if plain[:1] in ("=", "+", "-", "@") else plain


def as_json(comparison: Comparison) -> str:
    return json.dumps(plain(comparison), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def plain(comparison: Comparison) -> dict[str, Any]:
    """Return the whole comparison as plain data ("mapo.compare/1")."""
    return {
        "schema": "mapo.compare/1",
        "columns": [
            {"label": c.label, "benchmark": c.benchmark, "name": c.name, "settings": dict(c.meaning)}
            for c in comparison.columns
        ],
        "models": [
            {
                "model": model,
                "scores": {
                    label: {
                        "value": e.value,
                        "interval": e.interval,
                        "n": e.n,
                        "of": e.of,
                        "cases": count(e.cases),
                        **({"invalid": e.invalid} if e.invalid else {}),
                        **({} if e.passes is None else {"passes": e.passes}),
                        **({"passes_unmet": e.unmet} if e.unmet else {}),
                        "sampling": dict(e.sampling),
                        "source": e.source,
                    }
                    for (name, label), e in comparison.cells.items()
                    if name == model
                },
            }
            for model in comparison.models
        ],
        "differences": [
            {
                "model": d.model,
                "baseline": d.baseline,
                "score": d.column,
                "cases": d.n,
                "missing": 0,  # incomplete runs are not compared
                "mean": d.mean,
                "interval": d.interval,
                "p": d.p,
                "p_holm": d.p_holm,
            }
            for d in comparison.differences
        ],
        "notes": comparison.notes,
    }


FORMS: dict[str, Callable[[Comparison], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": as_csv,
    "json": as_json,
}
