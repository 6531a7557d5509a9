"""Scores and model costs, printed to the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from mapo.measure.epmq import INDICES
from mapo.models.ledger import Ledger
from mapo.scoring.score import PARTS, Score, Scoring
from mapo.show.tables import Cell, Estimate, Table, interval_text, print_tables, rich_table
from mapo.text import escape, terminal

_TITLES = ("Outcome", "Efficiency", "Stability", "EPM-Q")
_SHOWN = 10  # lines listed before the rest is only counted


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
    rows: list[list[Cell]] = [
        [s.name, str(s.n), str(s.passes), f"{s.turns:.1f}", *(_estimate(s, part) for part in PARTS)]
        for s in scores
    ]
    console.print(rich_table(Table([label, "n", "passes", "turns", *_TITLES], rows)))
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


def _estimate(score: Score, part: str) -> Estimate:
    value = f"{getattr(score.composite, part):.2f}"
    return Estimate(value, interval_text(score.intervals[part]) if score.intervals else "")


def _indices(console: Console, label: str, scores: Sequence[Score]) -> None:
    rows = [[s.name, *(f"{s.composite.indices[k]:.2f}" for k in INDICES)] for s in scores]
    console.print(rich_table(Table([label, *INDICES], rows)))


def print_ledger(ledger: Ledger) -> None:
    """Print calls, tokens and cost per role and model, if any model was called."""
    columns = ("calls", "hits", "retries", "failures", "prompt", "cached", "completion", "cost")
    rows = [
        [
            row["role"],
            row["model"],
            *("-" if row[c] is None else f"{row[c]:.4f}" if c == "cost" else str(row[c]) for c in columns),
        ]
        for row in ledger.as_rows()
        if row["calls"] or row["hits"]
    ]
    print_tables([Table(["role", "model", *columns], rows, left=2)])
