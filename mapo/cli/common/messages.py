"""Messages of the commands, on standard error."""

from __future__ import annotations

from collections.abc import Sequence
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


def say_failures(kind: str, noun: str, failures: Sequence[tuple[str, str]], most: int = 10) -> None:
    """Print failures, given as id and error; those with the same error share a line."""
    by_error: dict[str, list[str]] = {}
    for name, error in failures:
        by_error.setdefault(error, []).append(name)
    lines = []
    for error, names in by_error.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        several = f"{len(names)} {noun}s ({', '.join(names[:3])}{more})"
        lines.append(f"{several if len(names) > 1 else f'{noun} {names[0]}'}: {error}")
    say_all(kind, lines, most)


def say_next_commands(run: Path) -> None:
    """Name the commands that show a finished run."""
    folder = quote(str(run))
    say(f"viewer: mapo view {folder}")
    say(f"report: mapo report {folder}")
