"""mapo plan: the least time of a training step, its bottleneck, and the replicas each role needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mapo.cli.common.messages import say

if TYPE_CHECKING:
    from mapo.config import Config
    from mapo.planning.rates import Rates


def plan(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG|KEY.PATH=VALUE",
            help="A training config or a shipped one's name, and settings on top: its own "
            "(rollout.scenarios=32) and those of the rates (servers.everyone.replicas=3).",
        ),
    ] = None,
    rates: Annotated[Path | None, typer.Option(help="What the servers can do: a TOML file.")] = None,
    run: Annotated[
        Path | None,
        typer.Option("--from", help="A finished run that supplies what the rates leave out."),
    ] = None,
    example: Annotated[
        bool, typer.Option("--example", help="Print a rates file that explains every key.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Estimate a step's time, its bottleneck and the replicas each role needs, before machines are rented.

    The numbers are lower bounds: the work of each server, the longest dialogue, and the number of concurrent
    dialogues. Nothing is simulated.
    """
    from mapo.planning.rates import EXAMPLE

    if example:
        typer.echo(EXAMPLE, nl=False)
        return
    from mapo.planning.demand import shape_of
    from mapo.planning.plan import make_plan
    from mapo.planning.table import print_plan

    config, read, notes, measured_s = _read(given or [], rates, run)
    found = make_plan(shape_of(config), read)
    if as_json:
        shown = {**found.as_json(), "measured_rollout_s": measured_s}
        shown["notes"] = [*notes, *found.notes]
        typer.echo(json.dumps(shown, indent=1))
        return
    print_plan(found)
    if measured_s is not None:
        typer.echo(f"That run's own rollouts took {measured_s:.1f} s; estimated: {found.rollout_s:.1f} s.")
    for note in (*notes, *found.notes):
        say(f"note: {note}")


def _read(
    given: list[str], rates: Path | None, run: Path | None
) -> tuple[Config, Rates, list[str], float | None]:
    """Return the config, the rates, notes about them, and the mean rollout time of the run."""
    from mapo.config import load_config
    from mapo.errors import InputError
    from mapo.planning.measured import measure, over
    from mapo.planning.rates import SECTIONS, merged, read_override, read_rates, read_toml

    files = [text for text in given if "=" not in text]
    if len(files) > 1:
        raise InputError(f"two configs: {', '.join(files)}", fix="Settings are written key.path=value")
    if rates is None and run is None:
        raise InputError(
            "nothing says what the servers can do",
            fix="Give --rates FILE (`mapo plan --example` prints one), or --from RUN",
        )
    settings = [text for text in given if "=" in text]
    own = [text for text in settings if text.partition(".")[0] in SECTIONS]
    source = files[0] if files else _config_of(run)
    config = load_config(source, [text for text in settings if text not in own])
    stated: dict[str, Any] = read_toml(rates) if rates else {}
    for text in own:
        stated = merged(stated, read_override(text))
    if run is None:
        return config, read_rates(stated, str(rates)), [], None
    measured = measure(run, config)
    data = over(measured.rates, stated)
    where = f"{rates} over {run}" if rates else str(run)
    return config, read_rates(data, where), list(measured.notes), measured.rollout_s


def _config_of(run: Path | None) -> str | None:
    from mapo.store import RunDir

    return str(RunDir(run).config) if run and RunDir(run).config.is_file() else None
