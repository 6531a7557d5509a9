"""What was rewarded and what was credited: by turn, and how the two parts of the advantage go together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mapo.report.document import numbers, plots
from mapo.report.document.blocks import Block, Heading, Words
from mapo.report.document.numbers import series
from mapo.runs.training import Training
from mapo.show.figures import AFTER, BEFORE, Look, Panel, Picture

Rows = list[list[float | None]]
_REWARD = "Reward of a turn by its place in the dialogue."


def credit(run: Training) -> list[Block]:
    """Distributions of reward and return by turn index, at the beginning and at the end; the parts."""
    first, last = (by_turn(run, part) for part in numbers.thirds(sorted(run.played)))
    parts = [first, last] if first.title != last.title else [last]
    blocks = by_turn_pictures(parts, gamma_of(run), [BEFORE, AFTER][-len(parts) :])
    if run.advantage is None and run.played:
        blocks.append(Words(f"There are no returns and no credit here: {run.uncredited}."))
    spreads = {
        name: line
        for name, key in (
            ("turn part", "turn_part_std"),
            ("batch part", "batch_part_std"),
            ("mixed", "advantage_std"),
        )
        if (line := series(run.steps, key))
    }
    panels = []
    if spreads:
        panels.append(Panel("Spread of the advantage", plots.curves(spreads, "standard deviation")))
    correlation = series(run.steps, "parts_correlation")
    if correlation:
        panels.append(
            Panel(
                "Correlation of the two parts",
                plots.curves({"r": correlation}, "correlation", limits=(-1.05, 1.05)),
            )
        )
    if panels:
        caption = (
            "The turn part compares what a turn led to with the same turn of its siblings; the batch part "
            "compares what it earned itself with all turns of all siblings. Where they agree less, mixing "
            "them damps more."
        )
        blocks.append(Picture("fig_parts", caption, panels))
    return [Heading("Reward and credit"), *blocks] if blocks else []


@dataclass(frozen=True, slots=True)
class ByTurn:
    """Rewards and returns of many dialogues, [dialogue][turn]."""

    title: str
    rewards: Rows
    returns: Rows


def by_turn(run: Training, steps: Sequence[int], title: str = "") -> ByTurn:
    found = ByTurn(title or _name(steps), [], [])
    for step in steps:
        usable, given = numbers.step_credit(run.played[step], run.advantage)
        found.rewards.extend(numbers.rewards_of(usable))
        found.returns.extend(numbers.known_returns(usable, given) if given else [])
    return found


def gamma_of(run: Training) -> str:
    return f"discounted by {run.advantage.gamma:g} a turn" if run.advantage else ""


def by_turn_pictures(parts: Sequence[ByTurn], discount: str, looks: Sequence[Look]) -> list[Block]:
    """Return fig_reward_by_turn and fig_return_by_turn, with a panel for each part."""
    rewards = [(part.title, part.rewards) for part in parts]
    returns = [(part.title, part.returns) for part in parts]
    about = f"Return of a turn (what it led to, {discount}) by its place in the dialogue."
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
    return Picture(name, f"{about} Of {counts} training dialogues.", panels)
