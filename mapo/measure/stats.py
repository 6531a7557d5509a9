"""Confidence intervals and tests for all benchmarks and comparisons.

Bootstrap, Student's t, sign-flip test, Wilson interval, Holm's correction. Pure functions of numbers; what is
compared with what is decided by the callers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Interval = tuple[float, float]

MIN_ROWS = 6
"""Smallest number of rows for which an interval is reported. With five rows, even the full range covers the
population median with a probability of only 1 - 2 / 2^5 = 94 %."""
_CHUNK = 2_000_000  # maximum number of resampled rows in memory
_EXACT = 16
"""Maximum number of pairs for which all sign assignments are enumerated."""
_FLIPS = 20_000
"""Number of random sign assignments for more pairs."""


# ---- bootstrap


def bootstrap(
    rows: Floats,
    statistic: Callable[[Floats], Floats],
    *,
    resamples: int = 2000,
    level: float | None = None,
    seed: int = 0,
    strata: Sequence[str] | None = None,
) -> Floats | None:
    """Return percentile intervals [k, 2] of `statistic`, which maps mean rows [..., m] to [..., k].

    Complete rows (dialogues) are resampled, so that the indices of one dialogue stay together. The default is
    a 95 % interval, widened for small samples (`small_sample_level`); `level` sets the percentiles
    explicitly. With `strata`, one name per row, every resample contains as many rows of each name as the
    original. The result does not depend on the order of the rows. Returns None for fewer than two rows.
    """
    n = len(rows)
    if n < 2:
        return None
    rng = np.random.default_rng(seed)
    chunk = max(1, _CHUNK // n)
    names = np.array(["" for _ in range(n)] if strata is None else strata)
    with np.errstate(invalid="ignore", divide="ignore"):
        order = np.lexsort((*rows.T, statistic(rows)[..., -1]))
    rows, names = rows[order], names[order]
    members = [np.flatnonzero(names == name) for name in sorted(set(names.tolist()))]

    def resample(times: int) -> Floats:
        chosen = [part[rng.integers(0, len(part), size=(times, len(part)))] for part in members]
        return np.asarray(rows[np.concatenate(chosen, axis=1)].mean(axis=1), dtype=np.float64)

    means = [resample(min(chunk, resamples - done)) for done in range(0, resamples, chunk)]
    tail = 100 * (1 - (small_sample_level(n) if level is None else level)) / 2
    ends = np.percentile(statistic(np.concatenate(means)), [tail, 100 - tail], axis=0)
    return np.asarray(ends.T, dtype=np.float64)


def small_sample_level(n: int, level: float = 0.95) -> float:
    """Return the percentile level whose interval for a mean of `n` rows has a coverage of about `level`.

    Percentile intervals treat the variance as known and divide by n instead of n - 1: at 95 % they cover
    about 93 % with 30 rows and 90 % with 10. The correction is the normal probability within +-z,

        z = t * sqrt(n / (n - 1)),    t = Student's quantile for n - 1 degrees of freedom.
    """
    z = t_quantile(n - 1, 0.5 + level / 2) * math.sqrt(n / (n - 1))
    return math.erf(z / math.sqrt(2))


def reportable(low: float, high: float, *, rows: int) -> Interval | None:
    """Return the interval, or None if it should not be reported: too few rows, or rows that are all equal,
    which say nothing about the variance.
    """
    return (float(low), float(high)) if rows >= MIN_ROWS and low < high else None


def wilson(hits: float, n: int) -> Interval:
    """Return the 95 % Wilson interval of a proportion: all p within z standard errors of the observed
    proportion.
    """
    z2 = 1.959963984540054**2
    middle = (hits + z2 / 2) / (n + z2)
    half = math.sqrt(z2 * (hits * (n - hits) / n + z2 / 4)) / (n + z2)
    return max(0.0, middle - half), min(1.0, middle + half)


def grid_interval(grid: Floats, *, seeds: bool, resamples: int = 4000) -> Interval | None:
    """Return the 95 % bootstrap interval of the mean of a [seed, scenario] grid. Scenarios are resampled, and
    seeds too if `seeds` is set.
    """
    n, m = grid.shape
    if m < 2 or (seeds and n < 2) or n < 1:
        return None
    rng = np.random.default_rng(0)
    columns = rng.multinomial(m, np.full(m, 1 / m), size=resamples) / m
    rows = rng.multinomial(n, np.full(n, 1 / n), size=resamples) / n if seeds else np.full((1, n), 1 / n)
    means = np.einsum("ri,ij,rj->r", np.broadcast_to(rows, (resamples, n)), grid, columns, optimize=True)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


# ---- tests of paired differences


def sign_flip(differences: ArrayLike) -> float | None:
    """Return the two-sided p value of the sign-flip test: how often random signs give a mean at least as far
    from 0.

    Exact for up to 16 nonzero differences; zero differences are dropped. None without any differences.
    """
    d = np.asarray(differences, dtype=np.float64)
    if not len(d):
        return None
    d = d[d != 0]
    n = len(d)
    observed = abs(float(d.sum())) - 1e-12 * float(np.abs(d).sum())  # tolerance for summation order
    if n <= _EXACT:
        signs = 1.0 - 2.0 * (
            (np.arange(2 ** max(n - 1, 0))[:, None] >> np.arange(n)) & 1
        )  # the other half is symmetric
        return float(np.mean(np.abs(signs @ d) >= observed))
    rng = np.random.default_rng(0)
    chunk, reached = max(1, _CHUNK // n), 1
    for done in range(0, _FLIPS, chunk):
        signs = 1.0 - 2.0 * rng.integers(0, 2, size=(min(chunk, _FLIPS - done), n), dtype=np.int8)
        reached += int(np.sum(np.abs(signs @ d) >= observed))
    return reached / (1 + _FLIPS)


def t_test(differences: ArrayLike) -> float | None:
    """Return the two-sided p value of the paired t test, of the sign-flip test if all differences are equal;
    None for fewer than two pairs.
    """
    d = np.asarray(differences, dtype=np.float64)
    if len(d) < 2:
        return None
    error = d.std(ddof=1) / math.sqrt(len(d))
    if error <= 1e-12 * max(1.0, abs(float(d.mean()))):
        return sign_flip(d)  # equal differences may be a coincidence of discrete scores; t would be infinite
    return max(0.0, 2 * (1 - t_cdf(abs(float(d.mean() / error)), len(d) - 1)))


def t_interval(values: ArrayLike) -> Interval | None:
    """Return the 95 % interval of the mean, mean +- t * s / sqrt(n); None for fewer than two values."""
    x = np.asarray(values, dtype=np.float64)
    if len(x) < 2:
        return None
    half = t_quantile(len(x) - 1) * float(x.std(ddof=1)) / math.sqrt(len(x))
    return float(x.mean()) - half, float(x.mean()) + half


def t_cdf(t: float, df: int) -> float:
    """Return P(T <= t) for t >= 0 and integer degrees of freedom.

    Uses the finite series in cos(theta), theta = atan(t / sqrt(df)), in which the k-th term is the previous
    one times cos^2(theta) * (k - 1) / k.
    """
    theta = math.atan(t / math.sqrt(df))
    sine, cosine = math.sin(theta), math.cos(theta)
    term = cosine if df % 2 else 1.0
    total = term if df > 1 else 0.0
    for k in range(3 if df % 2 else 2, df - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    central = 2 / math.pi * (theta + sine * total) if df % 2 else sine * total
    return 0.5 + central / 2


def t_quantile(df: int, level: float = 0.975) -> float:
    """Return the t with t_cdf(t, df) = level, by bisection."""
    low, high = 0.0, 2.0
    while t_cdf(high, df) < level:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, df) < level else (low, middle)
    return high


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Apply Holm's step-down correction: multiply the k-th smallest of m p values by m - k + 1, keeping them
    monotonic.
    """
    known = sorted((p, i) for i, p in enumerate(ps) if p is not None)
    result: list[float | None] = [None] * len(ps)
    floor = 0.0
    for rank, (p, i) in enumerate(known):
        floor = max(floor, min(1.0, p * (len(known) - rank)))
        result[i] = floor
    return result
