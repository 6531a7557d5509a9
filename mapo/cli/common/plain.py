"""Help as plain text.

Typer's own, drawn by rich, is a table of six columns that share a line, and what does not fit into one is cut
off ("…"). Where nothing is a terminal a line has 80 columns, unless COLUMNS says otherwise: too few for most
commands. Plain text wraps: nothing is lost at any width, and grep finds an option with what it does.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

WIDTH = 110
"""Longer lines are hard to read, however wide the terminal."""


class Commands(TyperGroup):
    """Commands, each listed with the whole first paragraph of its help: the usual list cuts it to a line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        known = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, (command.help or "").partition("\n\n")[0]) for name, command in known if command]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def commands(told: str, **how: Any) -> typer.Typer:
    """A command that has commands; `told` is its help."""
    return typer.Typer(
        help=told,
        cls=Commands,
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"max_content_width": WIDTH},
        **how,
    )
