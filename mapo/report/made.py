"""The report of `mapo scenarios make`: what became of the conversations, and the scenarios."""

from __future__ import annotations

from pathlib import Path

from mapo.errors import InputError
from mapo.report.document.blocks import Block, BulletList, Heading, Report, StatTile, StatTiles
from mapo.report.training import ledger_table, problem_list
from mapo.runs.contents import integer
from mapo.runs.made_scenarios import COLUMNS, made_notes, made_rows
from mapo.runs.training import read_ledger, read_object
from mapo.show.tables import Table
from mapo.store import RunDir
from mapo.text import plural


def made_report(root: Path, name: str | None = None) -> Report:
    """Build the report of made scenarios."""
    problems: list[str] = []
    data = read_object(RunDir(root).make_report, problems)
    if not data:
        raise InputError(
            f"the run has no usable {RunDir.make_report.name}: it has not finished",
            where=str(root),
            fix="Finish it with --resume",
        )
    counts = {
        "Conversations": integer(data.get("asked")),
        "Scenarios made": integer(data.get("made")),
        "Refused": _length(data.get("refused")),
        "Failed": _length(data.get("failed")),
    }
    tiles = [StatTile(label, str(n)) for label, n in counts.items() if n is not None]
    rows = [list(row) for row in made_rows(root)]
    blocks: list[Block] = [
        StatTiles(tiles),
        BulletList(made_notes(data)),
        Heading("Scenarios"),
        Table(["scenario", *COLUMNS[1:]], rows, left=len(COLUMNS)),
        *ledger_table(read_ledger(root, problems)),
        *problem_list(problems),
    ]
    title = f"Scenarios from conversations: {name or root.resolve().name}"
    failed = counts["Failed"] or 0
    caution = f"Incomplete: {plural(failed, 'conversation')} failed. Use --resume." if failed else ""
    return Report(title, f"{root.resolve().name}: Real-to-Sim.", blocks, caution=caution)


def _length(data: object) -> int | None:
    return len(data) if isinstance(data, list) else None
