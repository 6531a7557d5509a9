"""mapo report: one file to send, of a run or of several."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from mapo.cli.common.messages import say, say_all
from mapo.errors import install_hint
from mapo.store import RunDir


def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Folders of mapo train, mapo eval or mapo ablate; NAME=FOLDER gives a name. "
            "Several are overlaid.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The HTML file (default: report.html in the run, or here for several)."),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Also write Markdown, with the figures as PNG.")
    ] = False,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for every figure as PNG, PDF and SVG (fig_*).")
    ] = None,
) -> None:
    """One self-contained HTML file of a run or of several: scores, curves, credit, dialogues; opens offline.

    Exit status: 0 all well; 1 some of the runs could not be read (the report says which); 2 none could.
    """
    from mapo.evals.compare.comparison import split_name
    from mapo.report import build, write
    from mapo.show.figures import can_draw, require_matplotlib

    if figures is not None:
        require_matplotlib()
    found = build(runs)
    where = out or RunDir(split_name(runs[0])[1] if len(runs) == 1 else Path()).report
    if where.suffix.lower() not in (".html", ".htm"):
        where = where.with_name(f"{where.name}.html")
    paths = write(found, where, markdown=markdown, figures=figures)
    drawn = Counter(path.parent for path in paths if path.name.startswith("fig_"))
    for path in paths:
        if not path.name.startswith("fig_"):
            say(f"report: {path}")
    for folder, count in drawn.items():
        say(f"figures: {folder} ({count} files)")
    if not can_draw():
        say(f"The report has no figures because matplotlib is not installed. {install_hint('figures')}")
    if found.lacking:
        say_all("left out", [*found.lacking])
        raise typer.Exit(1)
