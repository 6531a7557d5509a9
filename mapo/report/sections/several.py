"""Several training runs overlaid: learning curves with intervals over seeds, gradient norms, late rewards by
turn, trajectories of the test dialogues, one table.

Runs that differ only in the seed form one line. For the grids of `mapo ablate` see `grid.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mapo.report.document import numbers, plots
from mapo.report.document.blocks import Block, Heading, format_number
from mapo.report.sections.credit import about_returns, by_turn, by_turn_pictures
from mapo.report.sections.trajectories import DialogueSet, trajectories
from mapo.runs.claim import digest
from mapo.runs.contents import number
from mapo.runs.training import TrainingRun
from mapo.show.figures import Look, Panel, Picture, looks_of
from mapo.show.tables import Table

SHOWN = 12
"""Maximum lines drawn."""
RUNS = 200
"""Maximum runs read."""

Groups = Mapping[str, Sequence[TrainingRun]]
"""Label of a line -> its runs, one per seed."""

_COLUMNS = (
    *("run", "method", "reward", "model", "seed", "dialogues"),
    *("before", "after", "gain", "passes", "gradient norm"),
)


def training_blocks(runs: Sequence[TrainingRun], problems: list[str]) -> list[Block]:
    """Return the table, learning curves and further figures of training runs."""
    groups = grouped(runs)
    seeds = any(len(runs_of_group) > 1 for runs_of_group in groups.values())
    over = (
        "Bands: 95 % intervals over seeds (Student's t)."
        if seeds
        else "One run per line, so no intervals over seeds."
    )
    about = "Before and after: EPM-Q of the held-out test. Gradient norm: mean over steps."
    return [
        Heading("Training runs"),
        Table(_COLUMNS, [_row(run) for run in runs[:RUNS]], note=about, left=4),
        *_curves(groups, over),
        *gradient_norms(groups, over),
        *late_turns(groups),
        *late_trajectories(groups, problems),
    ]


def grouped(
    runs: Sequence[TrainingRun], *, by_name: bool = True, labels: Mapping[str, str] | None = None
) -> dict[str, list[TrainingRun]]:
    """Group runs that differ only in the seed, labelled by what distinguishes them from the other groups.

    With `by_name`, a group of one run is labelled with the run's name, as in the tables. `labels` (by run
    name) name the groups of a grid instead.
    """
    if labels is not None:
        named: dict[str, list[TrainingRun]] = {}
        for run in runs[:RUNS]:
            named.setdefault(labels[run.name], []).append(run)
        with_seeds = {
            f"{label} ({len(group)} seeds)" if len(group) > 1 else label: group
            for label, group in named.items()
        }
        return dict(list(with_seeds.items())[:SHOWN])
    kinds: dict[tuple[str, ...], list[TrainingRun]] = {}
    for run in runs[:RUNS]:
        kinds.setdefault((run.method, run.reward, run.model, _settings(run)), []).append(run)
    differ = [len({kind[i] for kind in kinds}) > 1 for i in range(3)]
    found: dict[str, list[TrainingRun]] = {}
    for kind, runs_of_group in kinds.items():
        distinguishing = [part for part, d in zip(kind[:3], differ, strict=True) if d and part] or [kind[0]]
        label = ", ".join(distinguishing) + (
            f" ({len(runs_of_group)} seeds)" if len(runs_of_group) > 1 else ""
        )
        alone = by_name and len(runs_of_group) == 1
        if alone or label in found or len({run.seed for run in runs_of_group}) < len(runs_of_group):
            found |= {
                run.name: [run] for run in runs_of_group
            }  # a single run, an ambiguous label, or a repeated seed
        else:
            found[label] = runs_of_group
    return dict(list(found.items())[:SHOWN])


def _settings(run: TrainingRun) -> str:
    """Return a hash of the settings without the `run` section (seed, processes and the like)."""
    if run.config is None:
        return ""
    data = run.config.model_dump(mode="json")
    data.pop("run")
    return digest(data)


def _lines(groups: Groups, *keys: str) -> dict[str, list[numbers.Point]]:
    """Return each group's mean by number of dialogues, with intervals; empty lines are left out."""
    found = {
        label: numbers.mean_over_runs([numbers.by_dialogues(run.steps, *keys) for run in runs_of_group])
        for label, runs_of_group in groups.items()
    }
    return {label: line for label, line in found.items() if line}


