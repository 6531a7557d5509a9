"""Judge noise, and its effect on training.

When one judge rates the same turn several times, the variance within a turn is its noise and the variance
between turns is what it distinguishes (one-way random effects, method of moments, Searle 1971; the number of
answers per turn may vary). The *share* of noise is noise / (noise + between). Sampled turns may represent
different numbers of recorded turns (`weights`): with weights w of sum W, n answers, mean m and variance s^2
per turn,

    noise   = sum w s^2 / W, over the turns rated twice or more
    between = (sum w (m - M)^2 / W - sum w (1 - w / W) s^2 / n / W) / (1 - sum w^2 / W^2),   M = sum w m / W

where a turn rated once uses the noise as its s^2.

Training uses advantages, not rewards. If whole groups are judged twice, the correlation r of the two sets of
advantages is their reliability: a noisy advantage is about sqrt(r) A + sqrt(1 - r) e with noise e of unit
variance, so its correlation with the advantage of a noise-free judge is about sqrt(r). This needs only two
answers and holds for every estimator, whatever it sums, normalises or mixes. It is slightly too high for
small groups (by up to 0.05 with four siblings), because they divide by a noisy standard deviation.

- Group size. Subtracting the group mean does not remove noise: with variance s^2 among siblings and noise
  variance e^2, the correlation is at most sqrt(s^2 / (s^2 + e^2)) for any group size. Small groups stay below
  that, because where siblings hardly differ, normalisation amplifies the noise. `group_size_for` returns the
  smallest sufficient size, if there is one.
- Batch size. The signal in the gradient shrinks by sqrt(r) and its variance does not, so 1 / r times as many
  dialogues are needed to offset the noise (`batch_multiplier`).
- Repeats, or a panel of similar judges. The mean of m answers has reliability m r / (1 + (m - 1) r)
  (Spearman-Brown; `repeats_for`). The median of a panel gains slightly less than the mean.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from mapo.advantage import advantages
from mapo.measure.stats import MIN_ROWS, Floats, Interval, bootstrap, reportable

TARGET = 0.9
"""Correlation with noise-free advantages that training should reach."""


@dataclass(frozen=True, slots=True)
class VarianceComponents:
    """Variances of one judge's rewards, between turns and from noise, over `turns` with `answers` in all."""

    between: float
    noise: float
    share: float | None
    interval: Interval | None
    """95 % interval of `share`, over dialogues."""
    turns: int
    answers: int
    dialogues: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the fields as written to audit.json."""
        return asdict(self)


def variance_components(
    values: Sequence[Sequence[float]], clusters: Sequence[str], weights: Sequence[float] | None = None
) -> VarianceComponents | None:
    """Separate noise from differences between turns, given the repeated rewards of each turn. Turns of one
    cluster (a dialogue) are resampled together. None if no turn was rated twice, or there is only one."""
    sums: dict[str, Floats] = {}
    for repeats, cluster, w in zip(values, clusters, weights or [1.0] * len(values), strict=True):
        if repeats:
            row = _row(np.asarray(repeats, dtype=np.float64), w)
            sums[cluster] = sums.get(cluster, np.zeros(len(_SUMS))) + row
    table = np.array(list(sums.values()), dtype=np.float64).reshape(-1, len(_SUMS))
    turns, answers = int(table[:, 0].sum()), int(table[:, 1].sum())
    if turns < 2 or answers == turns:
        return None
    between, noise, share = (float(x) for x in _variances(table.sum(axis=0)))
    ends = bootstrap(table, lambda means: _variances(means * len(table))[..., 2:])
    finite = ends is not None and bool(np.isfinite(ends).all())
    return VarianceComponents(
        between,
        noise,
        None if math.isnan(share) else share,
        reportable(*ends[0], rows=len(table)) if finite and ends is not None else None,
        turns,
        answers,
        len(table),
    )


_SUMS = ("1", "n", "w", "ww", "wm", "wmm", "wv", "wwv", "w1", "ww1", "ws2")
"""Sums over turns; v = s^2 / n of turns rated twice or more, w1 is the weight of turns rated once."""


def _row(repeats: Floats, w: float) -> Floats:
    n, mean = len(repeats), float(repeats.mean())
    once = float(n == 1)
    s2 = 0.0 if once else float(repeats.var(ddof=1))
    v = s2 / n
    row = [1, n, w, w * w, w * mean, w * mean * mean, w * v, w * w * v, w * once, w * w * once]
    return np.array([*row, w * s2], dtype=np.float64)


def _variances(sums: Floats) -> Floats:
    """Return between, noise and noise / (noise + between) from the sums in _SUMS."""
    _, _, w, ww, wm, wmm, wv, wwv, w1, ww1, ws2 = np.moveaxis(sums, -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        noise = ws2 / (w - w1)
        total = wmm / w - (wm / w) ** 2
        from_noise = (wv - wwv / w + noise * (w1 - ww1 / w)) / w
        between = np.maximum((total - from_noise) / (1 - ww / (w * w)), 0.0)
        share = noise / (noise + between)
    return np.stack([between, noise, share], axis=-1)


@dataclass(frozen=True, slots=True)
class Reliability:
    """Reliability of advantages: the correlation `r` of two judgements, over `turns` of `dialogues` in
    `groups`. The interval is over groups or, with fewer than six groups, over dialogues, which makes it
    slightly too narrow."""

    method: str
    r: float | None
    interval: Interval | None
    turns: int
    groups: int
    dialogues: int

    @property
    def with_truth(self) -> float | None:
        """Correlation with the advantages of the same judge without noise, sqrt(r)."""
        return None if self.r is None else math.sqrt(max(self.r, 0.0))

    @property
    def with_truth_interval(self) -> Interval | None:
        """95 % interval of `with_truth`."""
        if self.interval is None:
            return None
        low, high = (math.sqrt(max(0.0, end)) for end in self.interval)
        return low, high

    def as_json(self) -> dict[str, Any]:
        """Return the fields and what follows from them, as written to audit.json."""
        derived = {
            "with_truth": self.with_truth,
            "growth": batch_multiplier(self.r),
            "repeats": repeats_for(self.r),
        }
        return {**asdict(self), **derived}


def advantage_reliability(
    first: Sequence[Sequence[float | None]],
    second: Sequence[Sequence[float | None]],
    groups: Sequence[str],
    method: str = "mapo",
    **options: Any,
) -> Reliability:
    """Measure the reliability of advantages from two sets of rewards of the same dialogues."""
    a, b = (advantages(rewards, groups, method, **options) for rewards in (first, second))
    sums: dict[Hashable, Floats] = {}
    dialogues: Counter[str] = Counter()
    by_group = len(set(groups)) >= MIN_ROWS
    for at, group in enumerate(groups):
        scored = a.mask[at] & b.mask[at]
        x, y = a.mixed[at][scored], b.mixed[at][scored]
        if len(x):
            row = np.array([len(x), x.sum(), y.sum(), x @ x, y @ y, x @ y], dtype=np.float64)
            unit: Hashable = group if by_group else at
            sums[unit] = sums.get(unit, np.zeros(6)) + row
            dialogues[group] += 1
    table = np.array(list(sums.values()), dtype=np.float64).reshape(-1, 6)
    r = float(_correlation(table.sum(axis=0))) if len(table) else math.nan

    def resampled(means: Floats) -> Floats:
        values = _correlation(means)
        return np.where(np.isfinite(values), values, r)[..., None]  # undefined if all turns drawn are alike

    ends = bootstrap(table, resampled)
    finite = ends is not None and bool(np.isfinite(ends).all())
    return Reliability(
        method,
        None if math.isnan(r) else r,
        reportable(*ends[0], rows=len(table)) if finite and ends is not None else None,
        int(table[:, 0].sum()),
        len(dialogues),
        dialogues.total(),
    )


def _correlation(sums: Floats) -> Floats:
    """Return Pearson's r from the sums (or means) of 1, x, y, x^2, y^2 and x y."""
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    variances = (xx - x * x / n) * (yy - y * y / n)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(variances > 1e-12 * xx * yy, (xy - x * y / n) / np.sqrt(variances), math.nan)


