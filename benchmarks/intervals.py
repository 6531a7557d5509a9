"""Measure the error rates of the intervals and tests of `mapo compare` on simulated pairs of equal models.

    .venv/bin/python benchmarks/intervals.py [--repeats 1000]

Coverage: how often the 95 % interval contains the true difference, compared with a percentile bootstrap.
Size: how often the sign-flip test rejects at 5 % although the models are equal.
"""

from __future__ import annotations

import argparse

import numpy as np

from mapo.evals.compare import comparison as compare
from mapo.evals.compare.entries import Case
from mapo.measure import stats


def normal(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.normal(size=n)


def right_or_wrong(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return differences of two models that are independently right on 55 % of the cases."""
    return (rng.random(n) < 0.55).astype(float) - (rng.random(n) < 0.55)


def skewed(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.exponential(size=n) - 1


def measure(draw, n: int, repeats: int) -> tuple[float, float, float]:
    """Return (coverage, coverage of percentiles, size) for `n` cases."""
    rng = np.random.default_rng(n)
    covered = plain = rejected = 0
    for _ in range(repeats):
        d = draw(rng, n)
        _, ends, p = compare.paired([Case(x) for x in d], [Case(0.0)] * n)
        covered += ends is None or ends[0] <= 0 <= ends[1]  # None if all differences are equal
        [(low, high)] = stats.bootstrap(d[:, None], lambda m: m, resamples=compare.RESAMPLES, level=0.95)
        plain += low <= 0 <= high
        rejected += p <= 0.05
    return covered / repeats, plain / repeats, rejected / repeats


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=1000, help="simulated pairs per row (default: 1000)")
    repeats = parser.parse_args().repeats
    compare.RESAMPLES, stats._FLIPS = 1000, 999
    print(f"{'scores':16} {'cases':>5} {'coverage':>9} {'percentiles':>12} {'size':>6}")
    for draw in (normal, right_or_wrong, skewed):
        for n in (8, 12, 30, 45, 200):
            covered, plain, size = measure(draw, n, repeats)
            print(f"{draw.__name__:16} {n:5} {covered:9.1%} {plain:12.1%} {size:6.1%}", flush=True)


if __name__ == "__main__":
    main()
