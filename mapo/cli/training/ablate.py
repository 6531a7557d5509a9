"""mapo ablate: the same training under every method, reward and seed, and what that shows.

Each run of the grid is a `mapo train` in its own process with one thread, several in parallel. Everything is
on disk: called again with the same --out, it plays what is missing.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mapo.cli.common.messages import say
from mapo.cli.common.stop import until_stopped
from mapo.store import RunDir

if TYPE_CHECKING:
    from mapo.config import Config

METHODS = "mapo,turn,batch,grpo,reinforce++,reinforce++_turn"
OPTIONS = {"advantage.method": "--methods", "reward.name": "--rewards", "run.seed": "--seeds"}
"""Settings that differ from run to run, and the option for each."""


def ablate(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG|KEY.PATH=VALUE",
            help="What all runs share: a config file or a shipped one's name (pocket), and settings on top.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Output folder (default: runs/ablate-TIME).")] = None,
    methods: Annotated[str | None, typer.Option(help=f"The estimators (default: {METHODS}).")] = None,
    rewards: Annotated[str | None, typer.Option(help="The rewards (default: idr,adr).")] = None,
    seeds: Annotated[str | None, typer.Option(help="How many seeds (5), or which (0,1,2).")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs in parallel (default: the number of cores).")
    ] = None,
    reach: Annotated[
        float | None, typer.Option(help="Count dialogues up to this training score (default: grpo's last).")
    ] = None,
    only_report: Annotated[
        bool, typer.Option("--only-report", help="Only write the report; train nothing.")
    ] = False,
) -> None:
    """Train a grid of methods, rewards and seeds at equal numbers of dialogues, and compare them.

    Run again with the same --out to resume, by default with the same grid; more methods, rewards and
    seeds may be added. Exit status: 0 all well; 1 some runs failed.
    """
    from mapo.evals.ablation.grid import cells_of, claim_grid, locked, read_grid
    from mapo.evals.ablation.processes import GridProgress, run_cells
    from mapo.local_model.requirements import require_torch

    folder = out or Path("runs") / f"ablate-{time.strftime('%Y%m%d-%H%M%S')}"
    if only_report:
        _report(folder, reach)
        return
    wanted = _wanted(folder, methods, rewards, seeds)
    require_torch()
    with locked(folder):
        config = _config(folder, given or [])
        claim_grid(folder, config, wanted)
        with GridProgress(folder, cells_of(wanted), jobs or _cores(), config.optim.steps) as progress:
            command = f"mapo ablate --out {quote(str(folder))}"
            until_stopped(run_cells(progress), folder, progress.kept, command=command)
        if any(RunDir(folder / cell.name).summary.exists() for cell in cells_of(read_grid(folder))):
            _report(folder, reach)
    for cell, line in progress.failed.items():
        say(f"failed: {cell.name}: {line} ({RunDir(folder).logs / cell.name}.log)")
    if progress.failed:
        say(f"{len(progress.failed)} runs failed; run the same command to try them again")
        raise typer.Exit(1)


def _wanted(out: Path, methods: str | None, rewards: str | None, seeds: str | None) -> dict[str, list[Any]]:
    """Return the grid as given; what is not given is as it was in `out`, or the default."""
    from mapo.evals.ablation.grid import read_grid

    earlier = read_grid(out) if RunDir(out).manifest.exists() else {}
    wanted = {
        "methods": earlier.get("methods", METHODS.split(",")) if methods is None else _names(methods),
        "rewards": earlier.get("rewards", ["idr", "adr"]) if rewards is None else _names(rewards),
        "seeds": earlier.get("seeds", [0, 1, 2, 3, 4]) if seeds is None else _seeds(seeds),
    }
    _check_names(wanted)
    return wanted


def _names(text: str) -> list[Any]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _seeds(text: str) -> list[Any]:
    from mapo.errors import InputError

    try:
        found = [int(part) for part in _names(text)]
    except ValueError:
        found = []
    if not found or min(found) < 0 or (found == [0] and "," not in text):
        raise InputError(f"--seeds is '{text}'", fix="A number of seeds (5), or a list of them (0,1,2)")
    return found if "," in text else list(range(found[0]))


def _check_names(wanted: dict[str, list[Any]]) -> None:
    from mapo.advantage import METHODS as ESTIMATORS
    from mapo.errors import InputError
    from mapo.measure.reward import REWARDS

    for option, known in (("methods", ESTIMATORS), ("rewards", tuple(REWARDS))):
        wrong = [name for name in wanted[option] if name not in known]
        if wrong or not wanted[option]:
            problem = f"unknown: {', '.join(wrong)}" if wrong else "is empty"
            raise InputError(problem, where=f"--{option}", fix=f"Use some of: {','.join(known)}")


def _config(out: Path, given: list[str]) -> Config:
    """Return what all runs share: the config given, or the one of the ablation in `out`."""
    from mapo.config import load_config
    from mapo.errors import InputError

    files = [text for text in given if "=" not in text]
    overrides = [text for text in given if "=" in text]
    if len(files) > 1:
        raise InputError(f"two configs: {', '.join(files)}", fix="Settings are written key.path=value")
    for text in overrides:
        if (key := text.partition("=")[0].strip()) in OPTIONS:
            raise InputError(f"{key} differs from run to run", fix=f"Use the option {OPTIONS[key]}")
    if not files and RunDir(out).config.is_file():
        files = [str(RunDir(out).config)]
    return load_config(files[0] if files else None, overrides)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _report(out: Path, reach: float | None) -> None:
    """Write ablation.json, .md, .png and .svg of the finished runs, and print the table."""
    from mapo.errors import InputError
    from mapo.evals.ablation.analysis import analyse, read_run
    from mapo.evals.ablation.grid import cells_of, read_grid
    from mapo.evals.ablation.report import draw, markdown, print_report
    from mapo.scripted.notice import scripted_world
    from mapo.store import write_atomic

    grid = read_grid(out)
    cells = cells_of(grid)
    runs = [run for cell in cells if (run := read_run(out, cell)) is not None]
    report = analyse(runs, wanted=len(cells), reach=reach)
    write_atomic(RunDir(out).ablation, json.dumps(report, indent=1, allow_nan=False) + "\n")
    settings = grid["settings"]
    scripted = settings["roles"]["agents"] == "scripted"
    caution = scripted_world([settings["scenarios"]["domain"]]) if scripted else ""
    write_atomic(RunDir(out).ablation_markdown, markdown(report, caution=caution))
    print_report(report, caution=caution)
    try:
        draw(report, out)
    except InputError as error:
        say(f"warning: no figure: {error}")
    say(f"report: {RunDir(out).ablation_markdown}")
