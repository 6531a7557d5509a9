"""Entries of a comparison: one score of one model, read from a folder of results.

An entry holds what determines the meaning of its number (`meaning`: judge, rules, data, prompts; these must
agree within a column), how the model was sampled (`sampling`: shown, but allowed to differ), and the score of
every case for paired differences. This module reads the result.json of EmoBench and EQ-Bench;
`entries_empa.py` reads EMPA runs, EMPA result files and training runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mapo.errors import RecordError
from mapo.evals.eqbench.v2 import valid
from mapo.evals.summary import RESULT_SCHEMA
from mapo.measure.stats import Interval
from mapo.runs.claim import digest
from mapo.runs.files import read_bytes
from mapo.store import RunDir
from mapo.text import printable
from mapo.types import record

EMOBENCH, EQBENCH, EQBENCH_V2 = "EmoBench", "EQ-Bench 3", "EQ-Bench v2"
_BENCHMARKS = {"emobench": EMOBENCH, "eqbench3": EQBENCH, "eqbench_v2": EQBENCH_V2}
SCORES = {EMOBENCH: ("EA", "EU", "Overall"), EQBENCH: ("EQ-Bench",), EQBENCH_V2: ("EQ-Bench v2",)}
_SAMPLING = {"temperature", "top_p", "max_tokens", "body", "min_p", "repeats", "seed", "left_out"}
_ROUNDING = 0.03  # EQ-Bench rounds the mean to two places before it multiplies by five


class Case(NamedTuple):
    """The score of one case in points, 0 to 100 (EPM-Q may exceed 100), averaged over `repeats`. A score over
    several kinds of cases is the mean of the kinds' means. `version` is a hash of the case's text, empty if
    unknown. Cases of one `group` (the languages of a question) count as one. `starts` are the positions at
    which dialogues of the case started."""

    score: float
    kind: str = ""
    version: str = ""
    group: str = ""
    repeats: int = 1
    starts: frozenset[tuple[float, ...]] = frozenset()


@dataclass(frozen=True, slots=True)
class Entry:
    """One score of one model. `value` is None if cases are missing: `n` of `of` have a score."""

    model: str
    benchmark: str
    name: str
    meaning: Mapping[str, str]
    sampling: Mapping[str, str]
    value: float | None
    interval: Interval | None
    n: int
    of: int
    cases: Mapping[str, Case]
    source: str
    chosen: str = ""
    """Hash of the chosen cases; empty if the benchmark leaves no choice."""
    passes: int | None = None
    unmet: int = 0
    """Passes that leave an axis unmet."""
    invalid: str = ""
    """Why a complete run has no valid score; it is not compared."""
    notes: tuple[str, ...] = field(default=())
    baseline: str = ""
    """The model that this one was trained from, if known; it is compared with that, too."""


def split_settings(settings: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Split settings into those that determine the meaning of a number and those that only affect sampling.
    Unknown settings count as meaning, which at worst gives one column too many."""
    sampling = _SAMPLING - ({"seed"} if settings.get("shuffle") else set())
    texts = {key: _text(value) for key, value in settings.items()}
    meaning = {key: value for key, value in texts.items() if key not in sampling}
    return meaning, {key: value for key, value in texts.items() if key in sampling}


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return digest(dict(value))
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


# ---- result.json


@record
class _ResultItem:
    id: str
    scores: dict[str, float]


@record
class _ResultPart:
    """The number of items of one score, and how many of them have it."""

    n: int
    of: int


