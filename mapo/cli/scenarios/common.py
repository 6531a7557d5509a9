"""What the scenario commands share: reading a set, and tables of scenarios."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mapo.cli.common.messages import say, say_all
from mapo.errors import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.table import Table

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


def new_table(columns: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column == "id")
    return table


def escaped(cells: Iterable[object]) -> list[str]:
    from rich.markup import escape

    from mapo.text import printable

    return [escape(printable(str(cell))) for cell in cells]


def print_table(table: Table, note: str) -> None:
    """Print the table on standard output, and the note on standard error."""
    from mapo.text import terminal

    console = terminal()
    console.width = max(console.width, 100)  # ids stay whole, and a pipe has no width of its own
    console.print(table)
    say(note)
