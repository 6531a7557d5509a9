"""How far two judges agree: on each level, on the direction of a step, on the order of dialogues.

Quadratic weighted kappa (Cohen 1968) is 1 - sum w_ij O_ij / sum w_ij E_ij with w_ij = (i - j)^2: 1 is
agreement on every level, 0 what two judges with these habits would reach by chance. A level that neither
judge ever moves from gives no kappa: nothing was told apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mapo.measure.stats import FEWEST, Floats, Interval, bootstrap, told


def quadratic_kappa(a: Sequence[int], b: Sequence[int]) -> float | None:
    """Of two judges' levels of the same turns; None where there is nothing to agree on."""
    return pooled_kappa([a], [b])


def pooled_kappa(a: Sequence[Sequence[int]], b: Sequence[Sequence[int]]) -> float | None:
    """Of several items at once, each with its own chance: 1 - sum of observed / sum of expected disagreement,
    so that an item which hardly ever moves weighs as little as it says."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if not x.size:
        return None
    observed, expected = _disagreement(*(part.mean(axis=1) for part in (x, y, x * x, y * y, x * y)))
    return None if expected.sum() < 1e-12 else float(1 - observed.sum() / expected.sum())


def _disagreement(x: Floats, y: Floats, xx: Floats, yy: Floats, xy: Floats) -> tuple[Floats, Floats]:
    """E[(i - j)^2] of two judges' levels drawn together, and drawn apart, from the means of i, j, i^2, j^2, i
    j."""
    return xx + yy - 2 * xy, xx + yy - 2 * x * y


def kappa_interval(x: Floats, y: Floats, clusters: Sequence[str]) -> Interval | None:
    """Of the pooled kappa of [turn, item] levels: 95 %, turns of one cluster (a dialogue) resampled
    together."""
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
    return None if ends is None or not np.isfinite(ends).all() else told(*ends[0], rows=len(names))


def cosine(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Of two step vectors; None where one of them does not move."""
    length = math.hypot(*a) * math.hypot(*b)
    return sum(x * y for x, y in zip(a, b, strict=True)) / length if length else None


def mean_cosine(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> tuple[float | None, int]:
    """Over the turns that both judges moved, and how many those are."""
    found = [c for x, y in zip(a, b, strict=True) if (c := cosine(x, y)) is not None]
    return (sum(found) / len(found) if found else None), len(found)


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Correlation of ranks, equal values sharing their mean rank; None for fewer than three, or without
    spread."""
    return pearson(ranks(a), ranks(b)) if len(a) > 2 else None


def pearson(a: Sequence[float], b: Sequence[float]) -> float | None:
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    x, y = x - x.mean(), y - y.mean()
    return float((x @ y) / math.sqrt(float((x @ x) * (y @ y))))


def correlation_interval(r: float | None, n: int, *, of_ranks: bool = False) -> Interval | None:
    """95 % of a correlation over `n`, by Fisher's z = atanh(r) of standard error 1 / sqrt(n - 3); of ranks,
    sqrt((1 + r^2 / 2) / (n - 3)) (Bonett and Wright 2000). None for fewer than six."""
    if r is None or n < FEWEST:
        return None
    if abs(r) >= 1 - 1e-12:
        return (r, r)
    half = 1.959963984540054 * math.sqrt((1 + r * r / 2 if of_ranks else 1.0) / (n - 3))
    return math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)


def ranks(values: Sequence[float]) -> list[float]:
    """From 1; equal values share the mean of the ranks they take up."""
    x = np.asarray(values, dtype=np.float64)
    _, at, n = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(n)
    return [float(r) for r in (last - (n - 1) / 2)[at]]
