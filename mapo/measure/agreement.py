"""Agreement between two judges: on levels, on the direction of steps, on the ranking of dialogues.

Quadratic weighted kappa (Cohen 1968) is 1 - sum w_ij O_ij / sum w_ij E_ij with w_ij = (i - j)^2, where O are
the observed and E the expected frequencies: 1 is perfect agreement, 0 the agreement expected by chance. If
neither judge ever varies a level, kappa is undefined (None).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mapo.measure.stats import MIN_ROWS, Floats, Interval, bootstrap, reportable


def quadratic_kappa(a: Sequence[int], b: Sequence[int]) -> float | None:
    """Return the quadratic weighted kappa of two judges' levels of the same turns, None if neither varies."""
    return pooled_kappa([a], [b])


def pooled_kappa(a: Sequence[Sequence[int]], b: Sequence[Sequence[int]]) -> float | None:
    """Return the kappa of several items together: 1 - sum of observed / sum of expected disagreement.

    The expected disagreement is computed per item, so an item that hardly varies has little weight.
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if not x.size:
        return None
    observed, expected = _disagreement(*(part.mean(axis=1) for part in (x, y, x * x, y * y, x * y)))
    return None if expected.sum() < 1e-12 else float(1 - observed.sum() / expected.sum())


def _disagreement(x: Floats, y: Floats, xx: Floats, yy: Floats, xy: Floats) -> tuple[Floats, Floats]:
    """Return E[(i - j)^2] for paired and for independent levels, from the means of i, j, i^2, j^2 and i*j."""
    return xx + yy - 2 * xy, xx + yy - 2 * x * y


def kappa_interval(x: Floats, y: Floats, clusters: Sequence[str]) -> Interval | None:
    """Return the 95 % interval of the pooled kappa of [turn, item] levels, resampling clusters
    (dialogues).
    """
    names = list(dict.fromkeys(clusters))
    at = np.array([names.index(cluster) for cluster in clusters])
    parts = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1)
    table = np.stack([parts[at == i].sum(axis=0) for i in range(len(names))])

    def statistic(flat: Floats) -> Floats:
        n, *sums = np.moveaxis(flat.reshape(*flat.shape[:-1], 6, x.shape[1]), -2, 0)
        observed, expected = _disagreement(*(part / n for part in sums))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(1 - observed.sum(axis=-1) / expected.sum(axis=-1))[..., None]

    ends = bootstrap(table.reshape(len(names), -1), statistic)
    return None if ends is None or not np.isfinite(ends).all() else reportable(*ends[0], rows=len(names))


def cosine(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the cosine of two step vectors, None if one of them is zero."""
    length = math.hypot(*a) * math.hypot(*b)
    return sum(x * y for x, y in zip(a, b, strict=True)) / length if length else None


def mean_cosine(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> tuple[float | None, int]:
    """Return the mean cosine over the turns in which both step vectors are nonzero, and their number."""
    cosines = [c for x, y in zip(a, b, strict=True) if (c := cosine(x, y)) is not None]
    return (sum(cosines) / len(cosines) if cosines else None), len(cosines)


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, None for fewer than three values or without variance."""
    return pearson(ranks(a), ranks(b)) if len(a) > 2 else None


def pearson(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return Pearson's correlation, None for fewer than two values or without variance."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    x, y = x - x.mean(), y - y.mean()
    return float((x @ y) / math.sqrt(float((x @ x) * (y @ y))))


def correlation_interval(r: float | None, n: int, *, of_ranks: bool = False) -> Interval | None:
    """Return the 95 % interval of a correlation over `n` pairs, None for fewer than six.

    Fisher's z = atanh(r) has the standard error 1 / sqrt(n - 3); for rank correlations it is
    sqrt((1 + r^2 / 2) / (n - 3)) (Bonett and Wright 2000).
    """
    if r is None or n < MIN_ROWS:
        return None
    if abs(r) >= 1 - 1e-12:
        return (r, r)
    half = 1.959963984540054 * math.sqrt((1 + r * r / 2 if of_ranks else 1.0) / (n - 3))
    return math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)


def ranks(values: Sequence[float]) -> list[float]:
    """Return ranks from 1; equal values get the mean of their ranks."""
    x = np.asarray(values, dtype=np.float64)
    _, at, n = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(n)
    return [float(r) for r in (last - (n - 1) / 2)[at]]
