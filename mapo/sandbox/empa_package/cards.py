"""What EMPA's agents get of a case: the card and story as they are, and the precomputed start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from mapo.errors import InputError
from mapo.measure.rubric import Rubric
from mapo.scenarios.empa_cards import STORIES, load_json
from mapo.scenarios.start_levels import read_start_levels
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
    cards = {}
    sets = {folder: _CardSet(folder, data, rubric) for folder in set(map(_set_folder, files.values()))}
    for case, file in files.items():
        known = sets[_set_folder(file)]
        story = known.stories.get(case)
        if file.suffix != ".md" or not isinstance(story, dict):
            raise InputError(
                f"scenario {case} is not one of EMPA's cards with a story, which EMPA's prompts need",
                where=str(file),
                fix=f"Use a folder with cases/*.md and {STORIES} (--scenarios), or mapo's own prompts",
            )
        levels = known.levels.get(case)
        start = {key: Mark(level) for key, level in levels.items()} if levels else None
        cards[case] = EmpaCard(_text(file), story, start, known.goals.get(case) if start else None)
    return cards


class _CardSet:
    """Stories, start levels and goals of one folder of cards, by case."""

    def __init__(self, folder: Path, data: Path, rubric: Rubric) -> None:
        self.stories = _by_case(folder / STORIES, "剧本编号")
        self.levels: dict[str, dict[str, int]] = {}
        self.goals: dict[str, Goal] = {}
        file = next((x / START_FILE for x in (folder, data) if (x / START_FILE).exists()), None)
        if file is None:
            return
        self.levels = read_start_levels(file)
        for case, entry in _by_case(file, "script_id").items():
            if isinstance(entry, dict) and entry.get("epm"):
                self.goals[case] = _goal(entry["epm"], len(rubric.axes), f"{file}, {case}, epm")


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
    data = load_json(file) if file.exists() else {}
    if isinstance(data, list):
        data = {item[key]: item for item in reversed(data) if isinstance(item, dict) and key in item}
    if not isinstance(data, dict):
        raise InputError("not a JSON object or list of cases", where=str(file), fix="Restore EMPA's file")
    return data


def _goal(values: Any, axes: int, where: str) -> Goal:
    """Return the precomputed thresholds of a case."""
    try:
        direction = tuple(float(x) for x in values["v_star_0"])
        goal = Goal(direction, *(float(values[f"epsilon_{k}"]) for k in ("distance", "direction", "energy")))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"the precomputed thresholds cannot be read ({error!r})", where=where, fix="Restore EMPA's file"
        ) from None
    if len(direction) != axes or not all(
        map(isfinite, (*direction, goal.distance, goal.crossing, goal.energy))
    ):
        raise InputError(
            "the precomputed thresholds are not numbers for every axis",
            where=where,
            fix="Restore EMPA's file",
        )
    return goal
