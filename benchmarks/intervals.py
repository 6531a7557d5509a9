"""How often are the intervals and tests of `mapo compare` right? Simulated pairs of models, known truth.

Coverage: how often the 95 % interval holds the true difference, beside plain percentiles. Size: how often the
sign-flip test calls a difference of nothing real at 5 %.
"""

from __future__ import annotations

import numpy as np

from mapo.evals.compare import comparison as compare
from mapo.evals.compare.entries import Case
from mapo.measure import stats

TIMES = 1000


def normal(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.normal(size=n)


def right_or_wrong(rng: np.random.Generator, n: int) -> np.ndarray:
    """Two models that are right on 55 % each, independently: differences of -1, 0, 1."""
    return (rng.random(n) < 0.55).astype(float) - (rng.random(n) < 0.55)


def skewed(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.exponential(size=n) - 1


def measure(draw, n: int) -> tuple[float, float, float]:
    rng = np.random.default_rng(n)
    ours = plain = rejected = 0
    for _ in range(TIMES):
        d = draw(rng, n)
        _, ends, p = compare.paired([Case(x) for x in d], [Case(0.0)] * n)
        ours += ends is None or ends[0] <= 0 <= ends[1]  # none is given where all are alike
        [(low, high)] = stats.bootstrap(d[:, None], lambda m: m, resamples=compare.RESAMPLES, level=0.95)
        plain += low <= 0 <= high
        rejected += p <= 0.05
    return ours / TIMES, plain / TIMES, rejected / TIMES


def main() -> None:
    compare.RESAMPLES, stats._FLIPS = 1000, 999
    print(f"{'scores':16} {'cases':>5} {'coverage':>9} {'percentiles':>12} {'size':>6}")
    for draw in (normal, right_or_wrong, skewed):
        for n in (8, 12, 30, 45, 200):
            ours, plain, size = measure(draw, n)
            print(f"{draw.__name__:16} {n:5} {ours:9.1%} {plain:12.1%} {size:6.1%}", flush=True)


if __name__ == "__main__":
    main()
