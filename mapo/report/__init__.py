"""Run directories -> one HTML file to send: a training, an evaluation, several of them, an ablation.

    read.py                    what a run left on disk, with nothing taken on trust
    numbers.py                 the numbers that are drawn and told
    training.py learning.py credit.py paths.py     the sections of a training run
    results.py                 evaluations
    several.py side_by_side.py grid.py             several runs, their scores compared, grids of `mapo ablate`
    blocks.py                  what sections are made of; page.py and markdown.py render it
    plots.py draw.py           numbers onto axes, axes into pages and files

Self-contained: no script, no address is fetched. What models wrote is text, escaped and bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mapo.errors import InputError
from mapo.evals.compare import named
from mapo.reading.files import read_bytes
from mapo.report import draw
from mapo.report.blocks import Block, Picture, Report, clean
from mapo.report.grid import ablation_report
from mapo.report.markdown import markdown_page
from mapo.report.numbers import typical_pair
from mapo.report.page import html_page
from mapo.report.read import Training, read_object, read_training
from mapo.report.results import bench_report, empa_report, unfinished
from mapo.report.several import training_blocks
from mapo.report.side_by_side import comparison_blocks
from mapo.report.training import problem_list, training_report
from mapo.store import RunDir, write_atomic

__all__ = ["build", "kind_of", "typical_pair", "write", "write_report"]


def write_report(root: Path) -> Path:
    """report.html of a training run; returns its path."""
    path = RunDir(root).report
    write_atomic(path, html_page(build([str(root)])))
    return path


def write(report: Report, out: Path, *, markdown: bool = False, figures: Path | None = None) -> list[Path]:
    """OUT (HTML); with `markdown` also a .md beside it; with `figures` every figure as PNG, PDF and SVG."""
    pictures = [block for block in report.blocks if isinstance(block, Picture)]
    paths = [out]
    write_atomic(out, html_page(report))
    folder = figures or (out.with_name(f"{out.stem}_figures") if markdown and draw.can_draw() else None)
    if folder is not None:
        kinds = ("png", "pdf", "svg") if figures else ("png",)
        paths += [path for picture in pictures for path in draw.save(picture, folder, kinds)]
    if markdown:
        paths.insert(1, out.with_suffix(".md"))
        write_atomic(paths[1], markdown_page(report, _reference(folder, out)))
    return paths


def _reference(folder: Path | None, out: Path) -> str:
    """The figures' folder as a file beside OUT refers to it."""
    if folder is None:
        return ""
    here, there = out.resolve().parent, folder.resolve()
    return there.relative_to(here).as_posix() if there.is_relative_to(here) else there.as_posix()


def build(runs: Sequence[str]) -> Report:
    """The report of a run, or of several. A run is a folder, or NAME=FOLDER."""
    if len(runs) == 1:
        name, root = named(runs[0])
        return _one(root, name)
    trained: list[Training] = []
    problems: list[str] = []
    readable = []
    for run in runs:
        name, root = named(run)
        try:
            if kind_of(root) == "ablation":
                raise InputError("an ablation is a report of its own", where=str(root), fix="Give it alone")
            if kind_of(root) == "training":
                trained.append(read_training(root, name or ""))
                problems += trained[-1].problems
            readable.append(run)
        except InputError as error:
            problems.append(str(error))
        except (RecursionError, OSError, ArithmeticError) as error:  # one run's files; the others stay
            problems.append(f"{root}: {type(error).__name__}: {error}"[:300])
    if not readable:
        raise InputError(f"nothing to report: {'; '.join(problems[:3])}", fix="Give folders of runs")
    blocks: list[Block] = [
        *(training_blocks(trained, problems) if trained else []),
        *comparison_blocks(readable),
    ]
    lead = ", ".join(clean(named(run)[0] or named(run)[1].resolve().name) for run in readable[:12])
    return Report(
        f"{len(readable)} runs",
        f"{lead}.",
        [*blocks, *problem_list(problems)],
        lacking=len(readable) < len(runs),
    )


def _one(root: Path, name: str | None) -> Report:
    match kind_of(root):
        case "training":
            return training_report(read_training(root, name or ""))
        case "ablation":
            return ablation_report(root, name)
        case "benchmark":
            return bench_report(root, name)
        case _:
            return empa_report(root, name)


def kind_of(root: Path) -> str:
    """training, ablation, benchmark or empa; by the manifest, or where that is lost by what else is there."""
    if not root.is_dir():
        raise InputError("no such folder", where=str(root), fix="Give the folder of a run")
    result = root / "result.json"
    if result.is_symlink() or result.exists():
        if (problem := read_bytes(result)[1]) and not result.is_dir():
            raise InputError(problem, where=str(result), fix="Put the file itself there")
        return "benchmark"
    schema = str(read_object(RunDir(root).manifest, []).get("schema"))
    if schema.startswith("mapo.ablate/"):
        return "ablation"
    if schema.startswith(("mapo.emobench/", "mapo.eqbench")):
        raise unfinished(root, schema)
    if schema.startswith("mapo.empa/"):
        return "empa"
    left = ("summary.json", "metrics.jsonl", "config.toml")
    if schema.startswith("mapo.train/") or any((root / name).exists() for name in left):
        return "training"
    if any(root.glob("*/manifest.json")):
        raise InputError("is a folder of runs", where=str(root), fix="Name the runs: mapo report RUN RUN ...")
    return "empa"
