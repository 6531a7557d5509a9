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
    cases: Annotated[
        str | None, typer.Option(help="Only these: a,b,c; official: EMPA's 30 test cases.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    domain: Domain = None,
) -> None:
    """List scenarios, one per line."""
    from mapo.scenarios.official import choose_cases
    from mapo.scenarios.sets import load_scenarios

    chosen = choose_cases(load_scenarios(source, domain), cases, source)
    rows = [{key: getattr(s, key) for key in COLUMNS} for s in chosen]
    if as_json:
        typer.echo(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    print_table(COLUMNS, [[str(cell) for cell in row.values()] for row in rows], f"{len(rows)} scenarios")
