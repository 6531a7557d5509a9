"""Run directories -> one HTML file to send: a training, an evaluation, several of them, an ablation.

    sections/    numbers -> blocks: held-out test, learning, credit, trajectories, comparison
    document/    numbers, blocks and plots, and how they become HTML (templates/) and Markdown
    training.py results.py together.py grid.py     the reports: a training run, an evaluation, several runs,
                                                   an ablation

The file is self-contained: no script, nothing is fetched. What models wrote is escaped and cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mapo.evals.compare.comparison import named
from mapo.report.document.blocks import Report
from mapo.report.document.markdown import markdown_page
from mapo.report.document.numbers import typical_pair
from mapo.report.document.page import html_page
from mapo.report.grid import ablation_report
from mapo.report.results import bench_report, empa_report
from mapo.report.sections.held_out import held_out_difference
from mapo.report.together import reportable, several_report
from mapo.report.training import training_report
from mapo.runs.kind import Kind
from mapo.runs.training import read_training
from mapo.show.figures import Picture, can_draw, save_picture
from mapo.store import RunDir, write_atomic

__all__ = ["build", "held_out_difference", "typical_pair", "write", "write_report"]


def write_report(root: Path) -> Path:
    """report.html of a training run; returns its path."""
    path = RunDir(root).report
    write_atomic(path, html_page(build([str(root)])))
    return path


def write(report: Report, out: Path, *, markdown: bool = False, figures: Path | None = None) -> list[Path]:
    """OUT (HTML); with `markdown` also a .md beside it and its figures as PNG in OUT_figures; with `figures`
    every figure there as PNG, PDF and SVG."""
    pictures = [block for block in report.blocks if isinstance(block, Picture)]
    paths = [out]
    write_atomic(out, html_page(report))
    beside = out.with_name(f"{out.stem}_figures") if markdown and can_draw() else None
    if markdown:
        paths.append(out.with_suffix(".md"))
        write_atomic(paths[-1], markdown_page(report, beside.name if beside else ""))
    for picture in pictures:
        made = save_picture(picture, figures) if figures else []
        paths += made
        if beside and made:  # drawn already
            paths.append(beside / made[0].name)
            write_atomic(paths[-1], made[0].read_bytes())
        elif beside:
            paths += save_picture(picture, beside, ("png",))
    return paths


def build(runs: Sequence[str]) -> Report:
    """The report of a run, or of several. A run is a folder, or NAME=FOLDER."""
    if len(runs) > 1:
        return several_report(runs)
    name, root = named(runs[0])
    return _one(root, name)


def _one(root: Path, name: str | None) -> Report:
    kind = reportable(root)
    if kind is Kind.TRAINING:
        return training_report(read_training(root, name or ""))
    if kind is Kind.ABLATION:
        return ablation_report(root, name)
    return bench_report(root, name) if kind.has_result else empa_report(root, name)
