"""Reference scores of test worlds, for tables and for lines in charts.

They are stored beside the domain (`reference.json`) and measured by `scripts/reference_scores.py`. Each holds
for one judge of the scripted people; a score under another judge must not be compared with it. For a judge
that is a model, it holds for these weights: a test fails if the shipped judge changes and its scores do not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mapo.domain_folders import known_folder
from mapo.errors import RecordError
from mapo.scripted.world import SCRIPTED, World
from mapo.show.tables import Cell

REFERENCE_FILE = "reference.json"
REFERENCE_NOTE = "References: the built-in test scenarios with the rubric's turn limit."
REFERENCE_SCHEMA = "mapo.reference/2"
ANY = "any"
"""Judge of a value that follows from the formula."""


@dataclass(frozen=True, slots=True)
class ReferenceScore:
    """One reference value. `command` reproduces it; it is empty for a value that follows from the formula."""

    name: str
    label: str
    epm_q: float
    source: str
    command: str = ""
    scenarios: int = 0
    dialogues: int = 0
    passes: int = 0
    judge: str = SCRIPTED
    judge_weights: str = ""
    """Fingerprint of the judge model; the score is valid only for these weights."""
    chart: bool = True
    """Whether charts draw it as a line."""


def reference_scores(world: World) -> tuple[ReferenceScore, ...]:
    """Return the reference scores of a test world, lowest first; empty if its domain has none.

    The domain's name is also the name of its rubric.
    """
    folder = known_folder(world.domain)
    if folder is None or not (folder / REFERENCE_FILE).is_file():
        return ()
    return tuple(score for score in _read(folder / REFERENCE_FILE) if score.judge in (world.judge, ANY))


def reference_lines(world: World | None) -> tuple[ReferenceScore, ...]:
    """Return the scores to draw in a chart; none unless it shows a test world."""
    return tuple(score for score in reference_scores(world) if score.chart) if world else ()


def reference_rows(world: World, columns: int) -> list[list[Cell]]:
    """Return one table row per reference score: name, EPM-Q, passes, then "-" up to `columns` cells."""
    return [
        [
            f"reference: {score.label}",
            f"{score.epm_q:.2f}",
            f"{score.passes}/{score.dialogues}" if score.dialogues else "-",
            *["-"] * (columns - 3),
        ]
        for score in reference_scores(world)
    ]


def reference_text(world: World) -> str:
    """Return the reference scores as one sentence, or an empty string."""
    values = "; ".join(f"{score.label} {score.epm_q:.1f}" for score in reference_scores(world))
    return f"Reference EPM-Q on the test scenarios of this test world: {values}." if values else ""


@lru_cache(maxsize=16)
def _read(file: Path) -> tuple[ReferenceScore, ...]:
    try:
        data: dict[str, Any] = json.loads(file.read_bytes())
        if data["schema"] != REFERENCE_SCHEMA:
            raise ValueError(f"schema is {data['schema']!r}, expected {REFERENCE_SCHEMA!r}")
        scores = [ReferenceScore(**entry) for entry in data["scores"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"the reference scores cannot be read ({error})",
            where=str(file),
            fix="Restore the file, or delete it to show no reference scores",
        ) from error
    return tuple(sorted(scores, key=lambda score: score.epm_q))
