"""Numbers for reports, computed from records: series with intervals, values by turn, credit, trajectories.

Intervals within one run are 95 % percentile bootstraps over the scenarios of a step, because dialogues of one
scenario are correlated; with fewer than `MIN_ROWS` scenarios there is none. Intervals over runs are Student's
t over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mapo.advantage import Advantages
from mapo.config import Advantage
from mapo.errors import InputError
from mapo.measure.epmq import weigh
from mapo.measure.rubric import Rubric
from mapo.measure.stats import Floats, Interval, bootstrap, reportable, t_interval
from mapo.runs.contents import (
    dialogue_credit,
    endings_by_step,
    find_rubric,
    number,
    plausible_rewards,
    read_rubric,
)
from mapo.scoring.result import Result, recompute
from mapo.types import Dialogue

RESAMPLES = 1000
QUANTILES = (5, 25, 50, 75, 95)


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a curve; `low` and `high` are None where there is no interval."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


# ---- over steps


def series(steps: Sequence[Mapping[str, Any]], *keys: str) -> list[Point]:
    """Return a metric by step: the value at a path of keys, where it is a number."""
    found = []
    for line in steps:
        value: Any = line
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        if (y := number(value)) is not None:
            found.append(Point(float(line["step"]), y))
    return found


def with_intervals(points: Sequence[Point], ends: Mapping[int, tuple[float, float]]) -> list[Point]:
    return [Point(p.x, p.y, *ends[int(p.x)]) if int(p.x) in ends else p for p in points]


def reward_intervals(played: Mapping[int, Sequence[Dialogue]]) -> dict[int, tuple[float, float]]:
    """Return intervals of the mean reward per turn, resampling scenarios."""
    found = {}
    for step, dialogues in played.items():
        by_scenario: dict[str, list[float]] = {}
        for d in dialogues:
            by_scenario.setdefault(d.scenario, []).extend(scored_rewards(d))
        rows = np.array([(sum(r), float(len(r))) for r in by_scenario.values() if r])
        if ends := _interval(rows, lambda m: m[..., :1] / m[..., 1:]):
            found[step] = ends
    return found


def score_intervals(
    played: Mapping[int, Sequence[Dialogue]], root: Path, problems: list[str]
) -> dict[int, tuple[float, float]]:
    """Return intervals of each step's EPM-Q."""
    found = {}
    for step, dialogues in played.items():
        by_scenario: dict[str, list[tuple[float, ...]]] = {}
        for result in recomputed(dialogues, root, problems):
            by_scenario.setdefault(result.case, []).append(result.indices)
        rows = np.array([np.mean(indices, axis=0) for indices in by_scenario.values()])
        if ends := _interval(rows, lambda m: weigh(m)[..., 3:]):
            found[step] = ends
    return found


def _interval(rows: Floats, statistic: Callable[[Floats], Floats]) -> Interval | None:
    ends = bootstrap(rows, statistic, resamples=RESAMPLES)
    return None if ends is None else reportable(ends[0, 0], ends[0, 1], rows=len(rows))


def scored_rewards(dialogue: Dialogue) -> list[float]:
    return [r for turn in dialogue.turns if (r := number(turn.reward)) is not None]


def recomputed(dialogues: Sequence[Dialogue], root: Path, problems: list[str]) -> list[Result]:
    """Recompute dialogues from their levels; broken and unjudged ones are left out."""
    found = []
    for d in dialogues:
        if not d.judged:
            continue
        rubric, problem = read_rubric(find_rubric(root), d.rubric)
        problems += [problem] if problem else []
        if rubric is None:
            problems.append(f"{d.id}: unknown rubric '{d.rubric}'")
            continue
        try:
            found.append(recompute(d, root, None, rubric, d.id))
        except InputError as error:
            problems.append(str(error))
    return found


def mean_over_runs(curves: Sequence[Sequence[Point]]) -> list[Point]:
    """Return the mean over runs at each x, with Student's t interval over runs."""
    at: dict[float, list[float]] = {}
    for curve in curves:
        for point in curve:
            at.setdefault(point.x, []).append(point.y)
    return [Point(x, float(np.mean(ys)), *(t_interval(ys) or (None, None))) for x, ys in sorted(at.items())]


def by_dialogues(steps: Sequence[Mapping[str, Any]], *keys: str) -> list[Point]:
    """Return a metric by the number of dialogues played so far."""
    total, at = 0.0, {}
    for line in steps:
        total += number(line.get("dialogues")) or 0.0
        at[float(line["step"])] = total
    return [Point(at[p.x], p.y) for p in series(steps, *keys)]


def endings(steps: Sequence[Mapping[str, Any]]) -> dict[str, list[Point]]:
    """Return the share of each ending by step."""
    found = endings_by_step(steps)
    totals: dict[int, float] = {}
    for counts in found.values():
        for step, n in counts.items():
            totals[step] = totals.get(step, 0.0) + n
    return {
        name: [Point(float(step), n / totals[step]) for step, n in counts.items()]
        for name, counts in found.items()
    }


