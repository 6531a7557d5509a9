"""The command line. Thin: each command imports what it needs when it runs, so --help answers at once.

One file a command; this one puts them together.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

from mapo import __version__
from mapo.cli.common.plain import commands
from mapo.cli.common.say import say
from mapo.cli.compare import compare
from mapo.cli.doctor import doctor
from mapo.cli.evaluate.empa import app as eval_app
from mapo.cli.judge.audit import app as judge_app
from mapo.cli.plan import plan
from mapo.cli.play import play
from mapo.cli.report import report
from mapo.cli.scenarios.sets import app as scenarios_app
from mapo.cli.score import score
from mapo.cli.training.ablate import ablate
from mapo.cli.training.export import export
from mapo.cli.training.fetch import fetch
from mapo.cli.training.train import train
from mapo.cli.view import view
from mapo.errors import MapoError

app = commands(
    "Train language models to hold long conversations that help, and see that they do.",
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


app.command()(train)
app.command()(ablate)
app.command()(export)
app.command()(fetch)
app.command()(score)
app.command()(compare)
app.command()(report)
app.command()(view)
app.command()(play)
app.command()(plan)
app.command()(doctor)
app.add_typer(eval_app, name="eval")
app.add_typer(judge_app, name="judge")
app.add_typer(scenarios_app, name="scenarios")


def run() -> None:
    """The console script: deliberate errors become one line and exit status 2."""
    try:
        app()
    except MapoError as error:
        say(f"error: {error}")
        sys.exit(2)
    except OSError as error:  # standard output went away, or its disk is full
        with contextlib.suppress(OSError):
            say(f"error: {error}")
        sys.exit(2)


if __name__ == "__main__":
    run()
