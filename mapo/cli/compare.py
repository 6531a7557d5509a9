"""mapo compare: results of several models in one table, with intervals and tests of the differences."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mapo.cli.common.messages import say
from mapo.errors import InputError


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Folders of mapo eval or mapo train, or EMPA result files; NAME=FOLDER names the model. "
            "Folders of one model become one row; the other models are compared with the first.",
        ),
    ],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print LaTeX tables (booktabs).")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, one line per model and score.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with all details.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write to this file instead; needs one of the formats above.")
    ] = None,
) -> None:
    """Compare models on EMPA, EmoBench and EQ-Bench, with paired differences on the same cases.

    Exit status: 0 success; 1 a result is incomplete (see the notes); 2 nothing could be compared.
    """
    from mapo.evals.compare.comparison import compare as compared
    from mapo.evals.compare.tables import FORMS, print_comparison
    from mapo.store import write_atomic

    flags = {"markdown": markdown, "latex": latex, "csv": as_csv, "json": as_json}
    chosen = [form for form, wanted in flags.items() if wanted]
    if len(chosen) > 1:
        raise InputError(f"--{chosen[0]} and --{chosen[1]} cannot be combined", fix="Choose one format")
    if out is not None and not chosen:
        raise InputError(
            "--out needs a format", fix=f"Add one of: {', '.join(f'--{form}' for form in flags)}"
        )
    comparison = compared(runs)
    if not chosen:
        print_comparison(comparison)
    elif out is not None:
        write_atomic(out, FORMS[chosen[0]](comparison))
        say(f"comparison: {out}")
    else:
        typer.echo(FORMS[chosen[0]](comparison), nl=False)
    if any(entry.value is None for entry in comparison.cells.values()):
        raise typer.Exit(1)
