"""Bootstrap intervals, in one place for every benchmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    strata: Sequence[str] | None = None,
) -> Floats | None:
    """Percentile intervals [k, 2] of `statistic`, which maps mean rows [..., m] to [..., k].

    Whole rows (dialogues) are resampled, so the indices of one dialogue stay together. None for fewer
    than two rows: one dialogue says nothing about the spread between dialogues. With `strata`, one name a
    row, every resample holds as many rows of each name as there are.
    """
    n = len(rows)
    if n < 2:
        return None
    rng = np.random.default_rng(seed)
    chunk = max(1, _CHUNK // n)
    names = np.array(["" for _ in range(n)] if strata is None else strata)
    members = [np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())]

    def drawn(times: int) -> Floats:
        picked = [part[rng.integers(0, len(part), size=(times, len(part)))] for part in members]
        return np.asarray(rows[np.concatenate(picked, axis=1)].mean(axis=1), dtype=np.float64)

    means = [drawn(min(chunk, resamples - done)) for done in range(0, resamples, chunk)]
    tail = 100 * (1 - level) / 2
    ends = np.percentile(statistic(np.concatenate(means)), [tail, 100 - tail], axis=0)
    return np.asarray(ends.T, dtype=np.float64)
