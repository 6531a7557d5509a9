"""Reader of EMPA result files: one JSON object per dialogue, `script_003_result.json`.

Files are read as EMPA scores them: an unscored turn counts as no movement, a misspelt level key as level 0.
Positions and metrics are recomputed from the levels; recorded values that differ are listed.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from mapo.config import EMPA_PROMPTS
from mapo.errors import RecordError, RubricError
from mapo.measure.epmq import indices
from mapo.measure.potential import Trajectory
from mapo.measure.rubric import Rubric
from mapo.runs.files import read_bytes
from mapo.scoring.result import Result, ending_differences
from mapo.types import (
    AxisMarks,
    Dialogue,
    Ending,
    Goal,
    Levels,
    Mark,
    PotentialState,
    Reply,
    StopReason,
    Turn,
)

_T = TypeVar("_T")
_CAST = {"user": "actor_model", "director": "director_model", "judge": "judger_model"}
"""Keys of a file that name the players."""


def read_result(file: Path, profile: str = "published", rubric: Rubric | None = None) -> Result:
    """Read one result file."""
    where = str(file)
    data = _load(file)
    case = _get(data, "script_id", str, where)
    record = _judgements(data, where)
    zone = record.get("epsilon", 1.0)
    if not _is_number(zone) or zone < 0:
        raise RecordError(
            f"epsilon is {zone!r}, not a number of at least 0",
            where=f"{where}, epj",
            fix="Its usual value is 1.0",
        )
    rubric = replace(rubric or Rubric.load("empathy"), zone=float(zone))
    differences: list[str] = []
    notes: list[str] = []
    path = Trajectory(
        rubric,
        _empa_start(record, rubric, where, differences),
        profile,
        goal=_empa_goal(record, profile, rubric),
    )
    trajectory = _get(record, "trajectory", list, f"{where}, epj")
    if len(trajectory) < 2:
        raise RecordError(
            "epj.trajectory has no turn: the dialogue has no reply yet",
            where=where,
            fix="Leave the file out",
        )
    differences += _turn_differences(trajectory[0], path.now, f"{where}, turn 0")
    unscored, ending = 0, None
    for number, entry in enumerate(trajectory[1:], 1):
        place = f"{where}, turn {number}"
        if not isinstance(entry, dict):
            raise RecordError("the entry is not an object", where=f"{where}, epj.trajectory[{number}]")
        form, missing_keys = _empa_levels(entry.get("mdep_analysis"), rubric, place)
        unscored += form is None
        notes += [f"{place}: no '{key}', counted as level 0" for key in missing_keys]
        state = path.judge(form if form is not None else _no_movement(rubric))
        differences += _turn_differences(entry, state, place)
        if ending := path.ending():
            break
    differences += _goal_differences(record, path, where)
    differences += ending_differences(path, ending, len(trajectory) - 1, _empa_ending(data, record), where)
    return Result(
        model=file.parent.resolve().name,
        case=case,
        path=path,
        ending=ending,
        indices=indices(path),
        unscored=unscored,
        id=file.stem,
        cast=_players(data),
        prompts=_prompts(data, record),
        differences=differences,
        notes=notes,
    )


def read_dialogue(file: Path, rubric: Rubric | None = None) -> Dialogue:
    """Read the text, levels and start of one result file as a dialogue. Messages and forms are matched by
    position."""
    where = str(file)
    data, rubric = _load(file), rubric or Rubric.load("empathy")
    record = _judgements(data, where)
    entries = _get(record, "trajectory", list, f"{where}, epj")[1:]
    history = [line for line in _get(data, "history", list, where) if isinstance(line, dict)]
    lines, replies = (
        [str(line.get("content") or "") for line in history if line.get("role") == role]
        for role in ("actor", "test_model")
    )
    turns = []
    for number, (line, reply, entry) in enumerate(zip(lines, replies, entries, strict=False), 1):
        form = entry.get("mdep_analysis") if isinstance(entry, dict) else None
        levels, _ = _empa_levels(form, rubric, f"{where}, turn {number}")
        turns.append(Turn(line, Reply(reply), levels))
    if not turns:
        raise RecordError("the dialogue has no turn", where=where, fix="Leave the file out")
    return Dialogue(
        id=file.stem.removesuffix("_result"),
        scenario=_get(data, "script_id", str, where),
        model=file.parent.resolve().name,
        rubric=rubric.name,
        profile="published",
        start_levels={},
        start=_empa_start(record, rubric, where, []),
        turns=tuple(turns),
        ending=_empa_ending(data, record),
        cast=_players(data),
        prompts=_prompts(data, record),
    )


def read_dialogues_in(folder: Path, problems: list[str], rubric: Rubric | None = None) -> Iterator[Dialogue]:
    """Yield the dialogues of all result files in a folder and below. Files that cannot be read are added to
    `problems`."""
    for file in sorted(folder.rglob("*_result.json")):
        try:
            yield read_dialogue(file, rubric)
        except RecordError as error:
            problems.append(str(error))


def _judgements(data: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the judge's part of a file, in which every turn is judged."""
    record: dict[str, Any] = _get(data, "epj", dict, where)
    if record.get("K", 1) != 1:
        raise RecordError(
            f"the dialogue is judged every {record['K']!r} turns; only K = 1 can be read",
            where=where,
            fix="Leave the file out",
        )
    return record


