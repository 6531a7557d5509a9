"""Whether the simulated people were still people: repetition, lines against the persona, over-cooperation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mapo.report.document.blocks import Block, Heading, Lines, Words, told
from mapo.scoring.findings import FEW, findings
from mapo.scoring.health import health
from mapo.show.tables import Table
from mapo.types import Dialogue

ABOUT = "A number above its bound is a reason to read some dialogues before believing the score."


def people(sets: Mapping[str, Sequence[Dialogue]]) -> list[Block]:
    """A row a number, a column a set; what is out of its usual range in a sentence."""
    found = {name: findings(health(dialogues).as_json()) for name, dialogues in sets.items() if dialogues}
    rows, said = [], []
    for own in zip(*found.values(), strict=True):  # one number, in every set
        name = own[0].name.partition(" (")[0]
        rows.append([name, *(_percent(f.value) for f in own), _percent(own[0].bound)])
        said += [
            f"{label}: {f.warning}" if len(found) > 1 else f.warning
            for label, f in zip(found, own, strict=True)
            if f.warning
        ]
    if not rows:
        return []
    table = Table(["share of", *found, "usually at most"], rows, note=ABOUT)
    if any(f.value is not None and f.value > f.bound for own in found.values() for f in own):
        quiet = f"What is above its bound rests on fewer than {FEW} lines or dialogues: too few to tell."
    else:
        quiet = "All of it is as usual."
    return [Heading("The simulated people"), table, Lines(said) if said else Words(quiet)]


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{told(100 * value, '.1f')} %"
