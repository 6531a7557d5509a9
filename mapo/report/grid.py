"""The report of an ablation: the analysis of `evals/ablation` with figures for an HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from mapo.advantage import METHODS
from mapo.evals.ablation.analysis import GridRun, analyse
from mapo.evals.ablation.cells import METHOD, REWARD, GridCell, iter_cells, label_of
from mapo.evals.ablation.report import CLAIMS, claims, picture, summary, tables
from mapo.measure.reward import RANK, REWARDS
from mapo.report.document import numbers
from mapo.report.document.blocks import Block, BulletList, Heading, Paragraph, Report
from mapo.report.sections.several import gradient_norms, grouped, late_trajectories, late_turns
from mapo.report.training import problem_list
from mapo.runs.contamination import notice_of
from mapo.runs.contents import number
from mapo.runs.training import TrainingRun, read_object, read_training
from mapo.scoring.context import context_of_dialogues
from mapo.scoring.reference import reference_text
from mapo.scripted.world import World, world_notice
from mapo.store import RunDir

RUNS = 2000
"""Maximum number of runs in a grid."""
GRADIENT = ("grad_norm", "grad_norm_max")
BUDGET = 3_000_000
"""Bytes of training dialogues read from the first run of each combination; none from the others."""


def ablation_report(root: Path, name: str | None = None) -> Report:
    """Build the report of the finished runs of a grid."""
    problems: list[str] = []
    manifest = read_object(RunDir(root).manifest, problems)
    cells = _cells(manifest, problems)
    finished = [cell for cell in cells if RunDir(root / cell.name).summary.exists()]
    first = {cell.settings: cell for cell in reversed(finished)}
    trained = [
        read_training(root / cell.name, cell.name, budget=BUDGET if cell == first[cell.settings] else 0)
        for cell in finished
    ]
    problems += [line for run in trained for line in run.problems]
    read = zip(trained, finished, strict=True)
    runs = [run for one, cell in read if (run := grid_run(one, cell, problems)) is not None]
    title = f"Ablation: {name or root.resolve().name}"
    if not runs:
        return Report(
            title,
            str(root),
            [Paragraph("This ablation is empty: no run has finished."), *problem_list(problems)],
        )
    found = analyse(runs, wanted=len(cells))
    varied = "; ".join(
        ", ".join(v if axis["label"] == "method" else f"{axis['label']} {v}" for v in axis["values"])
        for axis in found["axes"]
        if axis["label"] != "reward"
    )
    groups = grouped(trained, by_name=False, labels=_labels(finished))
    blocks: list[Block] = [
        Paragraph(summary(found)),
        picture(found, "fig_learning_curves"),
        *gradient_norms(groups, "Bands: 95 % intervals over seeds."),
        *(Paragraph(f"Note: {note}.") for note in found["notes"]),
        Heading(CLAIMS),
        BulletList(claims(found)),
        *tables(found),
        *late_turns(groups),
        *late_trajectories(groups, problems),
        *problem_list(problems),
    ]
    lead = f"{len(runs)} of {len(cells)} runs; {varied}."
    worlds = [run.world for run in trained if run.world]
    notices = dict.fromkeys(notice_of(run.manifest) for run in trained)
    return Report(title, lead, blocks, caution=" ".join(filter(None, [_caution(worlds), *notices])))


def _caution(worlds: list[World]) -> str:
    """Return the notice about test worlds and their reference scores; empty if there are none."""
    return " ".join([world_notice(worlds), *map(reference_text, dict.fromkeys(worlds))]) if worlds else ""


def _cells(manifest: Mapping[str, Any], problems: list[str]) -> list[GridCell]:
    """Return the runs of the grid; of very large grids the first."""
    try:
        return list(islice(iter_cells(manifest), RUNS))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        problems.append(f"{RunDir.manifest.name}: not the manifest of an ablation grid ({error!r})")
        return []


def _labels(cells: Sequence[GridCell]) -> dict[str, str]:
    """Return the name of each run's line in figures: the settings that differ between the runs."""
    shown = {cell.name: cell.shown for cell in cells}
    varied = [key for key in (cells[0].shown if cells else ()) if len({s[key] for s in shown.values()}) > 1]
    keys = varied or list(cells[0].shown if cells else ())[:1]
    return {
        name: ", ".join(s[k] if k in (METHOD, REWARD) else f"{label_of(k)} {s[k]}" for k in keys)
        or "all runs"
        for name, s in shown.items()
    }


def grid_run(run: TrainingRun, cell: GridCell, problems: list[str]) -> GridRun | None:
    """Return a run as input for the analysis, or None if its summary is invalid."""
    s = run.summary
    dialogues = number(s.get("dialogues"))
    known = s.get("method") in METHODS and s.get("reward") in (*REWARDS, RANK) and type(s.get("seed")) is int
    if not known or dialogues is None:
        problems.append(f"{run.root}: summary.json is not a valid summary of a training run")
        return None
    shown = {METHOD: s["method"], REWARD: s["reward"], **cell.shown}
    if (shown[METHOD], shown[REWARD], cell.seed) != (s["method"], s["reward"], s["seed"]):
        problems.append(f"{run.root}: summary.json belongs to another run of the grid")
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
        found = {key: number(line[key]) for key in ("dialogues", "score", *GRADIENT) if key in line}
        found.setdefault("dialogues", None)
        if found["dialogues"] is not None:
            steps.append({"step": line["step"], **found, **({"validation": held} if held else {})})
    jobs = {(r.case, r.id): numbers.quality(r) for r in numbers.recomputed(run.after, run.root, problems)}
    context = context_of_dialogues(run.after) if run.after else None
    judge = next((d.cast.get("judge") for step in run.played.values() for d in step), "")
    return GridRun(cell, summary, steps, jobs, context, judge or "")


def _tame(score: object) -> dict[str, float] | None:
    found = (
        {key: number(score.get(key)) for key in ("epm_q", "passes", "n")} if isinstance(score, dict) else {}
    )
    return {k: v for k, v in found.items() if v is not None} if found and None not in found.values() else None
