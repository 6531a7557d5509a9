"""mapo compare: results of several models in one table, and how sure their differences are."""

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
            metavar="RUN...",
            help="Folders of mapo eval or mapo train, or EMPA result files; NAME=FOLDER names the model. "
            "Folders of one model become one row; the other models are compared with the first.",
        ),
    ],
    markdown: Annotated[bool, typer.Option("--markdown", help="As Markdown.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="As LaTeX tables (booktabs).")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="As CSV, one line per model and score.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, with all details.")] = False,
    out: Annotated[Path | None, typer.Option(help="File to write.")] = None,
) -> None:
    """Models side by side: EMPA, EmoBench, EQ-Bench, with paired differences on the same cases.

    Exit status: 0 all well; 1 something is incomplete (the notes say what); 2 nothing could be compared.
    """
    from mapo.evals.compare.comparison import compare as compared
    from mapo.evals.compare.tables import FORMS, print_comparison
    from mapo.store import write_atomic

    flags = {"markdown": markdown, "latex": latex, "csv": as_csv, "json": as_json}
    chosen = [form for form, wanted in flags.items() if wanted]
    if len(chosen) > 1:
        raise InputError(f"--{chosen[0]} and --{chosen[1]}", fix="One form at a time")
    if out is not None and not chosen:
        raise InputError(
            "--out without a form", fix=f"Add one of: {', '.join(f'--{form}' for form in flags)}"
        )
    found = compared(runs)
    if not chosen:
        print_comparison(found)
    elif out is not None:
        write_atomic(out, FORMS[chosen[0]](found))
        say(f"comparison: {out}")
    else:
        typer.echo(FORMS[chosen[0]](found), nl=False)
    if any(entry.value is None for entry in found.cells.values()):
        raise typer.Exit(1)
