"""Several training runs laid over each other: learning curves by method with intervals over seeds, gradient
norms, what late turns earned, the ways of the test dialogues, one table.

Runs that differ in the seed alone are one line. Grids of `mapo ablate`: `grid.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mapo.report.document import numbers, plots
from mapo.report.document.blocks import Block, Heading, told
from mapo.report.sections.credit import by_turn, by_turn_pictures, gamma_of
from mapo.report.sections.paths import Walkers, trajectories
from mapo.runs.claim import digest
from mapo.runs.contents import number
from mapo.runs.training import Training
from mapo.show.figures import Look, Panel, Picture, looks_of
from mapo.show.tables import Table

SHOWN = 12
"""Lines that are drawn."""
RUNS = 200
"""Runs that are looked at."""

Groups = Mapping[str, Sequence[Training]]
"""A line's name -> its runs, one a seed."""

_HEAD = (
    *("run", "method", "reward", "model", "seed", "dialogues"),
    *("before", "after", "gain", "passed", "gradient norm"),
)


def training_blocks(runs: Sequence[Training], problems: list[str]) -> list[Block]:
    """Curves, gradients and a table of training runs."""
    groups = grouped(runs)
    seeds = any(len(own) > 1 for own in groups.values())
    over = "Bands: 95 % over seeds (Student's t)." if seeds else "One run each: no interval over seeds."
    about = "Before and after: EPM-Q of the held-out test. Gradient norm: mean over steps."
    return [
        Heading("Training runs"),
        Table(_HEAD, [_row(run) for run in runs[:RUNS]], note=about, left=4),
        *_curves(groups, over),
        *gradient_norms(groups, over),
        *late_turns(groups),
        *late_ways(groups, problems),
    ]


def grouped(runs: Sequence[Training], *, by_name: bool = True) -> dict[str, list[Training]]:
    """The lines of the curves. Runs that differ in the seed alone are one, called by what tells them from the
    others; a run of its own is called by its name, as in every table, unless names say nothing (a grid's)."""
    kinds: dict[tuple[str, ...], list[Training]] = {}
    for run in runs[:RUNS]:
        kinds.setdefault((run.method, run.reward, run.model, _settings(run)), []).append(run)
    differ = [len({kind[i] for kind in kinds}) > 1 for i in range(3)]
    found: dict[str, list[Training]] = {}
    for kind, own in kinds.items():
        telling = [part for part, d in zip(kind[:3], differ, strict=True) if d and part] or [kind[0]]
        label = ", ".join(telling) + (f" ({len(own)} seeds)" if len(own) > 1 else "")
        alone = by_name and len(own) == 1
        if alone or label in found or len({run.seed for run in own}) < len(own):
            found |= {run.name: [run] for run in own}  # one alone, alike in name, or one seed twice
        else:
            found[label] = own
    return dict(list(found.items())[:SHOWN])


def _settings(run: Training) -> str:
    """A hash of what it was told, but for the seed and what does not change the course of a run."""
    if run.config is None:
        return ""
    data = run.config.model_dump(mode="json")
    data.pop("run")
    return digest(data)


def _lines(groups: Groups, *keys: str) -> dict[str, list[numbers.Point]]:
    """The mean over a group's runs by dialogues, with its interval; groups without it are left out."""
    found = {
        label: numbers.mean_over_runs([numbers.by_dialogues(run.steps, *keys) for run in own])
        for label, own in groups.items()
    }
    return {label: line for label, line in found.items() if line}


def _looks(groups: Groups) -> dict[str, Look]:
    """Return each line's look, the same in every figure of the report."""
    return dict(zip(groups, looks_of([own[0].method for own in groups.values()]), strict=True))


def _curves(groups: Groups, over: str) -> list[Block]:
    score, held, reward = (_lines(groups, *k) for k in (("score",), ("validation", "epm_q"), ("reward",)))
    across, looks, panels = "training dialogues", _looks(groups), []
    if score:
        dots = {label: line for label, line in held.items() if label in score}
        panels.append(Panel("EPM-Q", plots.curves(score, "EPM-Q (points)", across, points=dots, looks=looks)))
    if reward:
        panels.append(Panel("Reward of a turn", plots.curves(reward, "mean reward", across, looks=looks)))
    if not panels:
        return []
    caption = f"By the number of dialogues played. Dots: validation scenarios. {over}"
    return [Heading("Learning curves"), Picture("fig_learning_curves", caption, panels)]


def gradient_norms(groups: Groups, over: str) -> list[Block]:
    norms = _lines(groups, "grad_norm")
    if not norms:
        return []
    draw = plots.curves(norms, "norm, before clipping", "training dialogues", looks=_looks(groups))
    panel = Panel("Gradient norm", draw)
    return [Picture("fig_gradient_norms", f"Mean over the updates of a step. {over}", [panel])]


def late_turns(groups: Groups) -> list[Block]:
    """Reward and return by turn in the last third of training, a panel a line of the curves."""
    parts, looks = [], []
    for (label, own), look in list(zip(groups.items(), _looks(groups).values(), strict=True))[:6]:
        run = own[0]
        _, last = numbers.thirds(sorted(run.played))
        part = by_turn(run, last, f"{label}, seed {run.seed}" if len(own) > 1 else label)
        if part.rewards:
            parts.append(part)
            looks.append(look)
    discounts = {discount for own in groups.values() if (discount := gamma_of(own[0]))}
    discount = discounts.pop() if len(discounts) == 1 else "discounted as each run says"
    found = by_turn_pictures(parts, discount, looks)
    return [Heading("Reward and return by turn, late in training"), *found] if found else []


def late_ways(groups: Groups, problems: list[str]) -> list[Block]:
    """The test dialogues after training, of the first run of each line."""
    return trajectories(
        [
            Walkers(label, numbers.recomputed(own[0].after, own[0].root, problems), look)
            for (label, own), look in list(zip(groups.items(), _looks(groups).values(), strict=True))[:4]
        ]
    )


def _row(run: Training) -> list[str]:
    before, after = (_short(run.summary.get(when)) for when in ("before", "after"))
    gain = None if before[0] is None or after[0] is None else after[0] - before[0]
    norms = [p.y for p in numbers.series(run.steps, "grad_norm")]
    dialogues = sum(number(line.get("dialogues")) or 0 for line in run.steps)
    return [
        *(run.name, run.method, run.reward, run.model, run.seed, told(dialogues, ",.0f")),
        *(told(before[0]), told(after[0]), told(gain, "+.1f"), after[1]),
        told(sum(norms) / len(norms) if norms else None, ".3f"),
    ]


def _short(score: object) -> tuple[float | None, str]:
    """EPM-Q and passes of a summary's score."""
    if not isinstance(score, dict):
        return None, "–"
    return number(score.get("epm_q")), f"{told(score.get('passes'), '.0f')} of {told(score.get('n'), '.0f')}"
