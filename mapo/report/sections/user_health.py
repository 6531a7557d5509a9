"""Health of the simulated users: repetition, contradictions of the persona, over-cooperation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mapo.report.document.blocks import Block, BulletList, Heading, Paragraph, format_number
from mapo.scoring.findings import FEW, findings
from mapo.scoring.health import health
from mapo.show.tables import Table
from mapo.types import Dialogue

NOTE = "If a share exceeds its limit, read some dialogues before trusting the score."


def user_health(sets: Mapping[str, Sequence[Dialogue]]) -> list[Block]:
    """Return a table with a row per measure and a column per set, and warnings for unusual values."""
    by_set = {name: findings(health(dialogues).as_json()) for name, dialogues in sets.items() if dialogues}
    rows, warnings = [], []
    for measures in zip(*by_set.values(), strict=True):  # one measure in every set
        name = measures[0].name.partition(" (")[0]
        rows.append([name, *(_percent(f.value) for f in measures), _percent(measures[0].bound)])
        warnings += [
            f"{label}: {f.warning}" if len(by_set) > 1 else f.warning
            for label, f in zip(by_set, measures, strict=True)
            if f.warning
        ]
    if not rows:
        return []
    table = Table(["share of", *by_set, "expected at most"], rows, note=NOTE)
    if any(f.value is not None and f.value > f.bound for measures in by_set.values() for f in measures):
        summary = f"Shares above their limit rest on fewer than {FEW} messages or dialogues, too few to tell."
    else:
        summary = "All shares are within their limits."
    return [Heading("Simulated users"), table, BulletList(warnings) if warnings else Paragraph(summary)]


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{format_number(100 * value, '.1f')} %"
