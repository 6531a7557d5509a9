"""Which scenarios are worth keeping: played by a strong model and a weak one, k times each.

A scenario that the strong one never passes shows nothing, and neither does one that even the weak one always
passes. Difficulty and dominant axis are measured beside what the scenario declares:

    difficulty    share of all plays that passed: easy from 3/4, medium from 1/2, hard from 1/4, extreme below
    axis, start   the deepest deficit at the start, mean over plays
    axis, moved   the axis on which the strong model's plays moved furthest

With few plays the rates are coarse; each has its 95 % interval (Wilson's) beside it.
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
"""Shares of plays passed below which the next difficulty begins."""
MARGIN = 1e-9


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
    """A scenario's verdict: kept, dropped or undecided, and what was measured beside what it declares."""

    id: str
    verdict: str
    reason: str
    plays: dict[str, Plays]
    declared: dict[str, str]
    measured: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def screen(
    scenarios: Sequence[Scenario], played: Mapping[str, Sequence[Result]], k: int, rubric: Rubric
) -> list[Screened]:
    """`played` holds the results of "strong" and perhaps of "weak"."""
    return [_one(scenario, played, k, rubric) for scenario in scenarios]


def _one(scenario: Scenario, played: Mapping[str, Sequence[Result]], k: int, rubric: Rubric) -> Screened:
    own = {who: [r for r in results if r.case == scenario.id] for who, results in played.items()}
    plays = {who: plays_of(results) for who, results in own.items()}
    verdict, reason = judge(plays, k)
    declared = {"difficulty": scenario.difficulty, "axis": scenario.axis}
    return Screened(scenario.id, verdict, reason, plays, declared, measure(own, rubric))


def plays_of(results: Sequence[Result]) -> Plays:
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
    """Verdict and reason."""
    if lacking := [who for who, found in plays.items() if found.n < k]:
        return "undecided", f"{' and '.join(lacking)}: not all of {k} plays were finished"
    if not plays["strong"].passes:
        return "dropped", f"the strong model passed none of {k}"
    if "weak" in plays and plays["weak"].passes == plays["weak"].n:
        return "dropped", f"the weak model passed all of {k}"
    return "kept", ""


def measure(own: Mapping[str, Sequence[Result]], rubric: Rubric) -> dict[str, str]:
    """Difficulty by the share that passed, axes by where plays began and how far they went."""
    every = [result for results in own.values() for result in results]
    if not every:
        return {"difficulty": "", "axis": "", "axis_moved": ""}
    rate = sum(r.passed for r in every) / len(every)
    weights = np.sqrt(np.asarray(rubric.weights))
    start = np.mean([r.path.start for r in every], axis=0) * weights
    moved = [np.subtract(r.path.now.position, r.path.start) for r in own["strong"]]
    furthest = np.mean([np.zeros(len(weights)), *moved], axis=0) * weights
    still = bool(np.all(furthest <= MARGIN))
    return {
        "difficulty": DIFFICULTIES[sum(rate < grade for grade in GRADES)],
        "axis": rubric.keys[int(np.argmin(start))],
        "axis_moved": "" if still else rubric.keys[int(np.argmax(furthest))],
    }


def agreement(screened: Sequence[Screened]) -> dict[str, float | None]:
    """How far what is declared is what was measured: shares that agree, and Spearman's rank correlation of
    declared difficulty with the share of plays that failed."""
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
    """TRAIN/VALIDATION/TEST or TRAIN/TEST as shares of `n`, each at least one: 2/1/1 of 13 is 7, 3 and 3."""
    names = {2: ("train", "test"), 3: ("train", "validation", "test")}
    parts = shares.split("/")
    if len(parts) not in names or not all(part.isdecimal() and int(part) for part in parts):
        raise InputError(f"'{shares}' are no shares", where="--split", fix="Write it like 2/1/1")
    if n < len(parts):
        raise InputError(f"{n} scenarios are kept, too few for {len(parts)} splits", where="--split")
    whole = sum(map(int, parts))
    least = [max(1, n * int(part) // whole) for part in parts]
    least[0] += n - sum(least)
    if least[0] < 1:
        raise InputError(f"{n} scenarios cannot be shared out as {shares}", where="--split")
    return dict(zip(names[len(parts)], least, strict=True))