@record
class _ResultFile:
    """A result.json as written by `summary.write_result`."""

    schema: Literal["mapo.result/1"]
    benchmark: Literal["emobench", "eqbench3", "eqbench_v2"]
    model: str
    judge: str | None
    settings: dict[str, Any]
    complete: bool
    n: int
    of: int
    scores: dict[str, float]
    intervals: dict[str, Interval | None]
    items: list[_ResultItem]
    details: dict[str, Any]
    notes: list[str]
    addresses: dict[str, str] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)
    limit: int | None = None
    parts: dict[str, _ResultPart] = field(default_factory=dict)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; raise RecordError for anything else."""
    raw, problem = read_bytes(path)
    if raw is None:
        raise RecordError(problem or "the file does not exist", where=str(path))
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RecordError(
            f"the file is not JSON ({error})",
            where=str(path),
            fix="It may be cut off: run again with --resume",
        ) from None
    if not isinstance(data, dict):
        raise RecordError("the file is not a JSON object", where=str(path))
    return data


def read_benchmark(folder: Path, name: str | None = None) -> list[Entry]:
    """Read the scores of OUT/result.json and check them against its items."""
    from pydantic import TypeAdapter, ValidationError

    path = RunDir(folder).result
    data = read_json(path)
    if data.get("schema") != RESULT_SCHEMA:
        raise RecordError(
            f"the schema is {printable(repr(data.get('schema')))[:80]}, not '{RESULT_SCHEMA}'",
            where=str(path),
            fix="Pass a result of mapo eval; if a newer mapo wrote the file, upgrade",
        )
    try:
        result = TypeAdapter(_ResultFile).validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = printable(".".join(map(str, first["loc"])))
        raise RecordError(f"{key}: {first['msg']}", where=str(path), fix="Run mapo eval again") from None
    if len({item.id for item in result.items}) < len(result.items):
        raise RecordError("two items have the same id", where=str(path), fix="Run mapo eval again")
    scores = SCORES[_BENCHMARKS[result.benchmark]]
    known = {part for item in result.items for part in item.scores} | set(result.parts)
    present = [score for score in scores if known.issuperset(_parts(score))]
    shown = present or scores[-1:]  # no item has a score
    return [_entry(result, score, name, path) for score in shown]


def _parts(score: str) -> tuple[str, ...]:
    return ("EA", "EU") if score == "Overall" else (score,)


def _entry(result: _ResultFile, score: str, name: str | None, path: Path) -> Entry:
    benchmark = _BENCHMARKS[result.benchmark]
    scale = 100.0 if benchmark == EMOBENCH else 1.0
    parts = _parts(score)
    cases = _cases(result.items, parts, scale)
    n, of = _counted(result, parts)
    complete = n == of and score in result.scores
    value = result.scores[score] * scale if complete else None
    ends = result.intervals.get(score) if complete else None
    invalid = benchmark == EQBENCH_V2 and result.items and not valid(len(cases), len(result.items))
    if value is not None:
        _check_mean(score, value, [_mean(result.items, part) * scale for part in parts], path)
    meaning, sampling = split_settings(result.settings)
    if address := result.addresses.get("judge"):
        sampling["judge's address"] = address
    return Entry(
        name or result.model,
        benchmark,
        score,
        {**({"judge": result.judge} if result.judge else {}), **meaning},
        sampling,
        value,
        None if ends is None else (ends[0] * scale, ends[1] * scale),
        n=n,
        of=of,
        cases=cases,
        source=str(path.parent),
        invalid=f"{len(cases)}/{len(result.items)} readable" if invalid else "",
        notes=tuple(result.notes),
    )


def _counted(result: _ResultFile, parts: Sequence[str]) -> tuple[int, int]:
    """Return how many items of a score are scored, and how many there are."""
    if not all(part in result.parts for part in parts):
        return len(result.items), result.of
    return sum(result.parts[part].n for part in parts), sum(result.parts[part].of for part in parts)


def _cases(items: Sequence[_ResultItem], parts: Sequence[str], scale: float) -> dict[str, Case]:
    return {
        item.id: Case(item.scores[part] * scale, part, group=_group(item.id))
        for item in items
        for part in parts
        if part in item.scores
    }


def _group(name: str) -> str:
    """Return the group of an EmoBench question: its languages ("EA-en-17") are one text."""
    task, _, rest = name.partition("-")
    language, _, number = rest.partition("-")
    return f"{task}-{number}" if language in ("en", "zh") else ""


def count(cases: Mapping[str, Case]) -> int:
    """Return the number of cases, counting each group once."""
    return len({case.group or name for name, case in cases.items()})


def _mean(items: Sequence[_ResultItem], part: str) -> float:
    scores = [item.scores[part] for item in items if part in item.scores]
    return sum(scores) / max(1, len(scores))


def _check_mean(name: str, value: float, scores: Sequence[float], path: Path) -> None:
    """Check that a score is the mean of its items."""
    mean = sum(scores) / len(scores)
    if not abs(value - mean) <= _ROUNDING:
        raise RecordError(
            f"{name} is {value:.2f}, but the mean of its items is {mean:.2f}",
            where=str(path),
            fix="The file was edited: run again with --resume",
        )
