"""The usable contents of a run's files: settings, rubric, costs, results, records."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from mapo.advantage import Advantages, advantages
from mapo.config import Advantage, set_earlier_defaults
from mapo.credit import compute_credit
from mapo.errors import MapoError
from mapo.estimators.methods import ESTIMATORS
from mapo.measure.rubric import SHIPPED, Rubric
from mapo.models.ledger import cost_of
from mapo.runs.files import read_bytes, read_object
from mapo.store import JOURNAL, RunDir
from mapo.types import Dialogue, StopReason
from mapo.untrusted import parse_toml

MAX_MAGNITUDE = 1e12
"""Larger numbers are not plausible measurements and are treated as missing."""
ENDINGS = (*(r.value for r in StopReason if r is not StopReason.BROKEN), "unfinished")
"""Endings of dialogues that count."""
COUNTS = ("calls", "hits", "retries", "failures", "prompt", "cached", "completion")

_T = TypeVar("_T")


def number(value: object) -> float | None:
    """Return a measurement; None for anything that is not a plausible number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) and abs(result) <= MAX_MAGNITUDE else None


def integer(value: object) -> int | None:
    """Return an integer; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53 else None


# ---- manifests


def planned_dialogues(manifest: Mapping[str, Any]) -> int:
    """Return how many dialogues an EMPA run has when it is complete; 0 if its manifest does not say."""
    scenarios, repeats = manifest.get("scenarios"), integer(manifest.get("repeats"))
    return len(scenarios) * repeats if isinstance(scenarios, dict) and repeats and repeats > 0 else 0


# ---- settings


def read_settings(path: Path) -> tuple[dict[str, Any], str]:
    """Return a run's config.toml, not validated, and the problem with it, if any."""
    raw, problem = read_bytes(path)
    if raw is None:
        return {}, problem
    try:
        return parse_toml(raw.decode("utf-8")), ""
    except ValueError:
        return {}, "not valid TOML: incomplete or damaged"


def advantage_of(settings: Mapping[str, Any]) -> tuple[Advantage | None, str]:
    """Return the run's [advantage] settings; or None and the reason, if they are unknown. No defaults are
    filled in for a missing section: the credit would be made up."""
    section = settings.get("advantage")
    if not isinstance(section, dict):
        return None, f"{RunDir.config.name} has no [advantage], so the credit is unknown"
    try:
        known = {"advantage": dict(section)}
        set_earlier_defaults(known)
        advantage = Advantage.model_validate(known["advantage"])
    except (ValueError, RecursionError):
        return None, f"{RunDir.config.name} has no valid [advantage], so the credit is unknown"
    reward = settings.get("reward")
    return advantage.resolved(str(reward.get("name")) if isinstance(reward, dict) else ""), ""


def credit(
    rewards: Sequence[Sequence[float | None]], groups: Sequence[str], settings: Advantage
) -> Advantages | str:
    """Return the credit of a batch, from the function that training uses; or the reason why there is none.

    Methods that need more than rewards need the dialogues: see `dialogue_credit`.
    """
    try:
        return advantages(rewards, groups, **settings.options())
    except MapoError as error:
        return str(error)


def dialogue_credit(
    dialogues: Sequence[Dialogue], settings: Advantage, rubric: Rubric | None
) -> Advantages | str:
    """Return the credit of a batch of recorded dialogues by any method; or the reason why there is none.
    Rewards that are not plausible numbers count as unscored.
    """
    if needs_of(settings) is None:
        return credit([plausible_rewards(d) for d in dialogues], [d.group for d in dialogues], settings)
    if rubric is None:
        return f"the method '{settings.method}' needs the rubric of the dialogues, which is unknown"
    try:
        return compute_credit([with_plausible_rewards(d) for d in dialogues], settings, rubric)
    except MapoError as error:
        return str(error)
    except (ValueError, OverflowError):
        return "the positions of the records are not plausible numbers"


def needs_of(settings: Advantage) -> str | None:
    """Return what the settings need beside the rewards; None if nothing."""
    estimator = ESTIMATORS.get(settings.method)
    return (estimator.needs if estimator else None) or ("faults" if settings.mask_faults else None)


def plausible_rewards(dialogue: Dialogue) -> list[float | None]:
    """Return the rewards of a dialogue, None where they are not plausible numbers."""
    return [number(turn.reward) for turn in dialogue.turns]


def with_plausible_rewards(dialogue: Dialogue) -> Dialogue:
    turns = (replace(turn, reward=number(turn.reward)) for turn in dialogue.turns)
    return replace(dialogue, turns=tuple(turns))


def read_rubric(path: Path, name: str) -> tuple[Rubric | None, str]:
    """Return the rubric `name`: the run's copy at `path` or else a built-in one. The second value is the
    problem with the copy, if any."""
    rubric, problem = read_rubric_file(path)
    if rubric is not None and rubric.name == name:
        return rubric, ""
    return (Rubric.load(name) if name in SHIPPED else None), problem


def find_rubric(folder: Path) -> Path:
    """Return the rubric file for a folder of dialogues: in the folder itself or, for a part of a run
    (`eval/after`), in the run directory, which is at most two levels up and has a manifest."""
    here = RunDir(folder)
    if here.rubric.exists() or here.manifest.exists():
        return here.rubric
    above = map(RunDir, folder.resolve().parents[:2])
    run = next((each for each in above if each.manifest.is_file()), None)
    return run.rubric if run and run.rubric.exists() else here.rubric


def read_rubric_file(path: Path) -> tuple[Rubric | None, str]:
    """Return the rubric in a file, and the problem with it; both are empty if the file does not exist."""
    raw, problem = read_bytes(path)
    try:
        return (None, problem) if raw is None else (_parse_rubric(raw), "")
    except MapoError as error:
        return None, str(error)


