"""What the files of a run say, as far as they can be used: settings, rubric, costs, results, records."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from mapo.advantage import Advantages, advantages
from mapo.config import Advantage
from mapo.errors import MapoError
from mapo.measure.rubric import SHIPPED, Rubric
from mapo.runs.files import read_bytes, read_object
from mapo.store import RunDir
from mapo.types import StopReason

MOST = 1e12
"""A number beyond is no measurement; it is left out, as a missing one is."""
ENDINGS = (*(r.value for r in StopReason if r is not StopReason.BROKEN), "unfinished")
"""Ways a dialogue ended that count."""
COUNTS = ("calls", "hits", "retries", "failures", "prompt", "cached", "completion")

_T = TypeVar("_T")


def number(value: object) -> float | None:
    """A measurement; None for whatever else stands in its place."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) and abs(found) <= MOST else None


def whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53 else None


# ---- settings


def read_settings(path: Path) -> tuple[dict[str, Any], str]:
    """A run's config.toml as it stands there, and what is wrong with it."""
    raw, problem = read_bytes(path)
    if raw is None:
        return {}, problem
    try:
        return tomllib.loads(raw.decode("utf-8")), ""
    except (ValueError, RecursionError):
        return {}, "no TOML: half-written or damaged"


def advantage_of(settings: Mapping[str, Any]) -> tuple[Advantage | None, str]:
    """How the run credits turns, by its [advantage] alone; None, and why, where that cannot be known: a
    credit by other settings would be made up."""
    section = settings.get("advantage")
    if not isinstance(section, dict):
        return None, f"{RunDir.config.name} holds no [advantage]: what was credited cannot be known"
    try:
        return Advantage.model_validate(section), ""
    except (ValueError, RecursionError):
        return None, f"{RunDir.config.name} holds no usable [advantage]: what was credited cannot be known"


def credit(
    rewards: Sequence[Sequence[float | None]], groups: Sequence[str], settings: Advantage
) -> Advantages | str:
    """The credit of a batch, by the very function the trainer calls; or why there is none."""
    try:
        return advantages(rewards, groups, **settings.options())
    except MapoError as error:
        return str(error)


def read_rubric(path: Path, name: str) -> tuple[Rubric | None, str]:
    """The rubric of that name: the run's own copy at `path`, or a shipped one; and what the copy lacks."""
    found, problem = rubric_in(path)
    if found is not None and found.name == name:
        return found, ""
    return (Rubric.load(name) if name in SHIPPED else None), problem


def rubric_file(folder: Path) -> Path:
    """Where the rubric of a folder of dialogues lies: in it, or, of a part of a run (`eval/after`), in the
    run's own folder, at most two above: one with a manifest."""
    own = RunDir(folder)
    if own.rubric.exists() or own.manifest.exists():
        return own.rubric
    above = map(RunDir, folder.resolve().parents[:2])
    run = next((each for each in above if each.manifest.is_file()), None)
    return run.rubric if run and run.rubric.exists() else own.rubric


def rubric_in(path: Path) -> tuple[Rubric | None, str]:
    """The rubric of a file, and what is wrong with it; both empty where there is none."""
    raw, problem = read_bytes(path)
    try:
        return (None, problem) if raw is None else (_rubric(raw), "")
    except MapoError as error:
        return None, str(error)


@lru_cache(maxsize=32)
def _rubric(raw: bytes) -> Rubric:
    return Rubric.parse(raw.decode("utf-8", "replace"), RunDir.rubric.name)


# ---- steps and costs


