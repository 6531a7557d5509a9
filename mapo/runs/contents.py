"""What a run's files say, as far as they can be used: settings, steps, ledger, rubric, records, credit."""

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
from mapo.records import parse
from mapo.runs.files import read_bytes, read_lines, read_object
from mapo.store import BadLine, RunDir
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


def read_steps(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """metrics.jsonl by step, what was written last for a step counts; and what could not be used."""
    found: dict[int, dict[str, Any]] = {}
    problems = []
    for line in read_lines(path, parse):
        if isinstance(line, BadLine):
            where = f"line {line.line}: " if line.line else ""
            problems.append(f"{where}{line.problem}"[:300])
        elif (step := whole(line.get("step"))) is not None and 0 <= step < 10**9:
            found[step] = line
        else:
            problems.append("a line without a step")
    return [found[step] for step in sorted(found)], problems[:20]


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


# ---- records


def that_count(records: Iterable[tuple[Hashable, bool, int, _T]]) -> dict[Hashable, _T]:
    """Of each dialogue the record that counts. `records` are id, whether it is usable, when its file was
    written, and the record: a usable one counts before a broken one, then the later written."""
    best: dict[Hashable, tuple[tuple[bool, int], _T]] = {}
    for key, fine, written, record in records:
        if key not in best or (fine, written) >= best[key][0]:
            best[key] = ((fine, written), record)
    return {key: record for key, (_, record) in best.items()}
