"""Messages of the commands on standard error, one line each."""

from __future__ import annotations

import typer

from mapo.text import printable


def say(text: str) -> None:
    typer.echo(printable(text), err=True)


def say_all(kind: str, lines: list[str], most: int = 50) -> None:
    """Print each line after its kind ("warning", "note"), and how many more there are than `most`."""
    for line in lines[:most]:
        say(f"{kind}: {line}")
    if len(lines) > most:
        say(f"{kind}: ... and {len(lines) - most} more")
