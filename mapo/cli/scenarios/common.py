"""Shared by the scenario commands: reading a set, and printing a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mapo.cli.common.messages import say, say_all
from mapo.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mapo.scenarios.sets import ScenarioSet

SOURCE = (
    "builtin:train|validation|test|all, a folder of TOML files, one file, a folder of EMPA cards, "
    "CARDS:train|test|published-727, or MANIFEST.json:SPLIT."
)


def read_whole_set(source: str, domain: str | None) -> ScenarioSet:
    """Read a set of scenarios. Raise ScenarioError if any of it cannot be read."""
    from mapo.scenarios.sets import read_set

    scenarios = read_set(source, domain)
    if broken := [str(error) for error in scenarios.errors] + list(scenarios.unreadable.values()):
        say_all("error", broken)
        raise ScenarioError(
            f"{len(broken)} scenarios cannot be read",
            where=source,
            fix="Fix or remove the files listed above",
        )
    return scenarios


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], note: str) -> None:
    """Print a table to standard output, and a note to standard error."""
    from mapo.show.tables import Table, print_tables

    print_tables([Table(columns, rows, left=len(columns))])
    say(note)
