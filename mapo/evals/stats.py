"""Bootstrap intervals, in one place for every benchmark."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_CHUNK = 2_000_000  # resampled rows held in memory at once


def bootstrap(
    rows: Floats,
    statistic: Callable[[Floats], Floats],
    *,
    resamples: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Floats | None:
    """Percentile intervals [k, 2] of `statistic`, which maps mean rows [..., m] to [..., k].

    Whole rows (dialogues) are resampled, so the indices of one dialogue stay together. None for fewer
    than two rows: one dialogue says nothing about the spread between dialogues.
    """
    n = len(rows)
    if n < 2:
        return None
    rng = np.random.default_rng(seed)
    chunk = max(1, _CHUNK // n)
    means = [
        rows[rng.integers(0, n, size=(min(chunk, resamples - done), n))].mean(axis=1)
        for done in range(0, resamples, chunk)
    ]
    tail = 100 * (1 - level) / 2
    ends = np.percentile(statistic(np.concatenate(means)), [tail, 100 - tail], axis=0)
    return np.asarray(ends.T, dtype=np.float64)
