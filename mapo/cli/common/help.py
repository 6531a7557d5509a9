"""Help as plain text.

Typer draws help with rich, as a table whose cells are cut off ("…") where they do not fit; in a log, which
counts as 80 columns wide, most commands lose text. Plain text wraps instead: nothing is lost at any width,
and grep finds an option together with its description.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

WIDTH = 110
"""Longer lines are hard to read, however wide the terminal."""


class Commands(TyperGroup):
    """A group that lists each command with the whole first paragraph of its help, not just one line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        known = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, (command.help or "").partition("\n\n")[0]) for name, command in known if command]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def commands(text: str, **options: Any) -> typer.Typer:
    """Return an app for a group of commands; `text` is its help."""
    return typer.Typer(
        help=text,
        cls=Commands,
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"max_content_width": WIDTH},
        **options,
    )
