"""The command line. Thin: each command imports what it needs when it runs, so --help answers at once."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from mapo import __version__
from mapo.errors import InputError, MapoError
from mapo.text import printable

app = typer.Typer(
    name="mapo",
    help="Train language models to hold long conversations that help, and see that they do.",
    no_args_is_help=True,
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


@app.command()
def score(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR",
            help="EMPA result files or mapo records: one model, or one folder a model. "
            "Without it, the examples shipped with mapo.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list, one object a model.")] = False,
    profile: Annotated[
        str | None,
        typer.Option(help="Rules to recompute by: published or released. (default: the record's own)"),
    ] = None,
    by: Annotated[str | None, typer.Option(help="Break down by case, category or axis.")] = None,
    rubric: Annotated[
        str | None, typer.Option(help="A rubric's name or TOML file (default: as recorded).")
    ] = None,
) -> None:
    """EPM-Q of recorded dialogues, recomputed from the judge's levels.

    Exit status: 0 all well; 1 some files or lines could not be used (the rest is scored); 2 nothing to score.
    """
    from mapo.evals import score as scoring
    from mapo.sandbox.rubric import Rubric

    chosen = Rubric.load(rubric) if rubric else None
    folder = _examples() if folder is None else folder
    found = scoring.score(folder, profile=profile, by=by, rubric=chosen)
    if as_json:
        typer.echo(json.dumps([m.as_json() for m in found.models], indent=1, ensure_ascii=False))
    else:
        from mapo.evals.tables import print_scoring

        print_scoring(found)
    _say_all("warning", [f"{line} (left out)" for line in found.torn])
    _say_all("error", found.bad)
    if not found.models:
        raise InputError("no dialogue in it could be scored", where=str(folder))
    if found.bad:
        raise typer.Exit(1)


def _examples() -> Path:
    from importlib.resources import files

    return Path(str(files("mapo") / "data" / "examples"))


def _say(text: str) -> None:
    typer.echo(printable(text), err=True)


def _say_all(kind: str, lines: list[str], most: int = 50) -> None:
    for line in lines[:most]:
        _say(f"{kind}: {line}")
    if len(lines) > most:
        _say(f"{kind}: ... and {len(lines) - most} more")


def run() -> None:
    """The console script: deliberate errors become one line and exit status 2."""
    try:
        app()
    except MapoError as error:
        _say(f"error: {error}")
        sys.exit(2)
    except OSError as error:  # standard output went away, or its disk is full
        with contextlib.suppress(OSError):
            _say(f"error: {error}")
        sys.exit(2)


if __name__ == "__main__":
    run()
