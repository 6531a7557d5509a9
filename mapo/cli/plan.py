"""mapo plan: the least time of a training step, its bottleneck, and the replicas each role needs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mapo.cli.common.messages import say
from mapo.cli.common.options import Prices

if TYPE_CHECKING:
    from mapo.config import Config
    from mapo.planning.rates import Rates


def plan(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG|KEY.PATH=VALUE",
            help="A training config (a file or the name of a built-in one), and overrides: of the config "
            "(rollout.scenarios=32) or of the rates (servers.everyone.replicas=3).",
        ),
    ] = None,
    rates: Annotated[
        Path | None, typer.Option(help="TOML file with server speeds and call sizes (see --example).")
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option("--from", help="Finished run from which to measure rates that --rates does not set."),
    ] = None,
    prices: Prices = None,
    example: Annotated[
        bool, typer.Option("--example", help="Print an example rates file with every key explained.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Estimate the time of a training step, its bottleneck and the replicas each role needs; with --prices,
    also what the calls cost.

    The numbers are lower bounds, computed from the work of each server, the longest dialogue and the number
    of concurrent dialogues. Nothing is simulated.
    """
    from mapo.planning.rates import EXAMPLE

    if example:
        typer.echo(EXAMPLE, nl=False)
        return
    from mapo.cli.common.models import read_prices
    from mapo.planning.costs import cost_table, role_costs, total_cost
    from mapo.planning.demand import shape_of
    from mapo.planning.plan import make_plan
    from mapo.planning.table import print_plan
    from mapo.players.casting import cast_from_config
    from mapo.show.tables import print_tables

    config, checked_rates, notes, measured_s = _read(arguments or [], rates, run)
    result = make_plan(shape_of(config), checked_rates)
    costs = role_costs(result, cast_from_config(config), read_prices(prices)) if prices else None
    if as_json:
        record = {**result.as_json(), "measured_rollout_s": measured_s}
        if costs is not None:
            record["costs"] = {"roles": [asdict(cost) for cost in costs], "total": total_cost(costs)}
        record["notes"] = [*notes, *result.notes]
        typer.echo(json.dumps(record, indent=1))
        return
    print_plan(result)
    if costs is not None:
        print_tables([cost_table(costs, result.shape.steps)])
    if measured_s is not None:
        typer.echo(
            f"Rollouts of {run} took {measured_s:.1f} s on average; estimate: {result.rollout_s:.1f} s."
        )
    for note in (*notes, *result.notes):
        say(f"note: {note}")


def _read(
    arguments: list[str], rates: Path | None, run: Path | None
) -> tuple[Config, Rates, list[str], float | None]:
    """Return the config, the rates, notes about them, and the mean rollout time of `run`."""
    from mapo.config import load_config
    from mapo.errors import InputError
    from mapo.planning.measured import measure, merge_over
    from mapo.planning.rates import SECTIONS, merged, read_override, read_rates, read_toml
    from mapo.scenarios.epochs import resolve_steps

    files = [text for text in arguments if "=" not in text]
    if len(files) > 1:
        raise InputError(
            f"more than one config is given: {', '.join(files)}",
            fix="Give one config; settings are written as key.path=value",
        )
    if rates is None and run is None:
        raise InputError(
            "the server speeds are not known",
            fix="Give --rates FILE (`mapo plan --example` prints one) or --from RUN",
        )
    settings = [text for text in arguments if "=" in text]
    rate_settings = [text for text in settings if text.partition(".")[0] in SECTIONS]
    source = files[0] if files else _config_of(run)
    overrides = [text for text in settings if text not in rate_settings]
    config = resolve_steps(load_config(source, overrides, flat=not files))
    stated: dict[str, Any] = read_toml(rates) if rates else {}
    for text in rate_settings:
        stated = merged(stated, read_override(text))
    if run is None:
        return config, read_rates(stated, str(rates)), [], None
    measured = measure(run, config)
    data = merge_over(measured.rates, stated)
    where = f"{rates} over {run}" if rates else str(run)
    return config, read_rates(data, where), list(measured.notes), measured.rollout_s


def _config_of(run: Path | None) -> str | None:
    from mapo.store import RunDir

    return str(RunDir(run).config) if run and RunDir(run).config.is_file() else None
