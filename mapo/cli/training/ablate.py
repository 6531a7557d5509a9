"""mapo ablate: train a grid of settings and seeds, and compare the runs.

Each run of the grid is a `mapo train` in its own process with one thread, several in parallel. Called again
with the same --out, the command trains the runs that are missing.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mapo.cli.common.messages import say
from mapo.cli.common.stop import until_stopped
from mapo.cli.training.checks import (
    check_inherited_axes,
    check_policy,
    check_roles,
    check_run_config,
    is_config_of,
)
from mapo.store import RunDir

if TYPE_CHECKING:
    from mapo.config import Config
    from mapo.evals.ablation.cells import GridCell

MAX_SEEDS = 1_000
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
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY.PATH=A,B,...",
            help="A setting and the values it takes, such as advantage.turn_weight=0,0.5,1. Repeat it for "
            "the product of several settings. Method and reward are then those of the config unless given.",
        ),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help=f"Advantage methods (default without --vary: {METHODS}).")
    ] = None,
    rewards: Annotated[str | None, typer.Option(help="Rewards (default without --vary: idr,adr).")] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Number of seeds (5), or a list of seeds (0,1,2).")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Runs in parallel (default: the number of cores; 1 with --engine verl)."),
    ] = None,
    engine: Annotated[
        Literal["local", "verl"] | None, typer.Option(help="Training engine (default: local).")
    ] = None,
    reach: Annotated[
        float | None,
        typer.Option(help="Count the dialogues until this training score (default: the last score of grpo)."),
    ] = None,
    only_report: Annotated[
        bool, typer.Option("--only-report", help="Write the report of finished runs and train nothing.")
    ] = False,
) -> None:
    """Train a grid of settings and seeds, and compare the runs.

    Without --vary, the grid has the paper's methods and two rewards. Every combination is checked before the
    first run starts. Run again with the same --out to resume, by default with the same grid; values and seeds
    may be added. Exit status: 0 success; 1 some runs failed.
    """
    from mapo.evals.ablation.cells import cells_of
    from mapo.evals.ablation.grid import claim_grid, engine_of, read_grid
    from mapo.evals.ablation.processes import GridProgress, run_cells
    from mapo.evals.processes import locked
    from mapo.local_model.requirements import require_torch
    from mapo.scenarios.epochs import resolve_steps

    folder = out or Path("runs") / f"ablate-{time.strftime('%Y%m%d-%H%M%S')}"
    if only_report:
        _report(folder, reach)
        return
    earlier = read_grid(folder) if RunDir(folder).manifest.exists() else None
    grid = _wanted_grid(earlier, vary or [], methods, rewards, seeds)
    chosen = engine or (engine_of(earlier) if earlier else "local")
    require_torch()
    with locked(folder, "ablation"):
        cells = cells_of(grid)
        configs = _read_configs(folder, settings or [], cells, chosen)
        unfinished = [cell for cell in cells if not RunDir(folder / cell.name).summary.exists()]
        _check_before_start(configs, unfinished, chosen)
        claim_grid(folder, configs[cells[0]], grid, engine=chosen)
        steps = {cell: resolve_steps(config).optim.steps for cell, config in configs.items()}
        parallel = jobs or (_cores() if chosen == "local" else 1)
        with GridProgress(folder, cells, parallel, steps, chosen) as progress:
            command = f"mapo ablate --out {quote(str(folder))}"
            until_stopped(run_cells(progress), folder, progress.saved, command=command)
        if any(RunDir(folder / cell.name).summary.exists() for cell in cells_of(read_grid(folder))):
            _report(folder, reach)
    for cell, line in progress.failed.items():
        say(f"failed: {cell.name}: {line} ({RunDir(folder).logs / cell.name}.log)")
    if progress.failed:
        say(f"{len(progress.failed)} runs failed; run the same command again to retry them")
        raise typer.Exit(1)


def _check_before_start(configs: dict[GridCell, Config], unfinished: list[GridCell], engine: str) -> None:
    """Check what the runs of the grid would check themselves, before the first of them is started.

    Runs with the same policy, scenarios and roles are checked together.
    """
    from mapo.train.run import check_options, chosen_scenarios

    if engine == "verl" and unfinished:
        from mapo.engines.verl.launch import check_verl
        from mapo.engines.verl.settings import check_settings

        check_verl()
        for config in configs.values():
            check_settings(config)
    groups: dict[str, list[Config]] = {}
    for cell in unfinished:
        check_options(configs[cell])
        groups.setdefault(_what_is_checked(configs[cell]), []).append(configs[cell])
    for same in groups.values():
        check_policy(same[0], same[0].model.device if engine == "local" else "auto")
        check_roles(same[0], chosen_scenarios(same[0]), runs=len(same))


def _what_is_checked(config: Config) -> str:
    """Return the settings on which the check of a run and its estimate depend, as one text."""
    data = config.model_dump(mode="json", exclude={"run": True, "advantage": True, "reward": True})
    data["optim"] = (config.optim.steps, config.optim.epochs)
    return json.dumps(data, sort_keys=True)


def _wanted_grid(
    earlier: dict[str, Any] | None,
    vary: list[str],
    methods: str | None,
    rewards: str | None,
    seeds: str | None,
) -> dict[str, Any]:
    """Return the grid: the options, else the grid in the folder, else the paper's methods and two rewards."""
    from mapo.errors import InputError
    from mapo.evals.ablation.cells import METHOD, REWARD, SEED, axes_of, parse_axis
    from mapo.evals.ablation.grid import as_grid

    axes = {key: _names(text) for key, text in ((METHOD, methods), (REWARD, rewards)) if text is not None}
    _check_names(axes)
    numbers = None if seeds is None else _seeds(seeds)
    for key, values in map(parse_axis, vary):
        if key in axes or (key == SEED and numbers is not None):
            raise InputError(f"{key} is given twice", where="--vary", fix="List all its values once")
        if key == SEED:
            numbers = _seeds(",".join([*map(str, values), ""]))
        else:
            axes[key] = values
    _check_names(axes)
    if earlier is not None:
        check_inherited_axes([key for key in axes_of(earlier) if key not in axes])
        axes = axes_of(earlier) | axes
    elif not vary:
        axes = {METHOD: METHODS.split(","), REWARD: ["idr", "adr"]} | axes
    default = earlier["seeds"] if earlier else [0, 1, 2, 3, 4]
    return as_grid(axes, default if numbers is None else numbers)


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
    if "," not in text and numbers[0] > MAX_SEEDS:
        raise InputError(f"--seeds is '{text}'", fix=f"Give at most {MAX_SEEDS} seeds")
    return numbers if "," in text else list(range(numbers[0]))


