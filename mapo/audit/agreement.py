"""How far two judges agree: on each level, on the direction of a step, on the order of dialogues.

Quadratic weighted kappa (Cohen 1968) is 1 - sum w_ij O_ij / sum w_ij E_ij with w_ij = (i - j)^2: 1 is
agreement on every level, 0 what two judges with these habits would reach by chance. A level that neither
judge ever moves from gives no kappa: nothing was told apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def quadratic_kappa(a: Sequence[int], b: Sequence[int]) -> float | None:
    """Of two judges' levels of the same turns; None where there is nothing to agree on."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if not len(x):
        return None
    # The sums over the table of i and j, without the table: E[(i - j)^2] when drawn together and when apart.
    observed = float(((x - y) ** 2).mean())
    expected = float(x.var() + y.var() + (x.mean() - y.mean()) ** 2)
    return None if expected == 0 else 1 - observed / expected


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


def ranks(values: Sequence[float]) -> list[float]:
    """From 1; equal values share the mean of the ranks they take up."""
    x = np.asarray(values, dtype=np.float64)
    _, at, n = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(n)
    return [float(r) for r in (last - (n - 1) / 2)[at]]
