"""The held-out test as blocks: the scores before and after training, and the paired difference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mapo.evals.compare.comparison import paired
from mapo.evals.compare.entries import Case
from mapo.measure.stats import Interval
from mapo.report.document import numbers
from mapo.report.document.blocks import Block, Heading, Tile, Tiles, Words, span, told
from mapo.scoring.result import Result
from mapo.scoring.score import PARTS, Score, score_results
from mapo.show.tables import Table
from mapo.types import Dialogue

Difference = tuple[float, Interval | None, float, int]
"""Mean, 95 % interval, p of the sign-flip test, scenarios."""


def held_out(before: Sequence[Result], after: Sequence[Result]) -> list[Block]:
    rows: list[tuple[str, Score]] = []
    for name, results in (("before", before), ("after", after)):
        if results:
            rows.append((name, score_results(name, alike(results))))
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
            "passed",
            "turns",
            "unscored turns",
        ],
        [score_row(name, score) for name, score in rows],
        note="EPM-Q and its three parts are points: at 100 every index is at its reference, and more is "
        "possible. Points of two domains do not compare. Intervals: bootstrap over scenarios.",
    )
    blocks: list[Block] = [Heading("The held-out test"), Words("Scenarios that were never trained on.")]
    if len(rows) < 2:
        return [*blocks, table]
    difference = paired_difference(before, after)
    blocks[:0] = [_tiles(rows[0][1], rows[1][1], difference)]
    return [*blocks, table, *_difference_words(difference)]


def alike(results: Sequence[Result]) -> list[Result]:
    """Those of the first one's rubric and profile: others are never pooled with them."""
    kind = (results[0].path.rubric.name, results[0].path.profile.name)
    return [r for r in results if (r.path.rubric.name, r.path.profile.name) == kind]


def score_row(name: str, score: Score) -> list[str]:
    ends = score.intervals["epm_q"] if score.intervals else None
    parts = [told(getattr(score.composite, part)) for part in PARTS[:3]]
    passed = f"{score.passes} of {score.n}"
    return [
        name,
        told(score.composite.epm_q),
        span(ends),
        *parts,
        passed,
        told(score.turns),
        str(score.unscored),
    ]


def paired_difference(before: Sequence[Result], after: Sequence[Result]) -> Difference | None:
    """After minus before in EPM-Q over the scenarios that both have."""
    means = []
    for results in (before, after):
        by_case: dict[str, list[float]] = {}
        for r in results:
            by_case.setdefault(r.case, []).append(numbers.quality(r))
        means.append({case: Case(sum(own) / len(own)) for case, own in by_case.items()})
    common = [case for case in means[0] if case in means[1]]
    if not common:
        return None
    mean, interval, p = paired([means[1][c] for c in common], [means[0][c] for c in common])
    return mean, interval, p, len(common)


def held_out_difference(
    before: Sequence[Dialogue], after: Sequence[Dialogue], root: Path
) -> Difference | None:
    """The paired difference of the test dialogues of the run in `root`."""
    return paired_difference(numbers.recomputed(before, root, []), numbers.recomputed(after, root, []))


def _tiles(before: Score, after: Score, difference: Difference | None) -> Tiles:
    ends = after.intervals["epm_q"] if after.intervals else None
    tiles = [
        Tile(
            "EPM-Q, held-out",
            f"{told(before.composite.epm_q)} → {told(after.composite.epm_q)}",
            f"after: {span(ends)} (95 %)" if ends else "",
        )
    ]
    if difference:
        mean, interval, _, n = difference
        tiles.append(
            Tile("Paired difference", told(mean, "+.1f"), f"{span(interval, '+.1f')} (95 %), {n} scenarios")
        )
    first = f"{before.passes}" if before.n == after.n else f"{before.passes} of {before.n}"
    tiles.append(Tile("Passed dialogues", f"{first} → {after.passes} of {after.n}"))
    tiles.append(Tile("Turns a dialogue", f"{told(before.turns)} → {told(after.turns)}"))
    return Tiles(tiles)


def _difference_words(difference: Difference | None) -> list[Block]:
    if difference is None:
        return [Words("No scenario was played both before and after, so there is no paired difference.")]
    mean, interval, p, n = difference
    chance = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    return [
        Words(
            f"Scenario by scenario, EPM-Q changed by {told(mean, '+.1f')} (95 % interval "
            f"{span(interval, '+.1f')}; sign-flip test over {n} scenarios: {chance}). This speaks of other "
            "scenarios of this kind, not of another training with another seed."
        )
    ]
