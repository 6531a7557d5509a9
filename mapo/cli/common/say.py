"""What the commands say beside their result: one line each, on standard error."""

from __future__ import annotations

import typer

from mapo.text import printable


def say(text: str) -> None:
    typer.echo(printable(text), err=True)


def say_all(kind: str, lines: list[str], most: int = 50) -> None:
    for line in lines[:most]:
        say(f"{kind}: {line}")
    if len(lines) > most:
        say(f"{kind}: ... and {len(lines) - most} more")
