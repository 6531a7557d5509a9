"""mapo reproduce: an experiment of the MAPO paper, from training to its table."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from shlex import join, quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mapo.cli.common.messages import say
from mapo.cli.common.stop import until_stopped
from mapo.store import write_atomic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mapo.evals.reproduce.experiments import Experiment
    from mapo.evals.reproduce.stages import Recipe, Stage


def reproduce(
    name: Annotated[
        str,
        typer.Argument(metavar="EXPERIMENT", help="table1, granularity, reward, weights, judges or figures."),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY.PATH=VALUE]...",
            help="Settings of all trainings to change, such as roles.everyone.base_url=URL.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the reproduction (default: runs/reproduce-TIMESTAMP).")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Sizes: some of 7b,8b,14b,32b (default: those of the paper).")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="Training engine: verl (all weights) or local (LoRA on one card).")
    ] = "verl",
    profile: Annotated[
        str, typer.Option(help="Settings of the paper's text (paper) or of its authors' code (scripts).")
    ] = "paper",
    cards: Annotated[
        Path | None, typer.Option(help="Folder of EMPA's cards: cases/ and scenarios/ in it.")
    ] = None,
    start_levels: Annotated[
        Path | None, typer.Option(help="Start levels of the cards: EMPA's precomputed file, or results.")
    ] = None,
    prompts: Annotated[
        str | None, typer.Option(help="Prompts of the roles: empa (EMPA's own) or a folder of templates.")
    ] = None,
    test_model: Annotated[
        str | None, typer.Option(help="Model of user, director and judge in tests.")
    ] = None,
    test_base_url: Annotated[str | None, typer.Option(help="Its endpoint.")] = None,
    test_key_env: Annotated[str, typer.Option(help="Variable with its API key.")] = "OPENAI_API_KEY",
    judges: Annotated[str | None, typer.Option(help="Judges of the experiment `judges`: a,b,c.")] = None,
    small: Annotated[
        bool,
        typer.Option("--small", help="Test the pipeline: the embedded model in the scripted world, minutes."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print stages, calls, tokens, GPU hours and cost, and stop.")
    ] = False,
    prices: Annotated[
        Path | None, typer.Option(help="JSON file of prices per million tokens, by model, for --dry-run.")
    ] = None,
    rates: Annotated[
        Path | None, typer.Option(help="TOML file of speeds for --dry-run (`mapo plan --example`).")
    ] = None,
) -> None:
    """Reproduce an experiment of the MAPO (MICA) paper: train, test, and print its table.

    Run again with the same --out to resume; other experiments with the same --out share its trainings.
    Exit status: 0 success; 1 some stages failed; 2 wrong options; 130 or 143 stopped by a signal.
    """
    from mapo.evals.reproduce.experiments import REPORTED_SIZES, experiment
    from mapo.evals.reproduce.stages import Recipe, stages_of
    from mapo.players.spec import ModelSpec

    sizes = _names(model) or (list(REPORTED_SIZES.get(name, ()))[:1] if small else [])
    chosen = experiment(name, sizes, _names(judges))
    tester = ModelSpec(test_model, test_base_url, test_key_env) if test_model else None
    recipe = Recipe(
        engine="local" if small else engine,
        profile=profile,
        cards=cards.resolve() if cards else None,
        start_levels=start_levels.resolve() if start_levels else None,
        prompts=prompts,
        tester=tester,
        settings=tuple(settings or ()),
        small=small,
    )
    recipe.check(dry_run=dry_run)
    folder = out or Path("runs") / f"reproduce-{time.strftime('%Y%m%d-%H%M%S')}"
    stages = stages_of(chosen, recipe, folder)
    scenarios = _check(chosen, recipe, dry_run=dry_run)
    if dry_run:
        _print_estimate(chosen, recipe, stages, rates, prices, scenarios)
        return
    _run(chosen, recipe, stages, folder, scenarios)


def _names(text: str | None) -> list[str]:
    return list(dict.fromkeys(part.strip() for part in (text or "").split(",") if part.strip()))


def _check(chosen: Experiment, recipe: Recipe, *, dry_run: bool) -> int:
    """Check configs and scenarios of all trainings, so that mistakes show before anything runs. Return the
    number of training scenarios."""
    from mapo.evals.reproduce.stages import CLEAN_CARDS
    from mapo.scenarios.sets import load_scenarios

    trainings = dict.fromkeys(row.training for row in chosen.rows if row.training)
    configs = [recipe.config(training) for training in trainings]
    by_source = {config.scenarios.train: config for config in configs}
    if recipe.cards is None and not recipe.small:
        return CLEAN_CARDS
    if dry_run:
        return max((len(load_scenarios(source)) for source in by_source), default=0)
    from mapo.local_model.requirements import require_torch

    require_torch()
    from mapo.players.prompts import prompts_from_config
    from mapo.train.run import chosen_scenarios

    if recipe.prompts:
        prompts_from_config(configs[0])
    return max((len(chosen_scenarios(config)["train"]) for config in by_source.values()), default=0)


def _run(chosen: Experiment, recipe: Recipe, stages: list[Stage], out: Path, scenarios: int) -> None:
    from mapo.evals.processes import locked
    from mapo.evals.reproduce.execute import StageRunner

    with locked(out, "reproduction"):
        runner = StageRunner(out, stages)
        saved = "finished stages are kept, the others resume where they stopped"
        until_stopped(runner.run(), out, lambda: saved, command=_command(out))
    _print_results(chosen, recipe, out, scenarios)
    for stage, problem in runner.failed.items():
        say(f"failed: {stage}: {problem}")
    if runner.failed:
        say(f"{len(runner.failed)} stages failed; run the same command with --out {quote(str(out))} to retry")
        raise typer.Exit(1)


def _command(out: Path) -> str:
    """Return the command line of this process, with the folder if its name was chosen by default."""
    words = sys.argv[1:]
    named = any(word == "--out" or word.startswith("--out=") for word in words)
    return join(["mapo", *words, *([] if named else ["--out", str(out)])])


def _print_results(chosen: Experiment, recipe: Recipe, out: Path, scenarios: int) -> None:
    """Print the table, write it as JSON and Markdown, and draw the figures."""
    from mapo.evals.reproduce.deviations import deviations
    from mapo.evals.reproduce.results import (
        as_json,
        as_markdown,
        context_lines,
        read_results,
        result_table,
    )
    from mapo.evals.reproduce.stages import SMALL_CASES, TEST_CASES
    from mapo.show.tables import print_line, print_tables

    cases = SMALL_CASES if recipe.small else TEST_CASES
    results, lines = read_results(chosen, out, cases), deviations(chosen, recipe, scenarios)
    for line in context_lines(results):
        print_line(line, style="")
    print_tables([result_table(chosen, results, recipe.small)])
    _print_deviations(lines)
    path = out / f"{chosen.name}.json"
    write_atomic(path, json.dumps(as_json(chosen, results, lines), indent=1, allow_nan=False) + "\n")
    write_atomic(path.with_suffix(".md"), as_markdown(chosen, results, lines, recipe.small))
    if chosen.figures:
        _draw(chosen, out)
    say(f"table: {path.with_suffix('.md')}")
    say(f"viewer: mapo view {quote(str(out))}")


def _print_deviations(lines: Sequence[str]) -> None:
    from mapo.show.tables import print_line

    print_line("Deviations from the paper:", style="bold")
    for line in lines:
        print_line(f"- {line}", style="")


def _draw(chosen: Experiment, out: Path) -> None:
    """Write the figures of the trainings and of the tests."""
    from mapo.evals.reproduce.stages import test_folder, train_folder
    from mapo.report import build, write

    groups: dict[str, list[Path]] = {
        "training": [train_folder(out, row.training) for row in chosen.rows if row.training],
        "tests": [test_folder(out, row) for row in chosen.rows],
    }
    for name, folders in groups.items():
        runs = [str(folder) for folder in dict.fromkeys(folders) if folder.is_dir()]
        if runs:
            write(build(runs), out / f"figures-{name}.html", figures=out / f"figures-{name}")
            say(f"figures: {out / f'figures-{name}'}")


def _print_estimate(
    chosen: Experiment,
    recipe: Recipe,
    stages: list[Stage],
    rates: Path | None,
    prices: Path | None,
    scenarios: int,
) -> None:
    from mapo.cli.common.models import read_prices
    from mapo.evals.reproduce.deviations import deviations
    from mapo.evals.reproduce.estimate import estimate, estimate_table
    from mapo.planning.rates import read_toml
    from mapo.show.tables import print_line, print_tables

    print_line("Stages:", style="bold")
    for number, stage in enumerate(stages, 1):
        # Not wrapped, so that the commands can be copied.
        typer.echo(f"{number:2}. mapo {join(stage.arguments)}")
    changes: dict[str, Any] = read_toml(rates) if rates else {}
    costs = estimate(stages, recipe, changes, read_prices(prices), scenarios)
    print_tables([estimate_table(costs, chosen)])
    _print_deviations(deviations(chosen, recipe, scenarios))