def _players(data: dict[str, Any]) -> dict[str, str]:
    return {role: name for role, key in _CAST.items() if isinstance(name := data.get(key), str) and name}


def _prompts(data: dict[str, Any], record: dict[str, Any]) -> str:
    """Return the prompts of a file's roles: those that it names, or EMPA's unless mapo has written it."""
    details = record.get("iedr_details")
    by_mapo = "prompts" in data or (isinstance(details, dict) and details.get("source") == "mapo")
    return str(data.get("prompts", "")) if by_mapo else EMPA_PROMPTS


def _load(file: Path) -> dict[str, Any]:
    raw, problem = read_bytes(file)
    if raw is None:
        raise RecordError(
            problem or "the file does not exist", where=str(file), fix="Check that it is a readable file"
        )
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RecordError(
            f"the file is not JSON ({error})",
            where=str(file),
            fix="If it is cut off, download or create it again",
        ) from error
    if not isinstance(data, dict):
        raise RecordError("the file is not a JSON object", where=str(file), fix="Pass an EMPA result file")
    return data


def _get(data: dict[str, Any], key: str, kind: type, where: str) -> Any:
    value = data.get(key)
    if not isinstance(value, kind):
        problem = "missing" if key not in data else f"a {type(value).__name__}"
        raise RecordError(
            f"'{key}' is {problem}, expected a {kind.__name__}",
            where=where,
            fix="Check that this is an EMPA result file",
        )
    return value


def _empa_start(
    record: dict[str, Any], rubric: Rubric, where: str, differences: list[str]
) -> tuple[float, ...]:
    recorded = record.get("P_0_initial_deficit")
    details = record.get("iedr_details")
    filled = details.get("filled_iedr") if isinstance(details, dict) else None
    if isinstance(filled, dict):
        place = f"{where}, epj.iedr_details.filled_iedr"
        missing = [i.key for i in rubric.indicators if i.key not in filled]
        if missing:
            raise RecordError(
                f"the start levels lack {', '.join(missing)}",
                where=place,
                fix=f"Check that the file was judged with rubric '{rubric.name}'",
            )
        levels = {i.key: _integer(filled[i.key], f"{place}.{i.key}") for i in rubric.indicators}
        start = _at(place, rubric.start, levels)
        if isinstance(recorded, list) and tuple(recorded) != start:
            differences.append(f"{where}: P_0 is {recorded}, its start levels give {list(start)}")
        return start
    if isinstance(recorded, list) and all(_is_number(x) for x in recorded):
        return tuple(recorded)
    raise RecordError(
        "there are neither start levels nor P_0_initial_deficit",
        where=f"{where}, epj",
        fix="Leave the file out",
    )


def _empa_goal(record: dict[str, Any], profile: str, rubric: Rubric) -> Goal | None:
    """Return the precomputed goal of a file for the profile `released`, if it has one."""
    params, details = record.get("epm_params"), record.get("iedr_details")
    precomputed = isinstance(details, dict) and details.get("source") == "precomputed"
    if profile != "released" or not precomputed or not isinstance(params, dict):
        return None
    direction = params.get("v_star_0")
    near, crossing, energy = (params.get(f"epsilon_{k}") for k in ("distance", "direction", "energy"))
    if not isinstance(direction, list) or len(direction) != len(rubric.axes):
        return None
    if not all(_is_number(x) for x in direction):
        return None
    if not (_is_number(near) and _is_number(crossing) and _is_number(energy)):
        return None
    return Goal(tuple(direction), near, crossing, energy)


def _empa_levels(form: Any, rubric: Rubric, where: str) -> tuple[Levels | None, list[str]]:
    """Return the levels of a turn (None if it is unscored) and the missing keys."""
    if form is None or form == {}:
        return None, []
    if not isinstance(form, dict):
        raise RecordError("mdep_analysis is not an object", where=where)
    if not any(f"{key}_{kind}_level" in form for key in rubric.keys for kind in ("Prog", "Neg")):
        return None, []
    levels, missing_keys = {}, []
    for key in rubric.keys:
        marks = []
        for kind in ("Prog", "Neg"):
            name = f"{key}_{kind}_level"
            if name not in form:
                missing_keys.append(name)
            level = _integer(form.get(name, 0), f"{where}, {name}")
            texts = (str(form.get(f"{key}_{kind}_{what}", "")) for what in ("evidence", "reasoning"))
            marks.append(Mark(level, *texts))
        levels[key] = AxisMarks(*marks)
    _at(where, rubric.step, levels)
    return levels, missing_keys


