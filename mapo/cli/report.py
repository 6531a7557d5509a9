"""mapo report: one self-contained HTML file about one or several runs."""

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
            metavar="RUN",
            help="Folders of mapo train, mapo eval or mapo ablate; NAME=FOLDER sets a name. "
            "Several runs are compared.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="HTML file (default: report.html in the run; for several runs, in this folder)."),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Also write Markdown, with the figures as PNG.")
    ] = False,
    figures: Annotated[
        Path | None, typer.Option(help="Folder to which every figure is written as PNG, PDF and SVG.")
    ] = None,
) -> None:
    """Write one self-contained HTML file about one or several runs: scores, curves, credit and dialogues.

    Exit status: 0 success; 1 some runs could not be read (the report lists them); 2 no run could be read.
    """
    from mapo.evals.compare.comparison import split_name
    from mapo.report import build, write
    from mapo.show.figures import can_draw, require_matplotlib

    if figures is not None:
        require_matplotlib()
    content = build(runs)
    where = out or RunDir(split_name(runs[0])[1] if len(runs) == 1 else Path()).report
    if where.suffix.lower() not in (".html", ".htm"):
        where = where.with_name(f"{where.name}.html")
    paths = write(content, where, markdown=markdown, figures=figures)
    drawn = Counter(path.parent for path in paths if path.name.startswith("fig_"))
    for path in paths:
        if not path.name.startswith("fig_"):
            say(f"report: {path}")
    for folder, count in drawn.items():
        say(f"figures: {folder} ({count} files)")
    if not can_draw():
        say(f"The report has no figures because matplotlib is not installed. {install_hint('figures')}")
    if content.lacking:
        say_all("left out", [*content.lacking])
        raise typer.Exit(1 if len(runs) > 1 else 2)
