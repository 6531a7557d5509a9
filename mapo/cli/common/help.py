"""Help as plain text.

Typer draws help with rich, as a table whose cells are cut off ("…") where they do not fit; in a log, which
counts as 80 columns wide, most commands lose text. Plain text wraps instead: nothing is lost at any width,
and grep finds an option together with its description.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

WIDTH = 110
"""Longer lines are hard to read, however wide the terminal."""


class Command(TyperCommand):
    """A command with a plain usage line, which says what a missing option or argument is."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [_usage(p) for p in self.get_params(ctx) if p.param_type_name == "argument"]
        return ["[OPTIONS]", *arguments]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            text = getattr(error.param, "help", None)
            if text and not error.message:  # it is missing; other errors have a message
                error.message = (
                    f"What to give: {text[0] if text[1:2].isupper() else text[0].lower()}{text[1:]}"
                )
            raise


def _usage(argument: Any) -> str:
    """Return an argument as in "RUN..." and "[CONFIG]"; a metavar with brackets is complete already."""
    name: str = argument.metavar or argument.name.upper()
    if name.startswith("["):
        return name
    several = "" if argument.nargs == 1 else "..."
    return f"{name}{several}" if argument.required else f"[{name}]{several}"


class App(typer.Typer):
    """A typer app whose commands are of the class above."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        return super().command(name, **{"cls": Command, **options})


class Commands(TyperGroup):
    """A group that lists each command with the whole first paragraph of its help, not just one line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        known = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, (command.help or "").partition("\n\n")[0]) for name, command in known if command]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def commands(text: str, **options: Any) -> typer.Typer:
    """Return an app for a group of commands; `text` is its help."""
    return App(
        help=text,
        cls=Commands,
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"max_content_width": WIDTH},
        **options,
    )