def _check_names(axes: dict[str, list[Any]]) -> None:
    from mapo.advantage import METHODS as ESTIMATORS
    from mapo.errors import InputError
    from mapo.evals.ablation.cells import METHOD, REWARD
    from mapo.measure.reward import REWARDS

    for key, option, known in ((METHOD, "methods", ESTIMATORS), (REWARD, "rewards", tuple(REWARDS))):
        unknown = [str(name) for name in axes.get(key, ()) if name not in known]
        if unknown or axes.get(key) == []:
            problem = f"unknown names: {', '.join(unknown)}" if unknown else "the list is empty"
            raise InputError(problem, where=f"--{option}", fix=f"Use some of: {','.join(known)}")


def _read_configs(
    out: Path, settings: list[str], cells: list[GridCell], engine: str
) -> dict[GridCell, Config]:
    """Return the config of every run, from the config named in `settings` or that of the grid in `out`."""
    from mapo.errors import InputError
    from mapo.evals.ablation.grid import configs_of

    files = [text for text in settings if "=" not in text]
    overrides = [text for text in settings if "=" in text]
    if len(files) > 1:
        raise InputError(
            f"more than one config is given: {', '.join(files)}",
            fix="Give one config; settings are written as key.path=value",
        )
    varied = {*OPTIONS, *(key for key, _ in cells[0].settings)}
    given = {text.partition("=")[0].strip() for text in overrides}
    fixed = {key for key in ("advantage.method", "reward.name") if key not in dict(cells[0].settings)}
    for key in [key for key in given if key in varied - fixed]:
        raise InputError(f"{key} varies over the grid", fix=f"Use the option {OPTIONS.get(key, '--vary')}")
    from_grid = not files and RunDir(out).config.is_file()
    source = str(RunDir(out).config) if from_grid else files[0] if files else None
    flat = from_grid or is_config_of(out, files)
    configs = configs_of(source, overrides, cells, engine=engine, flat=flat)
    if from_grid:
        for config in configs.values():
            check_run_config(config, out, "mapo ablate", overrides)
    return configs


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _report(out: Path, reach: float | None) -> None:
    """Write ablation.json, .md, .png and .svg of the finished runs; print the table and the next commands."""
    from mapo.errors import InputError
    from mapo.evals.ablation.analysis import analyse, read_run
    from mapo.evals.ablation.cells import cells_of
    from mapo.evals.ablation.grid import read_grid
    from mapo.evals.ablation.report import draw, markdown, print_report
    from mapo.scripted.world import configured_world, world_notice
    from mapo.store import write_atomic

    grid = read_grid(out)
    cells = cells_of(grid)
    runs = [run for cell in cells if (run := read_run(out, cell)) is not None]
    report = analyse(runs, wanted=len(cells), reach=reach)
    write_atomic(RunDir(out).ablation, json.dumps(report, indent=1, allow_nan=False) + "\n")
    settings = grid["settings"]
    roles = settings["roles"]
    judge = (settings.get("eval", {}).get("judge") or roles.get("judge") or {}).get("model")
    domain = settings["scenarios"].get("domain") or "conversation"
    world = configured_world(roles.get("agents", ""), domain, judge)
    caution = world_notice([world]) if world else ""
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
