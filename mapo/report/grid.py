"""The report of an ablation: the analysis of `evals/ablation` with figures for an HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice, product
from pathlib import Path
from typing import Any

from mapo.advantage import METHODS
from mapo.evals.ablation.analysis import GridCell, GridRun, analyse
from mapo.evals.ablation.report import CLAIMS, claims, picture, summary, tables
from mapo.measure.reward import REWARDS
from mapo.report.document import numbers
from mapo.report.document.blocks import Block, BulletList, Heading, Paragraph, Report
from mapo.report.sections.several import gradient_norms, grouped, late_trajectories, late_turns
from mapo.report.training import problem_list
from mapo.runs.contents import number
from mapo.runs.training import TrainingRun, read_object, read_training
from mapo.scoring.context import context_of_dialogues
from mapo.scoring.reference import reference_text
from mapo.scripted.notice import scripted_world
from mapo.store import RunDir

RUNS = 2000
"""Maximum number of runs in a grid."""
BUDGET = 3_000_000
"""Bytes of training dialogues read from the first run of each method and reward; none from the others."""


def ablation_report(root: Path, name: str | None = None) -> Report:
    """Build the report of the finished runs of a grid."""
    problems: list[str] = []
    manifest = read_object(RunDir(root).manifest, problems)
    folders = _cells(manifest, problems)
    finished = [folder for folder in folders if RunDir(root / folder).summary.exists()]
    first = {folder.rpartition("_seed")[0]: folder for folder in reversed(finished)}
    trained = [
        read_training(root / folder, folder, budget=BUDGET if folder in first.values() else 0)
        for folder in finished
    ]
    problems += [line for run in trained for line in run.problems]
    runs = [run for one in trained if (run := grid_run(one, problems)) is not None]
    title = f"Ablation: {name or root.resolve().name}"
    if not runs:
        return Report(
            title,
            str(root),
            [Paragraph("This ablation is empty: no run has finished."), *problem_list(problems)],
        )
    found = analyse(runs, wanted=len(folders))
    methods = list(dict.fromkeys(c["method"] for c in found["curves"]))
    groups = grouped(trained, by_name=False)
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
    lead = f"{len(runs)} of {len(folders)} runs; {', '.join(methods)}."
    scripted = [run.scripted for run in trained if run.scripted]
    return Report(title, lead, blocks, caution=_caution(scripted))


def _caution(domains: list[str]) -> str:
    """Return the notice about the scripted world and its reference scores; empty for other worlds."""
    references = [reference_text(domain) for domain in dict.fromkeys(domains)]
    return " ".join([scripted_world(domains), *references]) if domains else ""


def _cells(manifest: Mapping[str, Any], problems: list[str]) -> list[str]:
    """Return the folder names of the grid's runs."""
    try:
        grid = islice(product(manifest["seeds"], manifest["rewards"], manifest["methods"]), RUNS)
        names = [GridCell(str(m), str(r), int(s)).name for s, r, m in grid]
    except (KeyError, TypeError, ValueError) as error:
        problems.append(f"{RunDir.manifest.name}: not the manifest of an ablation grid ({error!r})")
        return []
    return [name for name in names if "/" not in name]


def grid_run(run: TrainingRun, problems: list[str]) -> GridRun | None:
    """Return a run as input for the analysis, or None if its summary is invalid."""
    s = run.summary
    dialogues = number(s.get("dialogues"))
    known = s.get("method") in METHODS and s.get("reward") in tuple(REWARDS) and type(s.get("seed")) is int
    if not known or dialogues is None:
        problems.append(f"{run.root}: summary.json is not a valid summary of a training run")
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
        found = {key: number(line.get(key)) for key in ("dialogues", "score", "grad_norm")}
        if found["dialogues"] is not None:
            steps.append({"step": line["step"], **found, **({"validation": held} if held else {})})
    jobs = {(r.case, r.id): numbers.quality(r) for r in numbers.recomputed(run.after, run.root, problems)}
    context = context_of_dialogues(run.after) if run.after else None
    return GridRun(GridCell(s["method"], s["reward"], s["seed"]), summary, steps, jobs, context)


def _tame(score: object) -> dict[str, float] | None:
    found = (
        {key: number(score.get(key)) for key in ("epm_q", "passes", "n")} if isinstance(score, dict) else {}
    )
    return {k: v for k, v in found.items() if v is not None} if found and None not in found.values() else None
