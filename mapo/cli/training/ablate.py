"""mapo ablate: train a grid of methods, rewards and seeds, and compare the runs.

Each run of the grid is a `mapo train` in its own process with one thread, several in parallel. Called again
with the same --out, the command trains the runs that are missing.
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
from mapo.cli.training.checks import check_policy, check_roles, check_run_config
from mapo.store import RunDir

if TYPE_CHECKING:
    from mapo.config import Config

METHODS = "mapo,turn,batch,grpo,reinforce++,reinforce++_turn"
OPTIONS = {"advantage.method": "--methods", "reward.name": "--rewards", "run.seed": "--seeds"}
"""Settings that vary over the grid, and the option for each."""


def ablate(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [KEY.PATH=VALUE]...",
            help="Settings of all runs: a config file or the name of a shipped config (default: pocket), "
            "and settings to change.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the grid (default: runs/ablate-TIMESTAMP).")
    ] = None,
    methods: Annotated[str | None, typer.Option(help=f"Advantage methods (default: {METHODS}).")] = None,
    rewards: Annotated[str | None, typer.Option(help="Rewards (default: idr,adr).")] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Number of seeds (5), or a list of seeds (0,1,2).")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs in parallel (default: the number of cores).")
    ] = None,
    reach: Annotated[
        float | None,
        typer.Option(help="Count the dialogues until this training score (default: the last score of grpo)."),
    ] = None,
    only_report: Annotated[
        bool, typer.Option("--only-report", help="Write the report of finished runs and train nothing.")
    ] = False,
) -> None:
    """Train a grid of methods, rewards and seeds at equal numbers of dialogues, and compare them.

    Run again with the same --out to resume, by default with the same grid; more methods, rewards and
    seeds may be added. Exit status: 0 success; 1 some runs failed.
    """
    from mapo.evals.ablation.grid import cells_of, claim_grid, locked, read_grid
    from mapo.evals.ablation.processes import GridProgress, run_cells
    from mapo.local_model.requirements import require_torch
    from mapo.scenarios.epochs import resolve_steps

    folder = out or Path("runs") / f"ablate-{time.strftime('%Y%m%d-%H%M%S')}"
    if only_report:
        _report(folder, reach)
        return
    grid = _read_grid(folder, methods, rewards, seeds)
    require_torch()
    with locked(folder):
        config = _read_config(folder, settings or [])
        _check_before_start(config, sum(not RunDir(folder / c.name).summary.exists() for c in cells_of(grid)))
        claim_grid(folder, config, grid)
        steps = resolve_steps(config).optim.steps
        with GridProgress(folder, cells_of(grid), jobs or _cores(), steps) as progress:
            command = f"mapo ablate --out {quote(str(folder))}"
            until_stopped(run_cells(progress), folder, progress.saved, command=command)
        if any(RunDir(folder / cell.name).summary.exists() for cell in cells_of(read_grid(folder))):
            _report(folder, reach)
    for cell, line in progress.failed.items():
        say(f"failed: {cell.name}: {line} ({RunDir(folder).logs / cell.name}.log)")
    if progress.failed:
        say(f"{len(progress.failed)} runs failed; run the same command again to retry them")
        raise typer.Exit(1)


def _check_before_start(config: Config, runs: int) -> None:
    """Check what the runs of the grid would check themselves, before the first of them is started."""
    if not runs:
        return
    check_policy(config, config.model.device)
    from mapo.train.run import check_options, chosen_scenarios

    check_options(config)
    check_roles(config, chosen_scenarios(config), runs=runs)


def _read_grid(
    out: Path, methods: str | None, rewards: str | None, seeds: str | None
) -> dict[str, list[Any]]:
    """Return the grid: the options, else the grid in `out`, else the defaults."""
    from mapo.evals.ablation.grid import read_grid

    earlier = read_grid(out) if RunDir(out).manifest.exists() else {}
    grid = {
        "methods": earlier.get("methods", METHODS.split(",")) if methods is None else _names(methods),
        "rewards": earlier.get("rewards", ["idr", "adr"]) if rewards is None else _names(rewards),
        "seeds": earlier.get("seeds", [0, 1, 2, 3, 4]) if seeds is None else _seeds(seeds),
    }
    _check_names(grid)
    return grid


def _names(text: str) -> list[Any]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _seeds(text: str) -> list[Any]:
    from mapo.errors import InputError

    try:
        numbers = [int(part) for part in _names(text)]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 0 or (numbers == [0] and "," not in text):
        raise InputError(f"--seeds is '{text}'", fix="Give a number of seeds (5), or a list of them (0,1,2)")
    return numbers if "," in text else list(range(numbers[0]))


def _check_names(grid: dict[str, list[Any]]) -> None:
    from mapo.advantage import METHODS as ESTIMATORS
    from mapo.errors import InputError
    from mapo.measure.reward import REWARDS

    for option, known in (("methods", ESTIMATORS), ("rewards", tuple(REWARDS))):
        unknown = [name for name in grid[option] if name not in known]
        if unknown or not grid[option]:
            problem = f"unknown names: {', '.join(unknown)}" if unknown else "the list is empty"
            raise InputError(problem, where=f"--{option}", fix=f"Use some of: {','.join(known)}")


def _read_config(out: Path, settings: list[str]) -> Config:
    """Return the config of all runs: the one named in `settings`, or that of the grid in `out`."""
    from mapo.config import load_config
    from mapo.errors import InputError

    files = [text for text in settings if "=" not in text]
    overrides = [text for text in settings if "=" in text]
    if len(files) > 1:
        raise InputError(
            f"more than one config is given: {', '.join(files)}",
            fix="Give one config; settings are written as key.path=value",
        )
    for text in overrides:
        if (key := text.partition("=")[0].strip()) in OPTIONS:
            raise InputError(f"{key} varies over the grid", fix=f"Use the option {OPTIONS[key]}")
    if not files and RunDir(out).config.is_file():
        config = load_config(str(RunDir(out).config), overrides, flat=True)
        check_run_config(config, out, "mapo ablate", overrides)
        return config
    return load_config(files[0] if files else None, overrides)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _report(out: Path, reach: float | None) -> None:
    """Write ablation.json, .md, .png and .svg of the finished runs; print the table and the next commands."""
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
    folder = quote(str(out))
    say(f"tables: {RunDir(out).ablation_markdown}")
    say(f"report: mapo report {folder}   (one HTML file)")
    say(f"viewer: mapo view {folder}")
