"""mapo plan: how long a training step will take, who holds it up, and how many replicas that needs."""

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
        Path | None, typer.Option("--from", help="A finished run to take from what the rates leave out.")
    ] = None,
    example: Annotated[
        bool, typer.Option("--example", help="Print a rates file that explains itself.")
    ] = False,
    draws: Annotated[int, typer.Option(min=1, help="Steps to simulate and average.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Before machines are rented: a step's time, where it goes, and the replicas each role needs.

    Simulates the dialogues of a training step on their way from the policy to judge, director, user and back,
    and prints beside it the bounds that can be computed by hand.
    """
    from mapo.planning.rates import EXAMPLE

    if example:
        typer.echo(EXAMPLE, nl=False)
        return
    from mapo.planning.load import shape_of
    from mapo.planning.plan import make_plan
    from mapo.planning.tables import print_plan

    config, told, notes, measured_s = _read(given or [], rates, run)
    found = make_plan(shape_of(config), told, draws=draws)
    if as_json:
        shown = {**found.as_json(), "measured_rollout_s": measured_s}
        shown["notes"] = [*notes, *found.notes]
        typer.echo(json.dumps(shown, indent=1))
        return
    print_plan(found)
    if measured_s is not None:
        typer.echo(f"That run's own rollouts took {measured_s:.1f} s; planned: {found.rollout_s:.1f} s.")
    for note in (*notes, *found.notes):
        say(f"note: {note}")


def _read(
    given: list[str], rates: Path | None, run: Path | None
) -> tuple[Config, Rates, list[str], float | None]:
    """The config, the rates, what to say about them, and how long the run's own rollouts took."""
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
    told: dict[str, Any] = read_toml(rates) if rates else {}
    for text in own:
        told = merged(told, read_override(text))
    if run is None:
        return config, read_rates(told, str(rates)), [], None
    measured = measure(run, config)
    data = over(measured.rates, told)
    where = f"{rates} over {run}" if rates else str(run)
    return config, read_rates(data, where), list(measured.notes), measured.rollout_s


def _config_of(run: Path | None) -> str | None:
    return str(run / "config.toml") if run and (run / "config.toml").is_file() else None
