"""Reward and credit by turn, and how the two parts of the advantage relate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mapo.report.document import numbers, plots
from mapo.report.document.blocks import Block, Heading, Paragraph
from mapo.report.document.numbers import series
from mapo.runs.training import TrainingRun
from mapo.show.figures import AFTER, BEFORE, Look, Panel, Picture

Rows = list[list[float | None]]
_REWARD = "Reward by turn number."


def credit(run: TrainingRun) -> list[Block]:
    """Show rewards and returns by turn, early and late in training, and the two parts of the advantage."""
    first, last = (by_turn(run, part) for part in numbers.thirds(sorted(run.played)))
    parts = [first, last] if first.title != last.title else [last]
    blocks = by_turn_pictures(parts, gamma_of(run), [BEFORE, AFTER][-len(parts) :])
    if run.advantage is None and run.played:
        blocks.append(Paragraph(f"Returns and credit are not available: {run.uncredited}."))
    deviations = {
        name: line
        for name, key in (
            ("turn level", "turn_part_std"),
            ("batch level", "batch_part_std"),
            ("mixed", "advantage_std"),
        )
        if (line := series(run.steps, key))
    }
    panels = []
    if deviations:
        panels.append(
            Panel("Standard deviation of the advantage", plots.curves(deviations, "standard deviation"))
        )
    correlation = series(run.steps, "parts_correlation")
    if correlation:
        panels.append(
            Panel(
                "Correlation of turn-level and batch-level advantage",
                plots.curves({"r": correlation}, "correlation", limits=(-1.05, 1.05)),
            )
        )
    if panels:
        caption = (
            "The turn-level advantage compares a turn's return with the same turn of its siblings. The "
            "batch-level advantage compares its own reward with all turns of all siblings. The less the two "
            "correlate, the more mixing them shrinks the advantage."
        )
        blocks.append(Picture("fig_parts", caption, panels))
    return [Heading("Reward and credit"), *blocks] if blocks else []


@dataclass(frozen=True, slots=True)
class ByTurn:
    """Rewards and returns of many dialogues, [dialogue][turn]."""

    title: str
    rewards: Rows
    returns: Rows


def by_turn(run: TrainingRun, steps: Sequence[int], title: str = "") -> ByTurn:
    found = ByTurn(title or _name(steps), [], [])
    for step in steps:
        usable, advantages = numbers.step_credit(run.played[step], run.advantage)
        found.rewards.extend(numbers.rewards_of(usable))
        found.returns.extend(numbers.known_returns(usable, advantages) if advantages else [])
    return found


def gamma_of(run: TrainingRun) -> str:
    return f"discount {run.advantage.gamma:g} per turn" if run.advantage else ""


def by_turn_pictures(parts: Sequence[ByTurn], discount: str, looks: Sequence[Look]) -> list[Block]:
    """Return fig_reward_by_turn and fig_return_by_turn, with a panel for each part."""
    rewards = [(part.title, part.rewards) for part in parts]
    returns = [(part.title, part.returns) for part in parts]
    about = f"Return by turn number ({discount})."
    found = [
        _picture("fig_reward_by_turn", rewards, looks, "reward", _REWARD),
        _picture("fig_return_by_turn", returns, looks, "return", about),
    ]
    return [picture for picture in found if picture is not None]


def _name(steps: Sequence[int]) -> str:
    if not steps:
        return "no steps"
    return f"step {steps[0]}" if steps[0] == steps[-1] else f"steps {steps[0]} to {steps[-1]}"


def _picture(
    name: str, parts: Sequence[tuple[str, Rows]], looks: Sequence[Look], what: str, about: str
) -> Picture | None:
    tables = [numbers.quantiles_by_turn(rows) for _, rows in parts]
    ends = np.concatenate([table[:, 1:].ravel() for table in tables]) if tables else np.zeros(0)
    if not ends.size:
        return None
    limits = (float(ends.min(initial=0.0)), float(ends.max(initial=0.0)))
    panels = [
        Panel(f"{what.capitalize()}: {title}", plots.distribution(table, what, limits, look.colour))
        for (title, _), table, look in zip(parts, tables, looks, strict=True)
    ]
    counts = " and ".join(f"{len(rows):,}" for _, rows in parts)
    return Picture(name, f"{about} {counts} training dialogues.", panels)
