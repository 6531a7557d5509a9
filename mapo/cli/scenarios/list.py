"""mapo scenarios list: one line per scenario."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from mapo.cli.common.options import Domain
from mapo.cli.scenarios.common import SOURCE, print_table

COLUMNS = ("id", "category", "axis", "difficulty", "threshold", "language")


def list_scenarios(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=SOURCE)] = "builtin:all",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    domain: Domain = None,
) -> None:
    """List scenarios, one per line."""
    from mapo.scenarios.sets import load_scenarios

    rows = [{key: getattr(s, key) for key in COLUMNS} for s in load_scenarios(source, domain)]
    if as_json:
        typer.echo(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    print_table(COLUMNS, [[str(cell) for cell in row.values()] for row in rows], f"{len(rows)} scenarios")
