"""The held-out test: scores before and after training, and their paired difference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mapo.evals.compare.comparison import paired
from mapo.evals.compare.entries import Case
from mapo.measure.stats import MIN_ROWS, Interval
from mapo.report.document import numbers
from mapo.report.document.blocks import (
    Block,
    Heading,
    Paragraph,
    StatTile,
    StatTiles,
    format_interval,
    format_number,
)
from mapo.scoring.context import context_of_results
from mapo.scoring.result import Result
from mapo.scoring.score import PARTS, Score, score_results
from mapo.show.tables import Table
from mapo.text import plural
from mapo.types import Dialogue

Difference = tuple[float, Interval | None, float, int]
"""Mean, 95 % interval, p-value of the sign-flip test, number of scenarios."""


def held_out(before: Sequence[Result], after: Sequence[Result]) -> list[Block]:
    rows: list[tuple[str, Score]] = []
    for name, results in (("before", before), ("after", after)):
        if results:
            rows.append((name, score_results(name, comparable(results))))
    if not rows:
        return []
    table = Table(
        [
            "",
            "EPM-Q",
            "95 % interval",
            "outcome",
            "efficiency",
            "stability",
            "passes",
            "turns",
            "unscored turns",
        ],
        [score_row(name, score) for name, score in rows],
        note="EPM-Q is 100 when every sub-index reaches its reference value; higher values are possible. "
        "Scores of different domains are not comparable. Intervals: bootstrap over scenarios.",
    )
    context = context_of_results(after or before)
    about = f"Scenarios that were not used in training. {context.describe()}. {context.reference}".rstrip()
    blocks: list[Block] = [Heading("Held-out test"), Paragraph(about)]
    if len(rows) < 2:
        return [*blocks, table]
    difference = paired_difference(before, after)
    blocks[:0] = [_tiles(rows[0][1], rows[1][1], difference)]
    return [*blocks, table, *_difference_words(difference)]


def comparable(results: Sequence[Result]) -> list[Result]:
    """Return the results with the same rubric and profile as the first; others must not be pooled."""
    kind = (results[0].path.rubric.name, results[0].path.profile.name)
    return [r for r in results if (r.path.rubric.name, r.path.profile.name) == kind]


def score_row(name: str, score: Score) -> list[str]:
    ends = score.intervals["epm_q"] if score.intervals else None
    parts = [format_number(getattr(score.composite, part)) for part in PARTS[:3]]
    passes = f"{score.passes} of {score.n}{unmet_words(score)}"
    return [
        name,
        format_number(score.composite.epm_q),
        format_interval(ends),
        *parts,
        passes,
        format_number(score.turns),
        str(score.unscored),
    ]


def unmet_words(score: Score) -> str:
    """Return how many passes leave an axis with a deficit outside the target zone; empty if none do."""
    return f" ({score.unmet} with an unmet axis)" if score.unmet else ""


def paired_difference(before: Sequence[Result], after: Sequence[Result]) -> Difference | None:
    """Return after minus before in EPM-Q over the scenarios in both sets."""
    means = []
    for results in (before, after):
        by_case: dict[str, list[float]] = {}
        for r in results:
            by_case.setdefault(r.case, []).append(numbers.quality(r))
        means.append({case: Case(sum(values) / len(values)) for case, values in by_case.items()})
    common = [case for case in means[0] if case in means[1]]
    if not common:
        return None
    mean, interval, p = paired([means[1][c] for c in common], [means[0][c] for c in common])
    return mean, interval, p, len(common)


def held_out_difference(
    before: Sequence[Dialogue], after: Sequence[Dialogue], root: Path
) -> Difference | None:
    """Return the paired difference of the test dialogues of the run in `root`."""
    return paired_difference(numbers.recomputed(before, root, []), numbers.recomputed(after, root, []))


def _tiles(before: Score, after: Score, difference: Difference | None) -> StatTiles:
    ends = after.intervals["epm_q"] if after.intervals else None
    tiles = [
        StatTile(
            "EPM-Q (held-out)",
            f"{format_number(before.composite.epm_q)} → {format_number(after.composite.epm_q)}",
            f"after: {format_interval(ends)} (95 %)" if ends else "",
        )
    ]
    if difference:
        mean, interval, _, n = difference
        detail = f"{plural(n, 'scenario')}, too few for an interval"
        if interval:
            detail = f"{format_interval(interval, '+.1f')} (95 %), {plural(n, 'scenario')}"
        tiles.append(StatTile("Paired difference", format_number(mean, "+.1f"), detail))
    first = f"{before.passes}" if before.n == after.n else f"{before.passes} of {before.n}"
    left = f"{after.unmet} of them leave an axis unmet" if after.unmet else ""
    tiles.append(StatTile("Passes", f"{first} → {after.passes} of {after.n}", left))
    tiles.append(
        StatTile("Turns per dialogue", f"{format_number(before.turns)} → {format_number(after.turns)}")
    )
    dynamic = [format_number(score.dynamic_alignment, "+.2f") for score in (before, after)]
    fixed = [format_number(score.alignment, "+.2f") for score in (before, after)]
    tiles.append(
        StatTile("Dynamic alignment", " → ".join(dynamic), f"with the fixed direction {' → '.join(fixed)}")
    )
    return StatTiles(tiles)


def _difference_words(difference: Difference | None) -> list[Block]:
    if difference is None:
        return [
            Paragraph(
                "No scenario was played both before and after training, so there is no paired difference."
            )
        ]
    mean, interval, p, n = difference
    p_text = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    test = f"sign-flip test over {plural(n, 'scenario')}: {p_text}"
    changed = f"Paired by scenario, EPM-Q changed by {format_number(mean, '+.1f')}"
    if interval is None:
        few = f"With fewer than {MIN_ROWS} scenarios there is no interval."
        return [Paragraph(f"{changed} ({test}). {few}")]
    return [
        Paragraph(
            f"{changed} (95 % interval {format_interval(interval, '+.1f')}; {test}). The interval covers the "
            "choice of scenarios, not of the training seed."
        )
    ]