@lru_cache(maxsize=32)
def _parse_rubric(raw: bytes) -> Rubric:
    return Rubric.parse(raw.decode("utf-8", "replace"), RunDir.rubric.name)


# ---- steps and costs


def endings_by_step(steps: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Return, for each ending, the number of dialogues per step, from the run's metrics. Broken dialogues are
    not counted."""
    counts_by_ending: dict[str, dict[int, float]] = {name: {} for name in ENDINGS}
    for line in steps:
        endings = line.get("endings")
        for name, count in endings.items() if isinstance(endings, dict) else ():
            if name in counts_by_ending and (n := number(count)) is not None and n > 0:
                counts_by_ending[name][line["step"]] = n
    return {name: counts for name, counts in counts_by_ending.items() if counts}


def read_ledger(files: Iterable[Path]) -> tuple[list[dict[str, Any]], list[tuple[Path, str]]]:
    """Return calls, tokens and cost per role and model, added up over the ledgers of all processes, and the
    files that could not be read with their problems. A cost is None if any ledger has no price for it."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    problems = []
    for file in files:
        data, problem = read_object(file)
        if problem:
            problems.append((file, problem))
        ledger_rows = data.get("rows")
        for row in [*(ledger_rows if isinstance(ledger_rows, list) else ()), *_journal_rows(file, data)]:
            if isinstance(row, dict):
                _add(rows, row)
    return [rows[key] for key in sorted(rows)], problems


def _journal_rows(file: Path, snapshot: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the entries after the snapshot: those of a run that is playing or was killed."""
    raw, _ = read_bytes(file.with_name(f"{file.name}{JOURNAL}"))
    last, prices = integer(snapshot.get("entries")) or 0, snapshot.get("prices")
    for line in (raw or b"").split(b"\n")[:-1]:
        try:
            entry, role, model, numbers = json.loads(line)
            counts = {name: numbers.get(name, 0) for name in (*COUNTS, "seconds")}
            if not all(number(value) is not None for value in counts.values()):
                continue
            price = prices.get(model) if isinstance(prices, dict) else None
            cost = cost_of(counts, price) if price is not None else None
        except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
            continue
        if isinstance(entry, int) and entry > last:
            yield {"role": role, "model": model, **counts, "cost": cost}


def _add(rows: dict[tuple[str, str], dict[str, Any]], row: Mapping[str, Any]) -> None:
    key = (str(row.get("role"))[:40], str(row.get("model"))[:200])
    zero = {"role": key[0], "model": key[1], **dict.fromkeys(COUNTS, 0), "seconds": 0.0, "cost": 0.0}
    total = rows.setdefault(key, zero)
    for name in COUNTS:
        total[name] += integer(row.get(name)) or 0
    total["seconds"] += number(row.get("seconds")) or 0.0
    cost = number(row.get("cost"))
    total["cost"] = None if cost is None or total["cost"] is None else total["cost"] + cost


# ---- benchmark results, in points of 100
#
# EmoBench writes fractions and EQ-Bench points; both are shown as points. An incomplete run has no score,
# because the missing items may be the difficult ones.

HEADLINES = {"emobench": "Overall", "eqbench3": "EQ-Bench", "eqbench_v2": "EQ-Bench v2"}
"""The main score of each benchmark."""
_SHARES = {"languages", "parse_rate", "baselines"}
"""Details of EmoBench that are fractions; the others are counts."""


def scores_in_points(result: Mapping[str, Any]) -> dict[str, float | None]:
    """Return every score by name; None if it is not a number or the run is incomplete."""
    return {
        name: in_points(result, value) if result.get("complete") is True else None
        for name, value in _object(result.get("scores")).items()
    }


def intervals_in_points(result: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return the intervals of the scores that have valid ones."""
    intervals = {}
    for name, pair in _object(result.get("intervals")).items():
        ends = [in_points(result, end) for end in pair] if isinstance(pair, list) and len(pair) == 2 else []
        if ends and ends[0] is not None and ends[1] is not None and result.get("complete") is True:
            intervals[name] = (ends[0], ends[1])
    return intervals


def headline(result: Mapping[str, Any]) -> float | None:
    """Return the benchmark's main score; None for an incomplete run or an unknown benchmark."""
    name = HEADLINES.get(str(result.get("benchmark")))
    return scores_in_points(result).get(name) if name else None


def details_in_points(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return `details` with fractions as points."""
    details = _object(result.get("details"))
    if result.get("benchmark") != "emobench":
        return details
    return {k: _times_100(v, 0) if k in _SHARES else v for k, v in details.items()}


def in_points(result: Mapping[str, Any], value: object) -> float | None:
    """Return a score of this result in points; None if it is not a number."""
    score = number(value)
    return score if score is None or result.get("benchmark") != "emobench" else 100 * score


def _times_100(value: Any, depth: int) -> Any:
    if isinstance(value, dict):
        return {k: _times_100(v, depth + 1) for k, v in value.items()} if depth < 8 else None
    fraction = number(value)
    return value if fraction is None else 100 * fraction


def _object(data: object) -> dict[str, Any]:
    return data if isinstance(data, dict) else {}


# ---- records


def deduplicated(records: Iterable[tuple[Hashable, bool, int, _T]]) -> dict[Hashable, _T]:
    """Return the record of each dialogue that counts. `records` are tuples of dialogue id, whether the record
    is usable, when its file was written, and the record. Usable records take precedence over broken ones,
    then later ones over earlier ones."""
    best: dict[Hashable, tuple[tuple[bool, int], _T]] = {}
    for key, usable, written, record in records:
        if key not in best or (usable, written) >= best[key][0]:
            best[key] = ((usable, written), record)
    return {key: record for key, (_, record) in best.items()}
