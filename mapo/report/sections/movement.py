"""Movement per axis: the reward of each axis and regression, over training steps and before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mapo.errors import InputError
from mapo.measure.axes import REGRESSION, movement_of
from mapo.report.document import numbers, plots
from mapo.report.document.blocks import Block, Heading
from mapo.report.document.numbers import Point, series
from mapo.report.sections.held_out import comparable
from mapo.runs.training import TrainingRun
from mapo.scoring.result import Result
from mapo.scoring.score import score_results
from mapo.scoring.tables import movement_tables
from mapo.show.figures import Panel, Picture

MAX_AXES = 12
"""Maximum axes drawn."""


def movement_by_step(run: TrainingRun) -> list[Block]:
    """Show the reward of each axis and regression by step."""
    steps = run.steps if series(run.steps, REGRESSION) else _from_dialogues(run)
    lines = {key: line for key in _axes(steps) if (line := series(steps, "axis_rewards", key))}
    harm = series(steps, REGRESSION)
    panels = []
    if lines or harm:
        every: dict[str, list[Point]] = {**lines, **({REGRESSION: harm} if harm else {})}
        panels.append(Panel("Reward per axis, and regression", plots.curves(every, "mean per turn")))
    share = series(steps, "regressed")
    if share:
        top = max(p.y for p in share)
        limits = (-0.02 * max(0.05, top), max(0.05, 1.15 * top))
        panels.append(
            Panel("Turns with regression", plots.curves({"share": share}, "share of turns", limits=limits))
        )
    if not panels:
        return []
    caption = (
        "Training dialogues by step. The reward of an axis is the part of its deficit that a turn removed; "
        "regression is the weighted sum of what the regression levels stand for, which the rewards include."
    )
    return [Heading("Reward per axis"), Picture("fig_axes", caption, panels)]


def movement(sets: Mapping[str, Sequence[Result]], label: str = "") -> list[Block]:
    """Return tables of the mean movement per axis and regression, with a row per set of dialogues."""
    scores = [score_results(name, comparable(results)) for name, results in sets.items() if results]
    return [Heading("Movement per axis"), *movement_tables(label, scores)] if scores else []


def _axes(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the axes in the order in which the steps name them."""
    found: dict[str, None] = {}
    for line in steps:
        recorded = line.get("axis_rewards")
        found |= dict.fromkeys(recorded) if isinstance(recorded, dict) and len(found) < MAX_AXES else {}
    return list(found)[:MAX_AXES]


def _from_dialogues(run: TrainingRun) -> list[dict[str, Any]]:
    """Compute the movement of the steps that were read, for runs of versions that did not record it."""
    steps = []
    for step, dialogues in sorted(run.played.items()):
        rubric = numbers.rubric_of(dialogues, run.root)
        if rubric is None:
            continue
        own = [d for d in dialogues if d.rubric == rubric.name]
        try:
            steps.append({"step": step, **movement_of(own, rubric).as_json()})
        except (InputError, ValueError, OverflowError):  # records that do not fit the rubric
            continue
    return steps
