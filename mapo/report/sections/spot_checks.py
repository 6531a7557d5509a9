"""Spot checks: how far the judge of training agrees with a second one, over the steps."""

from __future__ import annotations

from mapo.report.document import plots
from mapo.report.document.blocks import Block, Heading
from mapo.report.document.numbers import Point, series
from mapo.runs.training import TrainingRun
from mapo.show.figures import Panel, Picture

CAPTION = (
    "Agreement of the judge of training with the judge of spot checks over the latest checked turns: "
    "quadratic weighted kappa of all levels, with a 95 % bootstrap interval over dialogues, and the "
    "correlation of step sums; mean absolute difference of steps per axis; share of checks that were "
    "answered. Agreement that falls is what a policy that games its judge looks like."
)


def spot_checks(run: TrainingRun) -> list[Block]:
    """Show agreement, differences and answers by step; nothing without spot checks."""
    kappa = [
        Point(p.x, p.y, _at(run, p.x, "low"), _at(run, p.x, "high"))
        for p in series(run.steps, "check", "window", "kappa")
    ]
    asked = {p.x: p.y for p in series(run.steps, "check", "asked") if p.y}
    answers = series(run.steps, "check", "answered")
    answered = [Point(p.x, p.y / asked[p.x]) for p in answers if p.x in asked]
    correlation = series(run.steps, "check", "window", "correlation")
    difference = series(run.steps, "check", "window", "difference")
    panels = []
    if kappa or correlation:
        lines = {
            name: line for name, line in (("kappa", kappa), ("correlation of steps", correlation)) if line
        }
        panels.append(Panel("Agreement", plots.curves(lines, "kappa, correlation")))
    if difference:
        panels.append(Panel("Difference", plots.curves({"difference": difference}, "step per axis")))
    if answered:
        shares = plots.curves({"answered": answered}, "share of checks", limits=(-0.02, 1.05))
        panels.append(Panel("Answered checks", shares))
    return [Heading("Spot checks"), Picture("fig_spot_checks", CAPTION, panels)] if panels else []


def _at(run: TrainingRun, step: float, key: str) -> float | None:
    """Return an end of the interval of kappa at a step, where it is known."""
    return next((p.y for p in series(run.steps, "check", "window", key) if p.x == step), None)