def endings_by_step(steps: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """How many dialogues of each step ended so, as the run wrote it down; broken ones are left out, as of
    every other number."""
    found: dict[str, dict[int, float]] = {name: {} for name in ENDINGS}
    for line in steps:
        told = line.get("endings")
        for name, count in told.items() if isinstance(told, dict) else ():
            if name in found and (n := number(count)) is not None and n > 0:
                found[name][line["step"]] = n
    return {name: counts for name, counts in found.items() if counts}


def read_ledger(files: Iterable[Path]) -> tuple[list[dict[str, Any]], list[tuple[Path, str]]]:
    """Calls, tokens and cost by role and model, every process's ledger together; no cost where one has no
    price. And what could not be read."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    problems = []
    for file in files:
        data, problem = read_object(file)
        if problem:
            problems.append((file, problem))
        given = data.get("rows")
        for row in given if isinstance(given, list) else ():
            if isinstance(row, dict):
                _add(rows, row)
    return [rows[key] for key in sorted(rows)], problems


def _add(rows: dict[tuple[str, str], dict[str, Any]], row: Mapping[str, Any]) -> None:
    key = (str(row.get("role"))[:40], str(row.get("model"))[:200])
    first = {"role": key[0], "model": key[1], **dict.fromkeys(COUNTS, 0), "seconds": 0.0, "cost": 0.0}
    mine = rows.setdefault(key, first)
    for name in COUNTS:
        mine[name] += whole(row.get(name)) or 0
    mine["seconds"] += number(row.get("seconds")) or 0.0
    cost = number(row.get("cost"))
    mine["cost"] = None if cost is None or mine["cost"] is None else mine["cost"] + cost


# ---- benchmark results, in points of 100
#
# EmoBench writes shares, EQ-Bench points; people read points. An incomplete run has no score: the items that
# are missing may be the hard ones.

HEADLINES = {"emobench": "Overall", "eqbench3": "EQ-Bench", "eqbench_v2": "EQ-Bench v2"}
"""The one score that stands for a benchmark."""
_SHARES = {"languages", "parse_rate", "baselines"}
"""EmoBench's details that are shares of 1; the others are counts."""


def scores_in_points(result: Mapping[str, Any]) -> dict[str, float | None]:
    """Every score by its name; None where it is no number, and all of an incomplete run."""
    return {
        name: in_points(result, value) if result.get("complete") is True else None
        for name, value in _object(result.get("scores")).items()
    }


def intervals_in_points(result: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """The intervals of the scores that have both."""
    found = {}
    for name, pair in _object(result.get("intervals")).items():
        ends = [in_points(result, end) for end in pair] if isinstance(pair, list) and len(pair) == 2 else []
        if ends and ends[0] is not None and ends[1] is not None and result.get("complete") is True:
            found[name] = (ends[0], ends[1])
    return found


def headline(result: Mapping[str, Any]) -> float | None:
    """The benchmark's score; None of an incomplete run, and of a benchmark that is not known here."""
    name = HEADLINES.get(str(result.get("benchmark")))
    return scores_in_points(result).get(name) if name else None


def details_in_points(result: Mapping[str, Any]) -> dict[str, Any]:
    """`details` with shares as points."""
    details = _object(result.get("details"))
    if result.get("benchmark") != "emobench":
        return details
    return {k: _times_100(v, 0) if k in _SHARES else v for k, v in details.items()}


def in_points(result: Mapping[str, Any], value: object) -> float | None:
    found = number(value)
    return found if found is None or result.get("benchmark") != "emobench" else 100 * found


def _times_100(value: Any, depth: int) -> Any:
    if isinstance(value, dict):
        return {k: _times_100(v, depth + 1) for k, v in value.items()} if depth < 8 else None
    found = number(value)
    return value if found is None else 100 * found


def _object(data: object) -> dict[str, Any]:
    return data if isinstance(data, dict) else {}


# ---- records


def that_count(records: Iterable[tuple[Hashable, bool, int, _T]]) -> dict[Hashable, _T]:
    """Of each dialogue the record that counts. `records` are id, whether it is usable, when its file was
    written, and the record: a usable one counts before a broken one, then the later written."""
    best: dict[Hashable, tuple[tuple[bool, int], _T]] = {}
    for key, fine, written, record in records:
        if key not in best or (fine, written) >= best[key][0]:
            best[key] = ((fine, written), record)
    return {key: record for key, (_, record) in best.items()}
