"""What EMPA's agents get of a case: the card and story as they are, and the precomputed start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mapo.errors import InputError, RubricError
from mapo.measure.rubric import Rubric
from mapo.scenarios.empa_cards import STORIES
from mapo.types import Goal, Mark, StartLevels
from mapo.untrusted import read_file

START_FILE = "precomputed/iedr_batch_results.json"


@dataclass(frozen=True, slots=True)
class EmpaCard:
    """One case. `start` and `goal` are None if there is no precomputed entry for it."""

    text: str
    story: Mapping[str, Any]
    start: StartLevels | None = None
    goal: Goal | None = None


def read_empa_cards(files: Mapping[str, Path], data: Path, rubric: Rubric) -> dict[str, EmpaCard]:
    """Read the cards in `files` with their stories. A start file in the folder of the cards comes before the
    one in `data`, the package's data folder."""
    folders = {case: _set_folder(file) for case, file in files.items()}
    stories: dict[Path, dict[str, Any]] = {}
    starts: dict[Path, tuple[Path, dict[str, Any]]] = {}
    for folder in dict.fromkeys(folders.values()):
        stories[folder] = _by_case(folder / STORIES, "剧本编号")
        start_file = next((x / START_FILE for x in (folder, data) if (x / START_FILE).exists()), None)
        starts[folder] = (
            (folder, {}) if start_file is None else (start_file, _by_case(start_file, "script_id"))
        )
    cards = {}
    for case, file in files.items():
        story = stories[folders[case]].get(case)
        if file.suffix != ".md" or not isinstance(story, dict):
            raise InputError(
                f"scenario {case} is not one of EMPA's cards with a story, which EMPA's prompts need",
                where=str(file),
                fix=f"Use a folder with cases/*.md and {STORIES} (--scenarios), or mapo's own prompts",
            )
        start_file, entries = starts[folders[case]]
        start, goal = _start(entries.get(case), f"{start_file}, {case}", rubric)
        cards[case] = EmpaCard(_text(file), story, start, goal)
    return cards


def _set_folder(file: Path) -> Path:
    return file.parent.parent if file.parent.name == "cases" else file.parent


def _text(file: Path) -> str:
    """Return a card with its line ends translated, as Python reads text."""
    try:
        text = read_file(file).decode("utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read ({error})", where=str(file), fix="Restore the card") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _by_case(file: Path, key: str) -> dict[str, Any]:
    """Return the entries of a JSON file by case: an object, or a list in which the first of a case counts."""
    if not file.exists():
        return {}
    try:
        data = json.loads(read_file(file))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be read ({error})", where=str(file), fix="Restore EMPA's file") from None
    if isinstance(data, list):
        data = {item[key]: item for item in reversed(data) if isinstance(item, dict) and key in item}
    if not isinstance(data, dict):
        raise InputError("not a JSON object or list of cases", where=str(file), fix="Restore EMPA's file")
    return data


def _start(entry: Any, where: str, rubric: Rubric) -> tuple[StartLevels | None, Goal | None]:
    """Return the start levels and the goal of a precomputed entry."""
    if not isinstance(entry, dict) or entry.get("status") != "success":
        return None, None
    try:
        levels = {item.key: entry["iedr"][item.key] for item in rubric.indicators}
        position = rubric.start(levels)
        recorded = tuple(entry["P_0"][key] for key in rubric.keys)
        values = entry.get("epm")
        goal = None
        if values:
            near, crossing, energy = (
                float(values[f"epsilon_{k}"]) for k in ("distance", "direction", "energy")
            )
            goal = Goal(tuple(float(x) for x in values["v_star_0"]), near, crossing, energy)
    except (KeyError, TypeError, ValueError, RubricError) as error:
        raise InputError(
            f"the precomputed start cannot be read ({error!r})", where=where, fix="Restore EMPA's file"
        ) from None
    if recorded != position:
        raise InputError(
            f"P_0 is {list(recorded)}, but its levels give {list(position)}",
            where=where,
            fix="Restore EMPA's file, or remove it: then the judge fills in the start form",
        )
    return {key: Mark(level) for key, level in levels.items()}, goal
