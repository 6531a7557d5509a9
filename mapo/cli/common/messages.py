"""Messages of the commands, on standard error."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

import typer

from mapo.text import printable


def say(text: str) -> None:
    """Print a message."""
    typer.echo(printable(text), err=True)


def say_all(kind: str, lines: list[str], most: int = 50) -> None:
    """Print each line after its kind ("warning", "note"); lines beyond `most` are only counted."""
    for line in lines[:most]:
        say(f"{kind}: {line}")
    if len(lines) > most:
        say(f"{kind}: ... and {len(lines) - most} more")


def say_next_commands(run: Path) -> None:
    """Name the commands that show a finished run."""
    folder = quote(str(run))
    say(f"viewer: mapo view {folder}")
    say(f"report: mapo report {folder}")
