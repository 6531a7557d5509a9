"""mapo roles fidelity: how far simulated users write like real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from mapo.cli.common.messages import say, say_all


def fidelity(
    real: Annotated[
        list[Path],
        typer.Option(help="Real conversations, as for `mapo scenarios make`: files or folders. Repeatable."),
    ],
    simulated: Annotated[
        list[Path], typer.Option(help="Run directories, or folders of EMPA result files. Repeatable.")
    ],
    person: Annotated[str, typer.Option(help="Name of the person in the real conversations.")] = "",
    out: Annotated[Path | None, typer.Option(help="Also write the result to this JSON file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the folds and resamples.")] = 0,
) -> None:
    """Compare simulated users with real ones: features of their messages, and a classifier that tells them
    apart.

    Exit status: 0 success; 2 there are too few dialogues, or nothing could be read.
    """
    from mapo.realsim.fidelity.compare import compare_users, tables
    from mapo.realsim.fidelity.reading import read_real, read_simulated
    from mapo.show.tables import print_tables
    from mapo.store import write_atomic

    people, skipped = read_real(real, person)
    users, problems = read_simulated(simulated)
    say_all("warning", [*skipped, *problems], most=5)
    result = compare_users(people, users, seed)
    text = json.dumps(result.as_json(), indent=1, ensure_ascii=False)
    if out is not None:
        write_atomic(out, text + "\n")
        say(f"Fidelity written to {out}")
    if as_json:
        typer.echo(text)
    else:
        print_tables(tables(result))