# ---- by turn


def rewards_of(dialogues: Iterable[Dialogue]) -> list[list[float | None]]:
    return [plausible_rewards(d) for d in dialogues]


def rubric_of(dialogues: Sequence[Dialogue], root: Path) -> Rubric | None:
    """Return the rubric of dialogues of the run in `root`; None if it is unknown."""
    name = next((d.rubric for d in dialogues if d.turns), "")
    return read_rubric(find_rubric(root), name)[0] if name else None


def step_credit(
    dialogues: Sequence[Dialogue], settings: Advantage, root: Path
) -> tuple[list[Dialogue], Advantages | str]:
    """Return a step's usable dialogues and their credit, computed as in training, or the reason why there is
    none. `root` is the run directory, which may have a rubric of its own."""
    usable = [d for d in dialogues if d.usable and d.turns]
    return usable, dialogue_credit(usable, settings, rubric_of(usable, root))


def quantiles_by_turn(rows: Sequence[Sequence[float | None]]) -> Floats:
    """Return [turn, 6]: the number of values at each turn, and their 5, 25, 50, 75 and 95 % quantiles."""
    found = []
    for t in range(max(map(len, rows), default=0)):
        column = [v for row in rows if t < len(row) and (v := row[t]) is not None]
        if not column:
            break
        found.append([float(len(column)), *np.percentile(column, QUANTILES)])
    return np.array(found, dtype=np.float64).reshape(len(found), 1 + len(QUANTILES))


def known_returns(dialogues: Sequence[Dialogue], credit: Advantages) -> list[list[float | None]]:
    """Return the return of every scored turn, as it is compared; None for unscored turns."""
    return [
        [
            None if number(turn.reward) is None else number(float(g))
            for turn, g in zip(d.turns, row, strict=True)
        ]
        for d, row in zip(dialogues, credit.returns, strict=True)
    ]


def thirds(steps: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the first and the last third of the steps; a single step is both."""
    count = max(1, len(steps) // 3)
    return list(steps[:count]), list(steps[-count:])


# ---- before and after


def quality(result: Result) -> float:
    """Return a dialogue's EPM-Q. EPM-Q is linear in the sub-indices, so the score of a set is the mean."""
    return float(weigh(np.array(result.indices))[3])


def dialogue_score(dialogue: Dialogue, root: Path) -> str:
    """Return "EPM-Q 71.2, " for the heading of a dialogue of the run in `root`; "" if it has no score."""
    results = recomputed([dialogue], root, [])
    return f"EPM-Q {quality(results[0]):.1f}, " if results else ""


def path_of(result: Result) -> tuple[list[float], list[float]]:
    """Project a dialogue's trajectory to two dimensions, for any number of axes.

    Returns the position along the straight line to the goal (-1 at the start, 0 at the goal) and the distance
    from that line, both in units of the starting distance.
    """
    states = result.path.states
    unit = states[0].norm or 1.0
    away = [max(0.0, s.norm**2 - s.projection**2) ** 0.5 / unit for s in states]
    return [s.projection / unit for s in states], away


BeforeAfter = tuple[Dialogue, Dialogue]
"""A held-out dialogue before and after training."""


def typical_pair(before: Sequence[Dialogue], after: Sequence[Dialogue]) -> BeforeAfter | None:
    """Return the dialogue, before and after training, with the median gain in distance."""
    pairs = _by_gain(before, after)
    return pairs[len(pairs) // 2] if pairs else None


def example_pairs(
    before: Sequence[Dialogue], after: Sequence[Dialogue]
) -> list[tuple[str, Dialogue, Dialogue]]:
    """Return the best, the median and the worst dialogue by gain in distance, each with its name, before and
    after training. Unjudged dialogues have no distance and are left out.
    """
    pairs = _by_gain([d for d in before if d.judged], [d for d in after if d.judged])
    names = {"best": -1, "median": len(pairs) // 2, "worst": 0}
    if len(pairs) < 3:
        names = [{}, {"only": 0}, {"better": 1, "worse": 0}][len(pairs)]
    return [(name, *pairs[at]) for name, at in names.items()]


def _by_gain(before: Sequence[Dialogue], after: Sequence[Dialogue]) -> list[BeforeAfter]:
    """Return the dialogues played both times, by gain in distance. Equal gains are ordered by id, so that the
    result does not depend on the order of the records.
    """
    late = {d.id: d for d in after if d.usable and d.turns}
    pairs = [(d, late[d.id]) for d in before if d.usable and d.turns and d.id in late]
    return sorted(pairs, key=lambda pair: (end_distance(pair[0]) - end_distance(pair[1]), pair[0].id))


def end_distance(dialogue: Dialogue) -> float:
    """Return the distance to the goal after the last turn, 0 if it was not judged."""
    state = dialogue.turns[-1].state
    return state.distance if state else 0.0
