"""Scores as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table

from mapo.measure.epmq import INDICES
from mapo.models.ledger import Ledger
from mapo.scoring.score import PARTS, Score, Scoring
from mapo.text import printable, terminal

_TITLES = ("Outcome", "Efficiency", "Stability", "EPM-Q")
_SHOWN = 10  # lines listed before the rest is only counted


def escape(text: str) -> str:
    return escape_markup(printable(text))


def print_scoring(found: Scoring) -> None:
    console = terminal(soft_wrap=False)
    console.width = max(console.width, 110)
    models = [m.score for m in found.models]
    if models:
        _summary(console, "model", models)
        _indices(console, "model", models)
    for model in found.models:
        if model.by:
            console.print(f"\n[bold]{escape(model.score.name)}[/]")
            _summary(console, "", list(model.by.values()))
            _indices(console, "", list(model.by.values()))
    if found.broken:
        console.print(f"{found.broken} broken dialogues left out: their machinery failed, not the policy.")
    _listed(console, "recorded and recomputed differ", [x for m in found.models for x in m.differences])
    _listed(console, "odd judgement forms", [x for m in found.models for x in m.notes])


def _listed(console: Console, title: str, lines: list[str]) -> None:
    if not lines:
        return
    console.print(f"\n{len(lines)} x {title}:")
    for line in lines[:_SHOWN]:
        console.print(f"  {escape(line)}", soft_wrap=True)
    if len(lines) > _SHOWN:
        console.print(f"  ... and {len(lines) - _SHOWN} more (--json lists all)")


def _summary(console: Console, label: str, scores: Sequence[Score]) -> None:
    table = _table(label, ["n", "passes", "turns", *_TITLES], max(len(s.name) for s in scores))
    for s in scores:
        parts = []
        for part in PARTS:
            cell = f"{getattr(s.composite, part):.2f}"
            if s.intervals:
                lo, hi = s.intervals[part]
                cell += f"\n[dim]{lo:.1f} to {hi:.1f}[/]"
            parts.append(cell)
        table.add_row(escape(s.name), str(s.n), str(s.passes), f"{s.turns:.1f}", *parts)
    console.print(table)
    if shown := [s for s in scores if s.intervals]:
        over = "over scenarios" if all(s.cases > 1 for s in shown) else "over the dialogues of a scenario"
        console.print(f"[dim]95 % bootstrap intervals {over}[/]")
    if unfinished := sum(s.endings.get("unfinished", 0) for s in scores):
        console.print(f"[dim]dialogues that were not over where their record ends: {unfinished}[/]")
    for s in scores if label else ():
        ends = ", ".join(f"{reason} {n}" for reason, n in sorted(s.endings.items()))
        console.print(f"[dim]endings of {escape(s.name)}: {ends}[/]")
    if unscored := sum(s.unscored for s in scores):
        console.print(f"[dim]turns the judge failed to score: {unscored}[/]")


def _indices(console: Console, label: str, scores: Sequence[Score]) -> None:
    table = _table(label, list(INDICES), max(len(s.name) for s in scores))
    for s in scores:
        table.add_row(escape(s.name), *(f"{s.composite.indices[k]:.2f}" for k in INDICES))
    console.print(table)


def _table(label: str, columns: list[str], longest: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(label, overflow="fold", min_width=min(longest, 40))
    for column in columns:
        table.add_column(column, justify="right")
    return table


def print_ledger(ledger: Ledger) -> None:
    """What the models cost, if any were asked."""
    rows = [row for row in ledger.as_rows() if row["calls"] or row["hits"]]
    if not rows:
        return
    console = terminal()
    console.width = max(console.width, 110)
    columns = ("calls", "hits", "retries", "failures", "prompt", "cached", "completion", "cost")
    table = _table("role", ["model", *columns], max(len(row["role"]) for row in rows))
    for row in rows:
        cells = ["-" if row[c] is None else f"{row[c]:.4f}" if c == "cost" else str(row[c]) for c in columns]
        table.add_row(escape(row["role"]), escape(row["model"]), *cells)
    console.print(table)