def _at(where: str, check: Callable[[Any], _T], value: Any) -> _T:
    """Return check(value); errors are raised with the place in the file."""
    try:
        return check(value)
    except RubricError as error:
        raise RecordError(f"{error.where}: {error.problem}", where=where, fix=error.fix) from None


def _integer(value: Any, where: str) -> int:
    if not _is_number(value) or value != int(value):
        raise RecordError(f"level {value!r} is not an integer", where=where, fix="Levels are small integers")
    return int(value)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9


def _no_movement(rubric: Rubric) -> Levels:
    return {key: AxisMarks(Mark(0), Mark(0)) for key in rubric.keys}


def _empa_ending(data: dict[str, Any], record: dict[str, Any]) -> Ending | None:
    """Return the recorded ending, as far as the free text can be parsed."""
    text = str(data.get("termination_reason", "")).lower()
    for words, reason in (
        (("success", "victory"), StopReason.SUCCESS),
        (("timeout", "max turns"), StopReason.TIMEOUT),
        (("oscillation", "stagnation", "minimal"), StopReason.STAGNATION),
        (("failure",), StopReason.FAILURE),
    ):
        if any(word in text for word in words):
            analysis = record.get("epm_victory_analysis")
            kind = analysis.get("primary_victory_type") if isinstance(analysis, dict) else None
            known = reason is StopReason.SUCCESS and kind in ("geometric", "positional", "zone")
            return Ending(reason, (str(kind),) if known else ())
    return None


_METRICS = (
    ("v_t_norm", "step_norm", 0.0051),
    ("alignment", "alignment", 0.000051),
    ("delta_E", "delta_energy", 0.0051),
    ("E_total", "energy", 0.0051),
    ("P_norm", "norm", 0.0051),
    ("projection", "projection", 0.0051),
)
"""(EMPA's name, ours, half the recorded rounding)."""


def _turn_differences(entry: Any, state: PotentialState, where: str) -> Iterator[str]:
    if not isinstance(entry, dict):
        return
    for name, value in (("P_t", state.position), ("v_t", state.step or (0,) * len(state.position))):
        recorded = entry.get(name)
        if isinstance(recorded, list) and tuple(recorded) != value:
            yield f"{where}: {name} is {recorded}, not {list(value)}"
    distance = entry.get("distance")
    if _is_number(distance) and abs(distance - state.distance) > 1e-9:
        yield f"{where}: distance is {distance}, not {state.distance}"
    if isinstance(entry.get("in_zone"), bool) and entry["in_zone"] != state.in_zone:
        yield f"{where}: in_zone is {entry['in_zone']}, not {state.in_zone}"
    metrics = entry.get("epm")
    for theirs, ours, tolerance in _METRICS:
        recorded = metrics.get(theirs) if isinstance(metrics, dict) else None
        value = getattr(state, ours)
        if _is_number(recorded) and abs(recorded - value) > tolerance:
            yield f"{where}: {theirs} is {recorded}, not {value}"


def _goal_differences(record: dict[str, Any], path: Trajectory, where: str) -> Iterator[str]:
    """Yield differences between the recorded goal and the one that the profile computes."""
    params = record.get("epm_params")
    if not isinstance(params, dict) or path.profile.name != "published":
        return
    goal = path.goal
    for name, ours in (
        ("epsilon_distance", goal.distance),
        ("epsilon_direction", goal.crossing),
        ("epsilon_energy", goal.energy),
        ("v_star_0", list(goal.direction)),
    ):
        if name in params and params[name] != ours:
            yield f"{where}: {name} is {params[name]}, not {ours}"


def read_tags(folder: Path, problems: list[str]) -> dict[str, dict[str, str]]:
    """Read category, axis and difficulty by case from the statistics table beside EMPA results."""
    table = folder / "descriptive_statistics.csv"
    names = {"Category": "category", "Dominant_Axis": "axis", "Difficulty": "difficulty"}
    raw, problem = read_bytes(table)
    if raw is None:
        problems += [f"{table}: {problem}; categories are unknown"] if problem else []
        return {}
    try:
        rows = list(csv.DictReader(io.StringIO(raw.decode("utf-8-sig"), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        problems.append(f"{table}: cannot be read ({error}); categories are unknown")
        return {}
    return {
        row["Case_ID"]: {ours: row[theirs] for theirs, ours in names.items() if row.get(theirs)}
        for row in rows
        if row.get("Case_ID")
    }
