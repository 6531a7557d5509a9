"""Scores of several runs side by side, as `mapo compare` computes them (`evals/compare/comparison.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from mapo.errors import InputError
from mapo.evals.compare.comparison import Comparison, compared, named, read_run
from mapo.evals.compare.entries import Entry
from mapo.evals.compare.tables import differences_table, legend, scores_table
from mapo.report.document import numbers, plots
from mapo.report.document.blocks import Block, Heading, Lines, Words
from mapo.runs.kind import Kind, kind_of
from mapo.show.figures import Panel, Picture

SHOWN = 12
"""Models that are drawn."""


def comparison_blocks(given: Sequence[str]) -> tuple[list[Block], list[str]]:
    """Everything `mapo compare` would say of these runs; what cannot be compared is said. And of evaluations
    that could not even be read, why; a training without a test is a training still."""
    entries: list[Entry] = []
    problems, unread = [], []
    for one in given:
        try:
            entries += read_run(one)
        except InputError as error:
            problems.append(str(error))
        except Exception as error:  # noqa: BLE001 (one run may hold anything; the others stay)
            problems.append(f"{named(one)[1]}: {type(error).__name__}: {error}"[:300])
        else:
            continue
        unread += [] if kind_of(named(one)[1]) is Kind.TRAINING else problems[-1:]
    try:
        found = compared(entries) if entries else None
    except InputError as error:
        found = None
        problems.append(str(error))
    blocks = [] if found is None else _comparison(found)
    if problems:
        blocks += [Words("Not compared:"), Lines(problems)]
    return [Heading("Scores side by side"), *blocks] if blocks else [], unread


def _comparison(found: Comparison) -> list[Block]:
    blocks: list[Block] = [scores_table(found), *_score_picture(found)]
    blocks += [differences_table(found)] if found.differences else []
    return [*blocks, Lines([*legend(found), *found.notes])]


def _score_picture(found: Comparison) -> list[Block]:
    models = found.models[:SHOWN]
    rows: list[tuple[str, list[numbers.Point | None]]] = []
    for column in found.columns[:8]:
        entries = [found.cells.get((model, column.label)) for model in models]
        points = [
            None
            if e is None or e.value is None
            else numbers.Point(0.0, e.value, *(e.interval or (None, None)))
            for e in entries
        ]
        rows.append((column.short, points))
    if not any(p for _, points in rows for p in points):
        return []
    room = plots.room_for([label for label, _ in rows])
    panel = Panel("Scores", plots.bars(rows, models, "points"), room, 0.2 + 0.2 * -(-len(models) // 2))
    return [Picture("fig_scores", "Scores with 95 % bootstrap intervals over cases.", [panel])]
