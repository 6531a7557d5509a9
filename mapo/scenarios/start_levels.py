"""Start levels by scenario: how much each person needs before the dialogue, known instead of judged.

Runs that are compared should share them: a judge that fills in the start form of a scenario again may mark it
differently, and every threshold of the scenario depends on it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from mapo.domain_folders import DEFAULT
from mapo.errors import InputError, RubricError, ScenarioError
from mapo.measure.rubric import Rubric
from mapo.scenarios.empa_cards import load_json
from mapo.scenarios.scenario import Scenario

StartLevelTable = Mapping[str, Mapping[str, int]]
"""scenario id -> indicator -> level"""

_INDICATOR = re.compile(r"[A-Z]\.\d")


def read_start_levels(source: Path) -> dict[str, dict[str, int]]:
    """Read known start levels by case, from a JSON file or a folder of EMPA result files.

    The JSON file is {case: {"C.1": 2, ...}}, {case: {"levels": {...}}}, or EMPA's precomputed start file: a
    list of entries with `script_id`, or an object of them by case, each with `status`, `P_0` and `iedr`.
    Precomputed entries that did not succeed are left out, as in EMPA.
    """
    if source.is_dir():
        return _recorded_levels(source)
    data = load_json(source)
    if isinstance(data, list) and all(isinstance(x, dict) and "script_id" in x for x in data):
        data = {str(item["script_id"]): item for item in reversed(data)}  # the first of a case counts
    if not isinstance(data, dict) or not data:
        raise ScenarioError(
            "not a JSON object of cases", where=str(source), fix='Expected {"case": {"C.1": 2, ...}, ...}'
        )
    table = {}
    for case, item in data.items():
        if isinstance(item, dict) and ("iedr" in item or "status" in item):
            if item.get("status") == "success":
                table[case] = _precomputed(item, f"{source}, {case}")
        else:
            table[case] = _levels(item, f"{source}, {case}")
    return table


def check_start_levels(table: StartLevelTable, scenarios: Iterable[Scenario], rubric: Rubric) -> list[str]:
    """Raise InputError for start levels that do not fit the rubric; return warnings about missing ones."""
    known, chosen = set(table), {s.id for s in scenarios}
    for case in sorted(known & chosen):
        try:
            rubric.start(table[case])
        except RubricError as error:
            raise InputError(str(error), where=f"start levels of {case}") from None
    warnings = [f"no start levels for {case}" for case in sorted(chosen - known)]
    return warnings + ([] if known & chosen else ["the start levels name none of the chosen scenarios"])


def estimate_start_levels(
    known: StartLevelTable, examples: Iterable[Scenario], scenarios: Iterable[Scenario], rubric: Rubric
) -> dict[str, dict[str, int]]:
    """Return start levels by scenario, estimated from its priorities.

    The level of an indicator is the rounded mean of the `examples` whose start levels are known and that give
    its axis the same priority, or else of all of them. Known start levels are kept as they are.
    """
    members = [scenario for scenario in examples if scenario.id in known]
    if not members:
        raise InputError("the known start levels name none of the example scenarios")
    table = {}
    for scenario in scenarios:
        if scenario.id in known:
            table[scenario.id] = dict(known[scenario.id])
        else:
            table[scenario.id] = {
                indicator.key: _mean_level(
                    known,
                    [
                        m
                        for m in members
                        if m.priorities.get(indicator.axis) == scenario.priorities.get(indicator.axis)
                    ]
                    or members,
                    indicator.key,
                )
                for indicator in rubric.indicators
            }
    return table


def estimation_errors(
    known: StartLevelTable, examples: Iterable[Scenario], rubric: Rubric
) -> dict[str, list[int]]:
    """Return, by indicator, estimated minus known level of each example, estimated from the others."""
    members = [scenario for scenario in examples if scenario.id in known]
    errors: dict[str, list[int]] = {indicator.key: [] for indicator in rubric.indicators}
    for scenario in members:
        others = {case: levels for case, levels in known.items() if case != scenario.id}
        estimate = estimate_start_levels(others, members, [scenario], rubric)[scenario.id]
        for key, differences in errors.items():
            differences.append(estimate[key] - known[scenario.id][key])
    return errors


def _mean_level(known: StartLevelTable, members: Sequence[Scenario], key: str) -> int:
    return math.floor(fmean(known[member.id][key] for member in members) + 0.5)


def _precomputed(item: Mapping[str, Any], where: str) -> dict[str, int]:
    """Return the levels of an entry of EMPA's precomputed start file. EMPA starts at its `P_0`, so the two
    must agree."""
    form = item.get("iedr")
    levels = _levels(_indicators(form) if isinstance(form, dict) else None, f"{where}, iedr")
    start = item.get("P_0")
    if not isinstance(start, dict):
        return levels
    try:
        rubric = Rubric.load(DEFAULT)
        computed = dict(zip(rubric.keys, rubric.start(levels), strict=True))
    except RubricError as error:
        raise ScenarioError(str(error), where=where) from None
    if computed != start:
        raise ScenarioError(
            f"the start P_0 is {start}, but the levels give {computed}",
            where=where,
            fix="Correct one of the two",
        )
    return levels


def _indicators(form: Mapping[str, Any]) -> dict[str, Any]:
    return {key: level for key, level in form.items() if _INDICATOR.fullmatch(key)}


def _recorded_levels(folder: Path) -> dict[str, dict[str, int]]:
    known: dict[str, dict[str, int]] = {}
    for path in sorted(folder.rglob("*_result.json")):
        record = load_json(path)
        form = record
        for key in ("epj", "iedr_details", "filled_iedr"):
            form = form.get(key) if isinstance(form, dict) else None
        if not isinstance(form, dict):
            raise ScenarioError(
                "the file has no start form", where=str(path), fix="Expected an EMPA result file"
            )
        levels = _levels(_indicators(form), f"{path}, filled_iedr")
        case = str(record.get("script_id", path.name.removesuffix("_result.json")))
        if known.setdefault(case, levels) != levels:
            raise ScenarioError(
                f"the start levels of {case} differ between files",
                where=str(path),
                fix="Use the folder of one run",
            )
    if not known:
        raise ScenarioError(
            "the folder contains no *_result.json",
            where=str(folder),
            fix="Use EMPA result files or a JSON file",
        )
    return known


def _levels(item: Any, where: str) -> dict[str, int]:
    levels = item.get("levels", item) if isinstance(item, dict) else None
    if not isinstance(levels, dict) or not levels:
        raise ScenarioError("not an object of levels", where=where, fix='Expected {"C.1": 2, ...}')
    for key, level in levels.items():
        if type(level) is not int or level < 0:
            raise ScenarioError(
                f"level {level!r} is not an integer from 0", where=f"{where}, {key}", fix="See the rubric"
            )
    return dict(levels)
