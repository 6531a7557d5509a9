"""What the scenario commands share: reading a set, and tables of scenarios."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mapo.cli.common.messages import say, say_all
from mapo.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mapo.scenarios.sets import ScenarioSet

SOURCE = (
    "builtin:train|validation|test|all, a folder of TOML files, one file, a folder of EMPA's cards, "
    "or MANIFEST.json:SPLIT."
)


def read_whole_set(source: str, domain: str | None) -> ScenarioSet:
    """Read a set of scenarios; refuse it if some of it cannot be read."""
    from mapo.scenarios.sets import read_set

    found = read_set(source, domain)
    if broken := [str(error) for error in found.errors] + list(found.unreadable.values()):
        say_all("error", broken)
        raise ScenarioError("not all of it can be read", where=source, fix="Mend or remove those files first")
    return found


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], note: str) -> None:
    """Print a table on standard output, and the note on standard error."""
    from mapo.show.tables import Table, print_tables

    print_tables([Table(columns, rows, left=len(columns))], 100)  # ids stay whole, and a pipe has no width
    say(note)
