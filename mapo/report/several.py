"""Several runs: learning curves by method with intervals over seeds, what sets them apart, one table.

A grid of `mapo ablate` is analysed as `mapo ablate` does (`evals/ablation.py`); other runs are laid over each
other, and their scores compared case by case (`evals/compare.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mapo.errors import InputError
from mapo.evals.ablation import Cell, Run, analyse
from mapo.evals.compare import Comparison, compared, read_run
from mapo.evals.compare_tables import METHOD, chance, ends, figure, legend
from mapo.evals.figures import draw_curves, draw_ends, markdown
from mapo.report import draw, numbers
from mapo.report.blocks import (
    Block,
    Heading,
    Lines,
    Panel,
    Picture,
    Report,
    Table,
    Words,
    clean,
    number,
    told,
)
from mapo.report.credit import by_turn, by_turn_pictures, gamma_of
from mapo.report.markdown import blocks_of
from mapo.report.read import Training, read_object, read_training
from mapo.report.training import problem_list

SHOWN = 12
"""Methods or runs that are drawn."""


# ---- training runs laid over each other


def training_blocks(runs: Sequence[Training]) -> list[Block]:
    """Curves, gradients and a table of training runs."""
    groups = grouped(runs)
    seeds = any(len(own) > 1 for own in groups.values())
    over = (
        "Bands: 95 % intervals over seeds (Student's t)."
        if seeds
        else "One run each: no interval over seeds."
    )
    return [
        Heading("Training runs"),
        Table(
            [
                "run",
                "method",
                "reward",
                "model",
                "seed",
                "dialogues",
                "before",
                "after",
                "gain",
                "passed",
                "gradient norm",
            ],
            [_row(run) for run in runs],
            "Before and after: EPM-Q of the held-out test. Gradient norm: mean over steps.",
            left=4,
        ),
        *_curves(groups, over),
        *_turns(groups),
    ]


def grouped(runs: Sequence[Training]) -> dict[str, list[Training]]:
    """Runs that differ in the seed alone are one line; the name says what tells the lines apart."""
    shown = runs[:200]
    parts = {id(run): [run.method, run.reward, run.model] for run in shown}
    differ = [len({p[i] for p in parts.values()}) > 1 for i in range(3)]
    found: dict[str, list[Training]] = {}
    for run in shown:
        telling = [p for p, d in zip(parts[id(run)], differ, strict=True) if d and p] or [run.method]
        found.setdefault(", ".join(telling), []).append(run)
    for label, own in list(found.items()):
        if len({run.seed for run in own}) < len(own):  # the same seed twice: they differ in something else
            del found[label]
            found |= {f"{label}: {run.name}": [run] for run in own}
    return dict(list(found.items())[:SHOWN])


def _curves(groups: Mapping[str, Sequence[Training]], over: str) -> list[Block]:
    def lines(*keys: str) -> dict[str, list[numbers.Point]]:
        found = {
            label: numbers.mean_over_runs([numbers.by_dialogues(run.steps, *keys) for run in own])
            for label, own in groups.items()
        }
        return {label: line for label, line in found.items() if line}

    score, held, reward, norm = (
        lines("score"),
        lines("validation", "epm_q"),
        lines("reward"),
        lines("grad_norm"),
    )
    panels = []
    if score:
        dots = {label: line for label, line in held.items() if label in score}
        panels.append(
            Panel("EPM-Q", draw.curves(score, "EPM-Q (0 to 100)", "training dialogues", points=dots))
        )
    if reward:
        panels.append(Panel("Reward of a turn", draw.curves(reward, "mean reward", "training dialogues")))
    blocks: list[Block] = []
    if panels:
        caption = f"By the number of dialogues played. Dots: validation scenarios. {over}"
        blocks += [Heading("Learning curves"), Picture("fig_learning_curves", caption, panels)]
    if norm:
        panel = Panel("Gradient norm", draw.curves(norm, "norm, before clipping", "training dialogues"))
        blocks.append(Picture("fig_gradient_norms", f"Mean over the updates of a step. {over}", [panel]))
    return blocks


def _turns(groups: Mapping[str, Sequence[Training]]) -> list[Block]:
    """Reward and return by turn in the last third of training, a panel a line of the curves."""
    parts = []
    for label, own in list(groups.items())[:6]:
        run = own[0]
        _, last = numbers.thirds(sorted(run.played))
        parts.append(by_turn(run, last, f"{label}, seed {run.seed}" if len(own) > 1 else label))
    found = by_turn_pictures(
        [part for part in parts if part.rewards], gamma_of(next(iter(groups.values()))[0])
    )
    return [Heading("Reward and return by turn, late in training"), *found] if found else []


def _row(run: Training) -> list[str]:
    scores = []
    for when in ("before", "after"):
        told_of = run.summary.get(when)
        scores.append(number(told_of.get("epm_q")) if isinstance(told_of, dict) else None)
    before, after = scores
    gain = None if before is None or after is None else after - before
    last = run.summary.get("after")
    passed = (
        f"{told(last.get('passes'), '.0f')} of {told(last.get('n'), '.0f')}"
        if isinstance(last, dict)
        else "–"
    )
    norms = [p.y for p in numbers.series(run.steps, "grad_norm")]
    dialogues = sum(number(line.get("dialogues")) or 0 for line in run.steps)
    return [
        *(run.name, run.method, run.reward, run.model, run.seed, told(dialogues, ",.0f")),
        *(told(before), told(after), told(gain, "+.1f"), passed),
        told(sum(norms) / len(norms) if norms else None, ".3f"),
    ]


# ---- scores compared


def comparison_blocks(given: Sequence[str]) -> list[Block]:
    """Everything `mapo compare` would say of these runs; what cannot be compared is said."""
    entries, problems = [], []
    for one in given:
        try:
            entries += read_run(one)
        except InputError as error:
            problems.append(str(error))
    try:
        found = compared(entries) if entries else None
    except InputError as error:
        found = None
        problems.append(str(error))
    blocks = [] if found is None else _comparison(found)
    if problems:
        blocks += [Words("Not compared:"), Lines(problems)]
    return [Heading("Scores side by side"), *blocks] if blocks else []


def _comparison(found: Comparison) -> list[Block]:
    rows = []
    for model in found.models:
        cells = []
        for column in found.columns:
            entry = found.cells.get((model, column.label))
            interval = ends(entry.interval) if entry else ""
            cells.append(f"{figure(entry, column)} ({interval})" if interval else figure(entry, column))
        rows.append([model, *cells])
    blocks: list[Block] = [Table(["model", *(c.label for c in found.columns)], rows)]
    blocks += _score_picture(found)
    if found.differences:
        head = ["model", "score", "difference", "95 % interval", "p", "p (Holm)", "cases"]
        told_of = [
            [
                d.model,
                d.column,
                f"{d.mean:+.2f}",
                ends(d.interval, "+.1f"),
                chance(d.p),
                chance(d.p_holm),
                str(d.n),
            ]
            for d in found.differences
        ]
        blocks.append(
            Table(head, told_of, f"Differences from {clean(found.models[0])}, case by case. {METHOD}", left=2)
        )
    return [*blocks, Lines([*legend(found), *found.notes])]


def _score_picture(found: Comparison) -> list[Block]:
    models = found.models[:SHOWN]
    rows: list[tuple[str, list[numbers.Point | None]]] = []
    for column in found.columns[:8]:
        entries = [found.cells.get((model, column.label)) for model in models]
        points = [
            None
            if e is None or e.value is None
            else numbers.Point(0.0, e.value, *(e.interval or (None, None)))
            for e in entries
        ]
        rows.append((column.label, points))
    if not any(p for _, points in rows for p in points):
        return []
    panel = Panel(
        "Scores", draw.bars(rows, models, "points of 100"), left=1.2, above=0.2 + 0.2 * -(-len(models) // 2)
    )
    return [Picture("fig_scores", "Scores with 95 % bootstrap intervals over cases.", [panel])]


# ---- a grid of mapo ablate


def ablation_report(root: Path, name: str | None = None) -> Report:
    """The finished runs of a grid, as `mapo ablate` reports them."""
    problems: list[str] = []
    manifest = read_object(root / "manifest.json", problems)
    folders = _cells(manifest, problems)
    finished = [folder for folder in folders if (root / folder / "summary.json").exists()]
    trained = [read_training(root / folder, folder, budget=0) for folder in finished]
    problems += [line for run in trained for line in run.problems]
    runs = [run for one in trained if (run := grid_run(one, problems)) is not None]
    title = f"Ablation: {name or root.resolve().name}"
    if not runs:
        return Report(
            title,
            str(root),
            [Words("This ablation is empty: not one run is finished."), *problem_list(problems)],
        )
    found = analyse(runs, wanted=len(folders))
    rewards = list(dict.fromkeys(c["reward"] for c in found["curves"]))
    methods = list(dict.fromkeys(c["method"] for c in found["curves"]))
    panels = [Panel(f"Reward {r}: learning", partial(_learning, found, r, methods)) for r in rewards]
    panels += [Panel(f"Reward {r}: held-out test", partial(_tests, found, r, methods)) for r in rewards]
    caption = "EPM-Q by training dialogues (points: validation), and of the held-out test; 95 % over seeds."
    picture = Picture("fig_learning_curves", caption, panels, columns=len(rewards))
    told_in_full = list(blocks_of(markdown(found).partition("\n\n")[2]))
    norms = [
        block
        for block in _curves(grouped(trained), "")
        if isinstance(block, Picture) and block.name == "fig_gradient_norms"
    ]
    blocks = [*told_in_full[:1], picture, *norms, *told_in_full[1:], *problem_list(problems)]
    return Report(title, f"{len(runs)} of {len(folders)} runs; {', '.join(methods)}.", blocks)


def _learning(found: dict[str, Any], reward: str, methods: Sequence[str], axes: Any) -> None:
    draw_curves(axes, found, reward, methods)
    axes.set_title("")
    axes.set_ylabel("EPM-Q (0 to 100)")
    axes.legend()


def _tests(found: dict[str, Any], reward: str, methods: Sequence[str], axes: Any) -> None:
    draw_ends(axes, found, reward, methods)
    axes.set_ylabel("EPM-Q (0 to 100)")


def _cells(manifest: Mapping[str, Any], problems: list[str]) -> list[str]:
    """Folders of a grid's runs."""
    try:
        grid = [
            (m, r, s) for s in manifest["seeds"] for r in manifest["rewards"] for m in manifest["methods"]
        ]
        names = [Cell(str(m), str(r), int(s)).name for m, r, s in grid]
    except (KeyError, TypeError, ValueError) as error:
        problems.append(f"manifest.json: no grid of an ablation ({error!r})")
        return []
    return [name for name in names if "/" not in name and name not in (".", "..")][:2000]


