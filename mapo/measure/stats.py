"""Intervals and tests, in one place for every benchmark and comparison: the bootstrap, Student's t, sign
flips, Holm's correction. Numbers in, numbers out; who is compared with whom is decided elsewhere
(`bench.py`, `score.py`, `paired.py`, `compare.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Interval = tuple[float, float]

FEWEST = 6
"""Rows below which a mean is given no interval: of five, even the whole range holds the middle of what they
were drawn from only 94 times in 100 (1 - 2 / 2^5)."""
_CHUNK = 2_000_000  # resampled rows held in memory at once
_EXACT = 16
"""Pairs up to which all sign assignments are gone through."""
_FLIPS = 20_000
"""Sign assignments drawn where there are more."""


# ---- the bootstrap


def bootstrap(
    rows: Floats,
    statistic: Callable[[Floats], Floats],
    *,
    resamples: int = 2000,
    level: float | None = None,
    seed: int = 0,
    strata: Sequence[str] | None = None,
) -> Floats | None:
    """Percentile intervals [k, 2] of `statistic`, which maps mean rows [..., m] to [..., k]: of 95 %, widened
    for few rows (`small_sample_level`), or the percentiles of `level` as they are.

    Whole rows (dialogues) are resampled, so the indices of one dialogue stay together. None for fewer
    than two rows: one dialogue says nothing about the spread between dialogues. With `strata`, one name a
    row, every resample holds as many rows of each name as there are. The order of the rows does not matter:
    the same numbers have the same interval, whoever asks.
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

    def drawn(times: int) -> Floats:
        picked = [part[rng.integers(0, len(part), size=(times, len(part)))] for part in members]
        return np.asarray(rows[np.concatenate(picked, axis=1)].mean(axis=1), dtype=np.float64)

    means = [drawn(min(chunk, resamples - done)) for done in range(0, resamples, chunk)]
    tail = 100 * (1 - (small_sample_level(n) if level is None else level)) / 2
    ends = np.percentile(statistic(np.concatenate(means)), [tail, 100 - tail], axis=0)
    return np.asarray(ends.T, dtype=np.float64)


def small_sample_level(n: int, level: float = 0.95) -> float:
    """The level at which percentile intervals of a mean of `n` cover as wide as `level` promises.

    Percentiles take the spread for known and divide by n, not n - 1: with 30 rows they cover some 93 %, with
    10 some 90 %. The normal distribution puts as much beyond z = t * sqrt(n / (n - 1)) as this level leaves
    out, t being Student's quantile for n - 1 degrees of freedom.
    """
    z = t_quantile(n - 1, 0.5 + level / 2) * math.sqrt(n / (n - 1))
    return math.erf(z / math.sqrt(2))


def told(low: float, high: float, *, rows: int) -> Interval | None:
    """An interval worth showing; None for too few rows, and for rows that are all alike: that they never
    differed says nothing about how much others would."""
    return (float(low), float(high)) if rows >= FEWEST and low < high else None


def wilson(hits: int, n: int) -> Interval:
    """95 % interval of a share: the shares p that lie within z standard errors of p of the one seen."""
    z2 = 1.959963984540054**2
    middle = (hits + z2 / 2) / (n + z2)
    half = math.sqrt(z2 * (hits * (n - hits) / n + z2 / 4)) / (n + z2)
    return max(0.0, middle - half), min(1.0, middle + half)


def resampled(grid: Floats, *, seeds: bool, resamples: int = 4000) -> Interval | None:
    """95 % percentile interval of the grid's mean: scenarios resampled, and seeds too if asked."""
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
    """Two-sided p: how often random signs give a mean at least as far from 0. Exact up to 16 pairs that
    differ; a pair of equals has no sign to flip."""
    d = np.asarray(differences, dtype=np.float64)
    if not len(d):
        return None
    d = d[d != 0]
    n = len(d)
    seen = abs(float(d.sum())) - 1e-12 * float(np.abs(d).sum())  # other orders differ in the last digit
    if n <= _EXACT:
        signs = 1.0 - 2.0 * ((np.arange(2 ** max(n - 1, 0))[:, None] >> np.arange(n)) & 1)  # the rest mirrors
        return float(np.mean(np.abs(signs @ d) >= seen))
    rng = np.random.default_rng(0)
    chunk, reached = max(1, _CHUNK // n), 1
    for done in range(0, _FLIPS, chunk):
        signs = 1.0 - 2.0 * rng.integers(0, 2, size=(min(chunk, _FLIPS - done), n), dtype=np.int8)
        reached += int(np.sum(np.abs(signs @ d) >= seen))
    return reached / (1 + _FLIPS)


def t_test(differences: ArrayLike) -> float | None:
    """Two-sided p of the paired t test; None for fewer than two pairs, the sign-flip one without spread."""
    d = np.asarray(differences, dtype=np.float64)
    if len(d) < 2:
        return None
    error = d.std(ddof=1) / math.sqrt(len(d))
    if error <= 1e-12 * max(1.0, abs(float(d.mean()))):
        return sign_flip(d)  # no spread to measure by: counts in whole steps may well agree by chance
    return max(0.0, 2 * (1 - t_cdf(abs(float(d.mean() / error)), len(d) - 1)))


def t_interval(values: ArrayLike) -> Interval | None:
    """95 % interval of the mean, mean +- t * s / sqrt(n); None for fewer than two values."""
    x = np.asarray(values, dtype=np.float64)
    if len(x) < 2:
        return None
    half = t_quantile(len(x) - 1) * float(x.std(ddof=1)) / math.sqrt(len(x))
    return float(x.mean()) - half, float(x.mean()) + half


def t_cdf(t: float, df: int) -> float:
    """P(T <= t) for t >= 0 and a whole number of degrees of freedom: the finite series in cos(theta),
    theta = atan(t / sqrt(df)), whose k-th term is the one before times cos^2 (k-1)/k."""
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
    """Where t_cdf reaches `level`, by halving."""
    low, high = 0.0, 2.0
    while t_cdf(high, df) < level:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, df) < level else (low, middle)
    return high


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Step-down: the k-th smallest of m is multiplied by m - k + 1, and none falls below one before it."""
    known = sorted((p, i) for i, p in enumerate(ps) if p is not None)
    result: list[float | None] = [None] * len(ps)
    floor = 0.0
    for rank, (p, i) in enumerate(known):
        floor = max(floor, min(1.0, p * (len(known) - rank)))
        result[i] = floor
    return result
