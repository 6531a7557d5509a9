"""Reports: one self-contained HTML file about a training run, an evaluation, an ablation, made
scenarios, a trained role, or several runs.

    sections/    numbers -> blocks: held-out test, learning, credit, trajectories, comparison
    document/    numbers, blocks and plots, and how they become HTML (templates/) and Markdown
    training.py results.py several.py grid.py made.py role.py     the reports: a training run, an evaluation,
                                           several runs, an ablation, made scenarios, a trained role

A report contains no scripts and loads nothing. Text written by models is escaped and truncated.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mapo.evals.compare.comparison import split_name
from mapo.report.document.blocks import Report
from mapo.report.document.markdown import markdown_page
from mapo.report.document.numbers import dialogue_score, end_distance, example_pairs, typical_pair
from mapo.report.document.page import html_page
from mapo.report.grid import ablation_report
from mapo.report.made import made_report
from mapo.report.results import bench_report, empa_report
from mapo.report.role import role_report
from mapo.report.sections.held_out import held_out_difference
from mapo.report.several import reportable, several_report
from mapo.report.training import training_report
from mapo.runs.kind import Kind
from mapo.runs.training import read_training
from mapo.show.figures import Picture, can_draw, save_picture
from mapo.store import RunDir, write_atomic

__all__ = [
    "build",
    "dialogue_score",
    "end_distance",
    "example_pairs",
    "held_out_difference",
    "typical_pair",
    "write",
    "write_report",
]


def write_report(root: Path) -> Path:
    """Write report.html of the training run in `root` and return its path."""
    path = RunDir(root).report
    write_atomic(path, html_page(build([str(root)])))
    return path


def write(report: Report, out: Path, *, markdown: bool = False, figures: Path | None = None) -> list[Path]:
    """Write the report to `out` as HTML and return the paths of all files written.

    `markdown` adds a .md file next to it, with its figures as PNG in OUT_figures. `figures` is a folder that
    receives every figure as PNG, PDF and SVG.
    """
    pictures = [block for block in report.blocks if isinstance(block, Picture)]
    paths = [out]
    write_atomic(out, html_page(report))
    beside = out.with_name(f"{out.stem}_figures") if markdown and can_draw() else None
    if markdown:
        paths.append(out.with_suffix(".md"))
        write_atomic(paths[-1], markdown_page(report, beside.name if beside else ""))
    for picture in pictures:
        rendered = save_picture(picture, figures) if figures else []
        paths += rendered
        if beside and rendered:  # already rendered
            paths.append(beside / rendered[0].name)
            write_atomic(paths[-1], rendered[0].read_bytes())
        elif beside:
            paths += save_picture(picture, beside, ("png",))
    return paths


def build(runs: Sequence[str]) -> Report:
    """Build the report of one or several runs, each given as FOLDER or MAX_NAME=FOLDER."""
    if len(runs) > 1:
        return several_report(runs)
    name, root = split_name(runs[0])
    return _single_report(root, name)


def _single_report(root: Path, name: str | None) -> Report:
    kind = reportable(root)
    if kind is Kind.TRAINING:
        return training_report(read_training(root, name or ""))
    if kind is Kind.MADE_SCENARIOS:
        return made_report(root, name)
    if kind is Kind.ABLATION:
        return ablation_report(root, name)
    if kind is Kind.ROLE:
        return role_report(root)
    return bench_report(root, name) if kind.has_result else empa_report(root, name)