def grid_run(run: Training, problems: list[str]) -> Run | None:
    """A run as the analysis takes it: numbers where numbers belong, or nothing."""
    s = run.summary
    dialogues = number(s.get("dialogues"))
    if (
        not isinstance(s.get("method"), str)
        or not isinstance(s.get("reward"), str)
        or type(s.get("seed")) is not int
        or dialogues is None
    ):
        problems.append(f"{run.root}: its summary is no summary of a run")
        return None
    summary = {
        **s,
        "dialogues": int(dialogues),
        "before": _tame(s.get("before")),
        "after": _tame(s.get("after")),
    }
    steps = []
    for line in run.steps:
        held = _tame(line.get("validation"))
        known = {key: number(line.get(key)) for key in ("dialogues", "score", "grad_norm")}
        if known["dialogues"] is not None:
            steps.append({"step": line["step"], **known, **({"validation": held} if held else {})})
    jobs = {(r.case, r.id): numbers.quality(r) for r in numbers.recomputed(run.after, run.root, problems)}
    return Run(Cell(s["method"], s["reward"], s["seed"]), summary, steps, jobs)


def _tame(score: object) -> dict[str, float] | None:
    found = (
        {key: number(score.get(key)) for key in ("epm_q", "passes", "n")} if isinstance(score, dict) else {}
    )
    return {k: v for k, v in found.items() if v is not None} if found and None not in found.values() else None
