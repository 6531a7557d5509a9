"""Faults of the roles: shares of turns, masked turns, and the role behind failed dialogues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mapo.report.document import plots
from mapo.report.document.blocks import Block, Heading, format_number
from mapo.report.document.numbers import Point, series
from mapo.runs.training import TrainingRun
from mapo.sandbox.faults.detect import ROLES
from mapo.scoring.attribution import OFTEN, Attribution, attribution
from mapo.show.figures import Panel, Picture
from mapo.show.tables import Cell, NumberCell, Table
from mapo.types import Dialogue

MAX_KINDS = 12
"""Faults that are listed, the most frequent ones."""
NOTE = (
    "A dialogue that ended without success is attributed to user, director or judge if that role was at "
    f"fault in {OFTEN:.0%} of its turns, otherwise to the policy."
)


def faults(run: TrainingRun) -> list[Block]:
    """Show what was wrong with the turns of training and tests; nothing if no fault is recorded."""
    trained = [d for step in sorted(run.played) for d in run.played[step]]
    sets = {"before": run.before, "training": trained, "after": run.after}
    attributions = {name: attribution(dialogues) for name, dialogues in sets.items() if dialogues}
    if not any(each.kinds for each in attributions.values()):
        return []
    return [Heading("Faults of the roles"), _failed(attributions), _kinds(attributions, sets), *_by_step(run)]


def _failed(sets: Mapping[str, Attribution]) -> Table:
    rows: list[list[Cell]] = []
    for name, each in sets.items():
        shares = [_share(each.blamed.get(role, 0), each.failed) for role in ROLES]
        rows.append([name, str(each.failed), *shares])
    return Table(["dialogues", "failed", *ROLES], rows, title="Failed dialogues", note=NOTE)


def _share(n: int, of: int) -> Cell:
    return NumberCell(str(n), f"{n / of:.0%}") if n else "0"


def _kinds(sets: Mapping[str, Attribution], dialogues: Mapping[str, Sequence[Dialogue]]) -> Table:
    turns = {name: sum(len(d.turns) for d in dialogues[name] if d.usable) for name in sets}
    kinds = {kind: n for each in sets.values() for kind, n in each.kinds.items()}
    shown = sorted(kinds, key=lambda kind: -max(each.kinds.get(kind, 0) for each in sets.values()))
    rows: list[list[Cell]] = [
        [kind, *(_percent(each.kinds.get(kind, 0), turns[name]) for name, each in sets.items())]
        for kind in shown[:MAX_KINDS]
    ]
    return Table(["share of turns with", *sets], rows, title="Faults")


def _percent(n: int, of: int) -> str:
    return f"{format_number(100 * n / max(1, of), '.1f')} %"


def _nonzero(line: Sequence[Point]) -> bool:
    return any(point.y for point in line)


def _by_step(run: TrainingRun) -> list[Block]:
    lines: dict[str, list[Point]] = {
        f"{role} at fault": line
        for role in ROLES
        if _nonzero(line := series(run.steps, "faults", "turns", role))
    }
    masked = series(run.steps, "masked_faults")
    if masked:
        lines["masked in the loss"] = masked
    if not lines:
        return []
    caption = "Share of turns in which a role was at fault."
    if masked:
        caption += " Replies to faulty user messages are masked: they are not trained and are no peers."
    return [Picture("fig_faults", caption, [Panel("Faults", plots.curves(lines, "share of turns"))])]
