"""Screening of scenarios by playing them with a strong and a weak model, k times each.

A scenario that the strong model never passes carries no information, and neither does one that even the weak
model always passes. Difficulty and dominant axis are measured and compared with what the scenario declares:

    difficulty    share of all plays that passed: easy from 3/4, medium from 1/2, hard from 1/4, extreme below
    axis, start   the deepest deficit at the start, mean over plays
    axis, moved   the axis on which the strong model's plays moved furthest

With few plays the rates are coarse; each has a 95 % interval (Wilson).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mapo.errors import InputError
from mapo.measure.agreement import spearman
from mapo.measure.epmq import composite
from mapo.measure.rubric import DIFFICULTIES, Rubric
from mapo.measure.stats import wilson
from mapo.scenarios.scenario import Scenario
from mapo.scoring.result import Result

GRADES = (0.75, 0.5, 0.25)
"""Pass rates below which the next difficulty starts."""
MIN_MOVEMENT = 1e-9
"""Movement up to this is treated as none."""


@dataclass(frozen=True, slots=True)
class Plays:
    """One policy's plays of one scenario. `turns` is the mean of those that passed, None if none did."""

    n: int
    passes: int
    rate: float | None
    interval: tuple[float, float] | None
    epm_q: float | None
    turns: float | None


@dataclass(frozen=True, slots=True)
class Screened:
    """Verdict on a scenario (kept, dropped or undecided), with its declared and measured tags."""

    id: str
    verdict: str
    reason: str
    plays: dict[str, Plays]
    declared: dict[str, str]
    measured: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        """Return the fields as written to screen.json."""
        return asdict(self)


def screen(
    scenarios: Sequence[Scenario], played: Mapping[str, Sequence[Result]], k: int, rubric: Rubric
) -> list[Screened]:
    """Screen the scenarios. `played` holds the results of "strong" and optionally of "weak"."""
    return [_screen_one(scenario, played, k, rubric) for scenario in scenarios]


def _screen_one(
    scenario: Scenario, played: Mapping[str, Sequence[Result]], k: int, rubric: Rubric
) -> Screened:
    results = {name: [r for r in all_ if r.case == scenario.id] for name, all_ in played.items()}
    plays = {name: plays_of(own) for name, own in results.items()}
    verdict, reason = judge(plays, k)
    declared = {"difficulty": scenario.difficulty, "axis": scenario.axis}
    return Screened(scenario.id, verdict, reason, plays, declared, measure(results, rubric))


def plays_of(results: Sequence[Result]) -> Plays:
    """Summarise one policy's results on one scenario."""
    n, passes = len(results), sum(r.passed for r in results)
    if not n:
        return Plays(0, 0, None, None, None, None)
    turns = [r.path.now.turn for r in results if r.passed]
    return Plays(
        n,
        passes,
        passes / n,
        wilson(passes, n),
        composite([r.indices for r in results]).epm_q,
        sum(turns) / len(turns) if turns else None,
    )


def judge(plays: Mapping[str, Plays], k: int) -> tuple[str, str]:
    """Return the verdict and its reason."""
    if incomplete := [name for name, own in plays.items() if own.n < k]:
        return "undecided", f"{' and '.join(incomplete)}: fewer than {k} plays were finished; use --resume"
    if not plays["strong"].passes:
        return "dropped", f"too hard: the strong model passed none of {k} plays"
    if "weak" in plays and plays["weak"].passes == plays["weak"].n:
        return "dropped", f"too easy: the weak model passed all {k} plays"
    return "kept", ""


def measure(results: Mapping[str, Sequence[Result]], rubric: Rubric) -> dict[str, str]:
    """Return the difficulty from the pass rate, and the axes from the start and the movement of the plays."""
    every = [result for played in results.values() for result in played]
    if not every:
        return {"difficulty": "", "axis": "", "axis_moved": ""}
    rate = sum(r.passed for r in every) / len(every)
    weights = np.sqrt(np.asarray(rubric.weights))
    start = np.mean([r.path.start for r in every], axis=0) * weights
    moved = [np.subtract(r.path.now.position, r.path.start) for r in results["strong"]]
    furthest = np.mean([np.zeros(len(weights)), *moved], axis=0) * weights
    still = bool(np.all(furthest <= MIN_MOVEMENT))
    return {
        "difficulty": DIFFICULTIES[sum(rate < grade for grade in GRADES)],
        "axis": rubric.keys[int(np.argmin(start))],
        "axis_moved": "" if still else rubric.keys[int(np.argmax(furthest))],
    }


def agreement(screened: Sequence[Screened]) -> dict[str, float | None]:
    """Compare declared with measured tags: the shares that agree, and Spearman's rank correlation of declared
    difficulty with the share of failed plays."""
    known = [one for one in screened if one.measured["difficulty"]]

    def share(key: str, measured: str) -> float | None:
        rows = [one.declared[key] == one.measured[measured] for one in known if one.declared[key]]
        return sum(rows) / len(rows) if rows else None

    graded = [one for one in known if one.declared["difficulty"] in DIFFICULTIES]
    declared = [DIFFICULTIES.index(one.declared["difficulty"]) for one in graded]
    failed = [
        1 - sum(p.passes for p in one.plays.values()) / sum(p.n for p in one.plays.values()) for one in graded
    ]
    return {
        "difficulty": share("difficulty", "difficulty"),
        "axis": share("axis", "axis"),
        "axis_moved": share("axis", "axis_moved"),
        "rank": spearman(declared, failed),
    }


def sizes_of(shares: str, n: int) -> dict[str, int]:
    """Convert shares TRAIN/VALIDATION/TEST or TRAIN/TEST to sizes of at least 1: 2/1/1 of 13 is 7, 3, 3."""
    names = {2: ("train", "test"), 3: ("train", "validation", "test")}
    parts = shares.split("/")
    if len(parts) not in names or not all(part.isdecimal() and int(part) for part in parts):
        raise InputError(
            f"'{shares}' is not a list of shares", where="--split", fix="Give shares such as 2/1/1"
        )
    if n < len(parts):
        raise InputError(f"{n} kept scenarios are too few for {len(parts)} splits", where="--split")
    total = sum(map(int, parts))
    sizes = [max(1, n * int(part) // total) for part in parts]
    sizes[0] += n - sum(sizes)
    if sizes[0] < 1:
        raise InputError(f"{n} scenarios cannot be divided as {shares}", where="--split")
    return dict(zip(names[len(parts)], sizes, strict=True))
