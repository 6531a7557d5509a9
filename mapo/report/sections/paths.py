"""The ways of held-out dialogues through the state space, a small panel a scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mapo.report.document import numbers, plots
from mapo.report.document.blocks import Block, Heading
from mapo.scoring.result import Result
from mapo.show.figures import Look, Panel, Picture

PANELS = 12
"""Scenarios shown; of more, those spread evenly from the smallest gain to the largest."""
LABELS = ("along the straight way to the goal", "aside of it")
PATHS = 8
"""Dialogues of one scenario and side that are drawn."""


@dataclass(frozen=True, slots=True)
class Walkers:
    """Dialogues that are drawn alike."""

    name: str
    results: Sequence[Result]
    look: Look


def trajectories(sides: Sequence[Walkers]) -> list[Block]:
    """All sides in one panel a scenario."""
    sides = [side for side in sides if side.results]
    if not sides:
        return []
    chosen, of = chosen_cases(sides[0].results, sides[-1].results)
    ways = {case: [_ways(side, case) for side in sides] for case in chosen}
    ends = [way for own in ways.values() for side in own for way in side.ways]
    limits = (
        min(-1.05, *(min(along) - 0.05 for along, _ in ends)),
        max(0.1, *(max(along) + 0.05 for along, _ in ends)),
        max(0.3, *(1.1 * max(aside) for _, aside in ends)),
    )
    panels = [Panel(case, plots.paths(own, limits)) for case, own in ways.items()]
    some = (
        f" {len(chosen)} of {of} scenarios, from the smallest gain to the largest."
        if len(chosen) < of
        else ""
    )
    caption = (
        "Each line is a dialogue on a held-out scenario; it ends at the dot. Across: how far it has come "
        "along the straight line from where the person began (the grey dot at -1) to where nothing more is "
        "needed (the cross at 0). Up: how far it is aside of that line. In units of the distance at the "
        f"start.{some}"
    )
    key = [(side.look, side.name) for side in sides]
    picture = Picture("fig_trajectories", caption, panels, columns=4, small=True, key=key, labels=LABELS)
    return [Heading("The ways dialogues took"), picture]


def _ways(side: Walkers, case: str) -> plots.Ways:
    mine = [r for r in side.results if r.case == case]
    return plots.Ways(side.look, [numbers.path_of(r) for r in mine[:PATHS]])


def chosen_cases(before: Sequence[Result], after: Sequence[Result]) -> tuple[list[str], int]:
    """Scenarios in the order of their gain, and of how many they are."""
    first, last = _means(before), _means(after)
    cases = sorted(set(first) | set(last))
    cases.sort(key=lambda case: last.get(case, 0.0) - first.get(case, 0.0))
    count = min(len(cases), PANELS)
    return [cases[round(i * (len(cases) - 1) / max(1, count - 1))] for i in range(count)], len(cases)


def _means(results: Sequence[Result]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for r in results:
        found.setdefault(r.case, []).append(numbers.quality(r))
    return {case: sum(own) / len(own) for case, own in found.items()}