def _looks(groups: Groups) -> dict[str, Look]:
    """Return the look of each line, the same in every figure of the report."""
    return dict(
        zip(groups, looks_of([runs_of_group[0].method for runs_of_group in groups.values()]), strict=True)
    )


def _curves(groups: Groups, over: str) -> list[Block]:
    score, validation, reward = (
        _lines(groups, *k) for k in (("score",), ("validation", "epm_q"), ("reward",))
    )
    across, looks, panels = "training dialogues", _looks(groups), []
    if score:
        dots = {label: line for label, line in validation.items() if label in score}
        worlds = {run.world for runs_of_group in groups.values() for run in runs_of_group}
        references = plots.references_of(worlds.pop() if len(worlds) == 1 else None)
        draw = plots.curves(score, "EPM-Q (points)", across, points=dots, looks=looks, references=references)
        panels.append(Panel("EPM-Q", draw))
    if reward:
        panels.append(Panel("Reward per turn", plots.curves(reward, "mean reward", across, looks=looks)))
    if not panels:
        return []
    caption = f"By number of training dialogues. Dots: validation scenarios. {over}"
    return [Heading("Learning curves"), Picture("fig_learning_curves", caption, panels)]


def gradient_norms(groups: Groups, over: str) -> list[Block]:
    norms = _lines(groups, "grad_norm")
    if not norms:
        return []
    draw = plots.curves(norms, "norm, before clipping", "training dialogues", looks=_looks(groups))
    panel = Panel("Gradient norm", draw)
    return [Picture("fig_gradient_norms", f"Mean over the updates of a step. {over}", [panel])]


def late_turns(groups: Groups) -> list[Block]:
    """Show reward and return by turn in the last third of training, one panel per group."""
    parts, looks = [], []
    for (label, runs_of_group), look in list(zip(groups.items(), _looks(groups).values(), strict=True))[:6]:
        run = runs_of_group[0]
        _, last = numbers.thirds(sorted(run.played))
        part = by_turn(run, last, f"{label}, seed {run.seed}" if len(runs_of_group) > 1 else label)
        if part.rewards:
            parts.append(part)
            looks.append(look)
    about = {text for runs_of_group in groups.values() if (text := about_returns(runs_of_group[0]))}
    discount = about.pop() if len(about) == 1 else "discount and endings as configured per run"
    found = by_turn_pictures(parts, discount, looks)
    return [Heading("Reward and return by turn, late in training"), *found] if found else []


def late_trajectories(groups: Groups, problems: list[str]) -> list[Block]:
    """Show the test dialogues after training of the first run of each group."""
    return trajectories(
        [
            DialogueSet(
                label, numbers.recomputed(runs_of_group[0].after, runs_of_group[0].root, problems), look
            )
            for (label, runs_of_group), look in list(
                zip(groups.items(), _looks(groups).values(), strict=True)
            )[:4]
        ]
    )


def _row(run: TrainingRun) -> list[str]:
    before, after = (_short(run.summary.get(when)) for when in ("before", "after"))
    gain = None if before[0] is None or after[0] is None else after[0] - before[0]
    norms = [p.y for p in numbers.series(run.steps, "grad_norm")]
    dialogues = sum(number(line.get("dialogues")) or 0 for line in run.steps)
    return [
        *(run.name, run.method, run.reward, run.model, run.seed, format_number(dialogues, ",.0f")),
        *(format_number(before[0]), format_number(after[0]), format_number(gain, "+.1f"), after[1]),
        format_number(sum(norms) / len(norms) if norms else None, ".3f"),
    ]


def _short(score: object) -> tuple[float | None, str]:
    """Return EPM-Q and passes of a score in summary.json."""
    if not isinstance(score, dict):
        return None, "–"
    return number(
        score.get("epm_q")
    ), f"{format_number(score.get('passes'), '.0f')} of {format_number(score.get('n'), '.0f')}"
