"""Reward and credit by turn, and how the two parts of the advantage relate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mapo.estimators.methods import ESTIMATORS
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
    blocks = by_turn_pictures(parts, about_returns(run), [BEFORE, AFTER][-len(parts) :])
    if run.advantage is None and run.played:
        blocks.append(Paragraph(f"Returns and credit are not available: {run.uncredited}."))
    elif run.played and not last.returns:
        blocks.append(Paragraph(f"Returns and credit are not available: {last.problem}."))
    method = run.advantage.method if run.advantage else ""
    second, caption = _PARTS.get(method, ("second part", ""))
    deviations = {
        name: line
        for name, key in (
            (second, "turn_part_std"),
            ("batch level", "batch_part_std"),
            ("mixed" if method in ("", "mapo") else "advantage", "advantage_std"),
        )
        if (line := series(run.steps, key)) and (method in ("", "mapo") or any(p.y for p in line))
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
        blocks.append(Picture("fig_parts", caption or _formula(method), panels))
    return [Heading("Reward and credit"), *blocks] if blocks else []


_MIXED = (
    "turn level",
    "The turn-level advantage compares a turn's return with the same turn of its siblings. The "
    "batch-level advantage compares its own reward with all turns of all siblings. The less the two "
    "correlate, the more mixing them shrinks the advantage.",
)
_PARTS = {
    "": _MIXED,
    "mapo": _MIXED,
    "turn": ("turn level", ""),
    "rloo_turn": ("turn level", ""),
    "turn_gae": ("turn level", ""),
    "mt_grpo": ("turn level", ""),
    "gigpo": ("same state", ""),
}
"""Name of the part that metrics.jsonl calls the turn part, and the caption, by method."""


def _formula(method: str) -> str:
    """Say what a method compares."""
    known = ESTIMATORS.get(method)
    return f"Spread of the advantage of {method}: {known.formula}." if known else "Spread of the advantage."


@dataclass(slots=True)
class ByTurn:
    """Rewards and returns of many dialogues, [dialogue][turn]; `problem` says why there are no returns."""

    title: str
    rewards: Rows
    returns: Rows
    problem: str = ""


def by_turn(run: TrainingRun, steps: Sequence[int], title: str = "") -> ByTurn:
    found = ByTurn(title or _name(steps), [], [])
    for step in steps:
        if run.advantage is None:
            found.rewards.extend(numbers.rewards_of(d for d in run.played[step] if d.usable and d.turns))
            continue
        usable, computed = numbers.step_credit(run.played[step], run.advantage, run.root)
        found.rewards.extend(numbers.rewards_of(usable))
        if isinstance(computed, str):
            found.problem = found.problem or computed
        else:
            found.returns.extend(numbers.known_returns(usable, computed))
    return found


def about_returns(run: TrainingRun) -> str:
    """Describe the returns of a run: their discount, and whether dialogues that ended are continued."""
    if run.advantage is None:
        return ""
    discount = f"discount {run.advantage.gamma:g} per turn"
    if run.advantage.endings == "cut":
        return discount
    known = ESTIMATORS.get(run.advantage.method)
    longest = "longest sibling" if known is None or known.siblings else "longest dialogue of the step"
    pace = "last reward" if run.advantage.endings == "held" else "pace"
    return f"{discount}; dialogues that ended are continued at their {pace} to the length of their {longest}"


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
