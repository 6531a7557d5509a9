"""Trajectories of held-out dialogues through the state space, one small panel per scenario."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mapo.report.document import numbers, plots
from mapo.report.document.blocks import Block, Heading
from mapo.scoring.result import Result
from mapo.show.figures import Look, Panel, Picture

PANELS = 12
"""Maximum scenarios shown, spread evenly from the smallest to the largest gain."""
LABELS = ("along the line to the goal", "away from it")
PATHS = 8
"""Maximum dialogues drawn per scenario and set."""


@dataclass(frozen=True, slots=True)
class DialogueSet:
    """Dialogues drawn in the same colour and style."""

    name: str
    results: Sequence[Result]
    look: Look


def trajectories(sets: Sequence[DialogueSet]) -> list[Block]:
    """Draw all sets of dialogues, one panel per scenario."""
    sets = [group for group in sets if group.results]
    if not sets:
        return []
    chosen, of = chosen_cases(sets[0].results, sets[-1].results)
    paths = {case: [_paths(group, case) for group in sets] for case in chosen}
    ends = [way for by_set in paths.values() for group in by_set for way in group.trajectories]
    limits = (
        min(-1.05, *(min(along) - 0.05 for along, _ in ends)),
        max(0.1, *(max(along) + 0.05 for along, _ in ends)),
        max(0.3, *(1.1 * max(away) for _, away in ends)),
    )
    panels = [Panel(case, plots.paths(by_set, limits)) for case, by_set in paths.items()]
    some = f" {len(chosen)} of {of} scenarios, ordered by gain." if len(chosen) < of else ""
    caption = (
        "Each line is one dialogue on a held-out scenario and ends at its marker. Horizontal: progress along "
        "the straight line from the starting state (grey dot at -1) to the goal (cross at 0). Vertical: "
        f"distance from that line. Both in units of the starting distance.{some}"
    )
    key = [(group.look, group.name) for group in sets]
    picture = Picture("fig_trajectories", caption, panels, columns=4, small=True, key=key, labels=LABELS)
    return [Heading("Trajectories"), picture]


def _paths(group: DialogueSet, case: str) -> plots.ScenarioPaths:
    matching = [r for r in group.results if r.case == case]
    return plots.ScenarioPaths(group.look, [numbers.path_of(r) for r in matching[:PATHS]])


def chosen_cases(before: Sequence[Result], after: Sequence[Result]) -> tuple[list[str], int]:
    """Return the scenarios to show, ordered by gain, and the total number of scenarios."""
    first, last = _means(before), _means(after)
    cases = sorted(set(first) | set(last))
    cases.sort(key=lambda case: last.get(case, 0.0) - first.get(case, 0.0))
    count = min(len(cases), PANELS)
    return [cases[round(i * (len(cases) - 1) / max(1, count - 1))] for i in range(count)], len(cases)


def _means(results: Sequence[Result]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for r in results:
        found.setdefault(r.case, []).append(numbers.quality(r))
    return {case: sum(by_set) / len(by_set) for case, by_set in found.items()}
