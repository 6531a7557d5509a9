"""Health of the simulated users: repetition, contradictions of the persona, over-cooperation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mapo.domain_folders import SHIPPED
from mapo.errors import MapoError
from mapo.report.document.blocks import Block, BulletList, Heading, Paragraph, format_number
from mapo.scenarios.sets import BUILTIN, load_scenarios
from mapo.scoring.findings import BOUNDS, FEW, findings
from mapo.scoring.health import health
from mapo.show.tables import Table
from mapo.types import Dialogue

STORY = tuple(BOUNDS[key][0] for key in ("told_early", "off_persona"))
"""The measures that need the story and the persona of the scenarios."""
NOTE = (
    "If a share exceeds its limit, read some dialogues before trusting the score. A dash means that there is "
    f"nothing to measure, or fewer than {FEW} messages (dialogues, for endings)."
)


def user_health(
    sets: Mapping[str, Sequence[Dialogue]], recorded: Mapping[str, Any] | None = None
) -> list[Block]:
    """Return a table with a row per measure and a column per set, and warnings for unusual values.

    Two measures need the scenarios. For scenarios that are not shipped, the last set takes them from
    `recorded`, the health that the run wrote.
    """
    by_set = {name: findings(_numbers(dialogues)) for name, dialogues in sets.items() if dialogues}
    if by_set and recorded:
        last = list(by_set)[-1]
        known = {finding.name: finding for finding in findings(recorded)}
        by_set[last] = [
            known.get(f.name, f) if f.value is None and f.name in STORY else f for f in by_set[last]
        ]
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
    table = Table(["share of", *by_set, "usual maximum"], rows, note=NOTE)
    measured = any(f.value is not None for measures in by_set.values() for f in measures)
    summary = "All reported shares are within their limits." if measured else "There is too little to report."
    return [Heading("Simulated users"), table, BulletList(warnings) if warnings else Paragraph(summary)]


def _numbers(dialogues: Sequence[Dialogue]) -> dict[str, Any]:
    """Return the health of dialogues, checked against the scenarios that ship with their domain."""
    domain = dialogues[0].rubric
    try:
        shipped = load_scenarios(f"{BUILTIN}all", domain) if domain in SHIPPED else []
    except MapoError:
        shipped = []
    return health(dialogues, {scenario.id: scenario for scenario in shipped}).as_json()


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{format_number(100 * value, '.1f')} %"
