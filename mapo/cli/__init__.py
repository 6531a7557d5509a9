"""The command line. Each command imports what it needs when it runs, so that --help is instant.

One file per command; this one puts them together.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

import typer

from mapo import __version__
from mapo.cli import (
    compare,
    doctor,
    evaluate,
    judge,
    plan,
    play,
    report,
    roles,
    scenarios,
    score,
    serve,
    view,
)
from mapo.cli.common.help import commands
from mapo.cli.common.messages import say
from mapo.cli.training import ablate, export, fetch, reproduce, train
from mapo.errors import MapoError

app = commands(
    "Train language models for long, helpful conversations, and evaluate them.",
    name="mapo",
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command()(train.train)
app.command()(ablate.ablate)
app.command()(reproduce.reproduce)
app.command()(export.export)
app.command()(fetch.fetch)
app.command()(score.score)
app.command()(compare.compare)
app.command()(report.report)
app.command()(view.view)
app.command()(play.play)
app.command()(serve.serve)
app.command()(plan.plan)
app.command()(doctor.doctor)
app.add_typer(evaluate.app, name="eval")
app.add_typer(judge.app, name="judge")
app.add_typer(roles.app, name="roles")
app.add_typer(scenarios.app, name="scenarios")


@cache
def _command() -> Callable[[], Any]:
    """Return the command, built once: typer would rebuild all commands on every call of the app."""
    return typer.main.get_command(app)


def run() -> None:
    """Run the console script. Expected errors become one line and exit status 2."""
    try:
        _command()()
    except MapoError as error:
        say(f"error: {error}")
        sys.exit(2)
    except KeyboardInterrupt:  # before a command handles signals itself
        sys.exit(130)
    except OSError as error:  # standard output went away, or its disk is full
        with contextlib.suppress(OSError):
            say(f"error: {error}")
        sys.exit(2)


if __name__ == "__main__":
    run()
