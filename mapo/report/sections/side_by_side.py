"""Scores of several runs side by side, as computed by `mapo compare` (`evals/compare/comparison.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from mapo.errors import InputError
from mapo.evals.compare.comparison import Comparison, compared, read_run, split_name
from mapo.evals.compare.entries import Entry
from mapo.evals.compare.tables import differences_table, legend, scores_table
from mapo.report.document import numbers, plots
from mapo.report.document.blocks import Block, BulletList, Heading, Paragraph
from mapo.runs.kind import Kind, kind_of
from mapo.show.figures import Panel, Picture

SHOWN = 12
"""Maximum models drawn."""


def comparison_blocks(runs: Sequence[str]) -> tuple[list[Block], list[str]]:
    """Return the blocks of a comparison, and the problems of evaluations that could not be read.

    A training run without test results is not a problem: it appears among the training runs.
    """
    entries: list[Entry] = []
    problems, unread = [], []
    for run in runs:
        try:
            entries += read_run(run)
        except InputError as error:
            problems.append(str(error))
        except Exception as error:  # noqa: BLE001 (untrusted files; the other runs are still compared)
            problems.append(f"{split_name(run)[1]}: {type(error).__name__}: {error}"[:300])
        else:
            continue
        unread += [] if kind_of(split_name(run)[1]) is Kind.TRAINING else problems[-1:]
    try:
        comparison = compared(entries) if entries else None
    except InputError as error:
        comparison = None
        problems.append(str(error))
    blocks = [] if comparison is None else _comparison(comparison)
    if problems:
        blocks += [Paragraph("Not compared:"), BulletList(problems)]
    return [Heading("Scores side by side"), *blocks] if blocks else [], unread


def _comparison(comparison: Comparison) -> list[Block]:
    blocks: list[Block] = [scores_table(comparison), *_score_picture(comparison)]
    blocks += [differences_table(comparison)] if comparison.differences else []
    return [*blocks, BulletList([*legend(comparison), *comparison.notes])]


def _score_picture(comparison: Comparison) -> list[Block]:
    models = comparison.models[:SHOWN]
    rows: list[tuple[str, list[numbers.Point | None]]] = []
    for column in comparison.columns[:8]:
        entries = [comparison.cells.get((model, column.label)) for model in models]
        points = [
            None
            if e is None or e.value is None
            else numbers.Point(0.0, e.value, *(e.interval or (None, None)))
            for e in entries
        ]
        rows.append((column.short, points))
    if not any(p for _, points in rows for p in points):
        return []
    room = plots.label_width([label for label, _ in rows])
    panel = Panel("Scores", plots.bars(rows, models, "points"), room, 0.2 + 0.2 * -(-len(models) // 2))
    return [Picture("fig_scores", "Scores with 95 % bootstrap intervals over cases.", [panel])]