def sibling_reliability(
    first: Sequence[Sequence[float | None]], second: Sequence[Sequence[float | None]], groups: Sequence[str]
) -> float | None:
    """Return the reliability of dialogue returns measured from their group's mean: s^2 / (s^2 + e^2),
    independent of any normalisation."""
    sums: dict[str, list[tuple[float, float]]] = {}
    for a, b, group in zip(first, second, groups, strict=True):
        pairs = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
        sums.setdefault(group, []).append((sum(x for x, _ in pairs), sum(y for _, y in pairs)))
    centred = [np.array(pairs) - np.mean(pairs, axis=0) for pairs in sums.values() if len(pairs) > 1]
    if not centred:
        return None
    x, y = np.concatenate(centred).T
    scale = math.sqrt(float((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale else None


GROUP_SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Group sizes that `group_size_for` tries."""


def group_size_for(r: float | None, target: float = TARGET) -> int | None:
    """Return the smallest group whose advantages correlate by `target` with noise-free ones, given the
    reliability `r` among siblings; None if no size is enough."""
    if r is None or r <= 0:
        return None
    return next((n for n in GROUP_SIZES if correlation_at(round(r, 3), n) >= target), None)


@lru_cache(maxsize=1024)
def correlation_at(r: float, n: int) -> float:
    """Simulate the correlation of z-scores with and without noise in groups of `n`, for normal values."""
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((60_000 // n, n))
    noisy = truth + math.sqrt((1 - min(r, 1.0)) / r) * rng.standard_normal(truth.shape)
    a, b = ((x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True) for x in (truth, noisy))
    return float((a * b).mean())


def repeats_for(r: float | None, target: float = TARGET) -> int | None:
    """Return how many answers to average for a correlation of `target` with noise-free advantages; None if
    no number is enough."""
    if r is None or r <= 0:
        return None
    wanted = target * target
    return max(1, math.ceil(wanted * (1 - r) / (r * (1 - wanted)) - 1e-9))


def batch_multiplier(r: float | None) -> float | None:
    """Return how many times more dialogues are needed to offset the noise."""
    return None if r is None or r <= 0 else 1 / r
