"""Paired comparison of two combinations of settings on the same seeds and test jobs.

The unit is a training run: one number per seed. Pairing by seed removes what the runs of a seed share
(initial model, order of scenarios, simulated users). With few seeds, intervals are Student's t (a percentile
bootstrap of five numbers is too narrow); the sign-flip test cannot fall below 2^(1-n), which is 0.0625 for
five pairs. Both are reported. If there are test dialogues behind the numbers, a bootstrap over seeds and
scenarios shows whether the difference would hold for other scenarios; it is slightly conservative. The
verdict on a claim of the paper follows from the Holm-corrected t test, and is "undecided" otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from mapo.measure.stats import Floats, Interval, grid_interval, holm, sign_flip, t_interval, t_test

Jobs = Mapping[tuple[str, str], float]
"""Score of each test dialogue, by scenario and dialogue id."""


@dataclass(frozen=True, slots=True)
class SeedComparison:
    """`a` minus `b` in `what`, paired by seed. `p` is from the paired t test, `p_flip` from the sign-flip
    test; each is also Holm-corrected within its family."""

    what: str
    a: str
    b: str
    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    mean: float | None = None
    interval: Interval | None = None
    p: float | None = None
    p_flip: float | None = None
    p_holm: float | None = None
    p_flip_holm: float | None = None
    scenarios: int = 0
    over_scenarios: Interval | None = None
    over_both: Interval | None = None

    @property
    def n(self) -> int:
        return len(self.differences)

    def decides(self, sign: int) -> bool | None:
        """Return whether `a` is on the side of `sign` (1: higher, -1: lower); None if the pairs do not decide
        it."""
        if self.p_holm is None or self.mean is None or self.p_holm >= 0.05:
            return None
        return self.mean * sign > 0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "n": self.n}


def compare_seeds(
    what: str,
    a: str,
    b: str,
    numbers_a: Mapping[int, float],
    numbers_b: Mapping[int, float],
    jobs_a: Mapping[int, Jobs] | None = None,
    jobs_b: Mapping[int, Jobs] | None = None,
) -> SeedComparison:
    """Compare one number per seed on each side; with `jobs`, also the test dialogues behind them."""
    seeds = tuple(sorted(set(numbers_a) & set(numbers_b)))
    d = np.array([numbers_a[s] - numbers_b[s] for s in seeds])
    grid = difference_grid(jobs_a or {}, jobs_b or {}, seeds)
    return SeedComparison(
        what,
        a,
        b,
        seeds,
        tuple(map(float, d)),
        mean=float(d.mean()) if len(d) else None,
        interval=t_interval(d),
        p=t_test(d),
        p_flip=sign_flip(d),
        scenarios=grid.shape[1],
        over_scenarios=grid_interval(grid, seeds=False),
        over_both=grid_interval(grid, seeds=True),
    )


def corrected(family: Sequence[SeedComparison]) -> list[SeedComparison]:
    """Apply Holm's correction to both p-values within a family of comparisons."""
    t, flip = holm([c.p for c in family]), holm([c.p_flip for c in family])
    return [replace(c, p_holm=x, p_flip_holm=y) for c, x, y in zip(family, t, flip, strict=True)]


_MIXED = ("turn", "batch", "grpo")
_CLAIMS = (
    # claim, family that tests it, baseline, sign, digits
    ("The mixed advantage gives a higher held-out score than", "epm_q/{}", _MIXED, 1, ".1f"),
    ("The mixed advantage needs fewer dialogues than", "need/{}", _MIXED, -1, ".0f"),
    ("The batch advantage has larger gradients than", "grad_norm/{}", ("mapo", "turn", "grpo"), 1, ".3f"),
    ("Rewarding movement (idr) beats rewarding position (adr) with", "epm_q/rewards", (), 1, ".1f"),
)


def claims(families: Mapping[str, Sequence[SeedComparison]], places: Sequence[str]) -> list[dict[str, Any]]:
    """Return each tested claim of the paper with its verdict. `places` are the settings at which methods were
    compared, such as the rewards; claims are tested at idr, or else at the first."""
    main = "idr" if "idr" in places else places[0]
    where = f" ({main})" if len(places) > 1 and main != "idr" else ""
    tested = []
    for text, name, others, sign, digits in _CLAIMS:
        family = [c for c in families.get(name.format(main), ()) if not others or c.b in others]
        if family:
            names = ", ".join(c.b.partition("/")[0] for c in family)
            details = "; ".join(describe(c, sign, digits) for c in family)
            claim = f"{text} {names}{where if name.endswith('{}') else ''}"
            tested.append({"claim": claim, "verdict": verdict(family, sign), "told": details})
    return tested


def verdict(family: Sequence[SeedComparison], sign: int) -> str:
    """Return the verdict on the claim that every `a` of the family is on the side of `sign`."""
    decided = [c.decides(sign) for c in family]
    if all(decided):
        return "holds"
    if False in decided:
        return "does not hold"
    return f"undecided at n = {min(c.n for c in family)}"


def describe(c: SeedComparison, sign: int, digits: str) -> str:
    """Return one comparison as text."""
    signed = "+" + digits
    ends = f" ({c.interval[0]:{signed}} to {c.interval[1]:{signed}})" if c.interval else ""
    wins = sum(d * sign > 0 for d in c.differences)
    p = "unknown" if c.p_holm is None else "< 0.001" if c.p_holm < 0.001 else f"{c.p_holm:.3f}"
    word = {True: "yes", False: "the opposite", None: "undecided"}[c.decides(sign)]
    return (
        f"against {c.b} {c.mean:{signed}}{ends}, {wins} of {c.n} seed{'' if c.n == 1 else 's'}, p {p}: {word}"
    )


def difference_grid(a: Mapping[int, Jobs], b: Mapping[int, Jobs], seeds: Sequence[int]) -> Floats:
    """Return the mean difference [seed, scenario] over the jobs that both sides played, if complete."""
    rows: dict[int, dict[str, list[float]]] = {s: {} for s in seeds if s in a and s in b}
    for seed, row in rows.items():
        for job in a[seed].keys() & b[seed].keys():
            row.setdefault(job[0], []).append(a[seed][job] - b[seed][job])
    names = sorted(set.intersection(*map(set, rows.values()))) if rows else []
    means = [[float(np.mean(row[name])) for name in names] for row in rows.values()]
    return np.array(means, dtype=np.float64).reshape(len(rows), len(names))
