"""How much of a judge's word is noise, and what that does to training.

One judge, the same turn asked again: the spread within a turn is the judge's noise, the spread between turns
is what it sees in them (one-way random effects, method of moments, Searle 1971; turns may have been asked
unequally often). The *share* of noise is noise / (noise + between). Turns may stand for unequally many others
(`weights`): with weights w of sum W, n answers, mean m and variance s^2 of each turn,

    noise   = sum w s^2 / W, over the turns asked twice or more
    between = (sum w (m - M)^2 / W - sum w (1 - w / W) s^2 / n / W) / (1 - sum w^2 / W^2),   M = sum w m / W

where a turn asked once has the noise for its s^2.

What trains is not the reward but the advantage. Judge whole groups twice, and the correlation r of the two
sets of advantages is their reliability: a noisy advantage is about sqrt(r) A + sqrt(1 - r) e with a noise e
of unit variance, so it correlates by about sqrt(r) with the advantage of a judge without noise. That follows
from two answers alone, for every estimator, whatever it sums, normalises or mixes. It is a little too high in
small groups (at four siblings by up to 0.05): these divide by a spread that is itself noise.

- The group. Comparing siblings with their mean takes nothing from the noise: with s^2 the variance among
  siblings and e^2 the noise's, no group gets past sqrt(s^2 / (s^2 + e^2)), and small ones stay below it,
  because where siblings hardly differ noise is scaled up to their size. `group_for` says which group is large
  enough, if any is.
- The batch. The gradient's signal shrinks by sqrt(r), its spread does not, so 1 / r as many dialogues carry
  what they would without noise (`growth`).
- Repeats, or a panel of judges alike. The mean of m answers has reliability m r / (1 + (m - 1) r), after
  Spearman and Brown (`repeats_for`). A panel's median does a little less than the mean for noise of this
  kind.
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
from mapo.measure.stats import FEWEST, Floats, Interval, bootstrap, told

TARGET = 0.9
"""The correlation with the noise-free advantage that training should have."""


@dataclass(frozen=True, slots=True)
class Components:
    """Variances of one judge's rewards: between turns, and of its noise; over `turns` asked `answers`
    times."""

    between: float
    noise: float
    share: float | None
    interval: Interval | None
    turns: int
    answers: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def components(
    values: Sequence[Sequence[float]], clusters: Sequence[str], weights: Sequence[float] | None = None
) -> Components | None:
    """Of the repeated rewards of each turn; turns of one cluster (a dialogue) are resampled together. None
    where no turn was judged twice, or only one turn was."""
    rows: dict[str, Floats] = {}
    for own, cluster, w in zip(values, clusters, weights or [1.0] * len(values), strict=True):
        if own:
            rows[cluster] = rows.get(cluster, np.zeros(len(_SUMS))) + _row(
                np.asarray(own, dtype=np.float64), w
            )
    table = np.array(list(rows.values()), dtype=np.float64).reshape(-1, len(_SUMS))
    turns, answers = int(table[:, 0].sum()), int(table[:, 1].sum())
    if turns < 2 or answers == turns:
        return None
    between, noise, share = (float(x) for x in _variances(table.sum(axis=0)))
    ends = bootstrap(table, lambda means: _variances(means * len(table))[..., 2:])
    known = ends is not None and bool(np.isfinite(ends).all())
    return Components(
        between,
        noise,
        None if math.isnan(share) else share,
        told(*ends[0], rows=len(table)) if known and ends is not None else None,
        turns,
        answers,
    )


_SUMS = ("1", "n", "w", "ww", "wm", "wmm", "wv", "wwv", "w1", "ww1", "ws2")
"""What is summed over turns; v = s^2 / n of turns asked twice or more, w1 is the weight of the others."""


def _row(own: Floats, w: float) -> Floats:
    n, mean = len(own), float(own.mean())
    once = float(n == 1)
    s2 = 0.0 if once else float(own.var(ddof=1))
    v = s2 / n
    row = [1, n, w, w * w, w * mean, w * mean * mean, w * v, w * w * v, w * once, w * w * once]
    return np.array([*row, w * s2], dtype=np.float64)


def _variances(sums: Floats) -> Floats:
    """Sums over turns as in _SUMS -> between, noise, noise / (noise + between)."""
    _, _, w, ww, wm, wmm, wv, wwv, w1, ww1, ws2 = np.moveaxis(sums, -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        noise = ws2 / (w - w1)
        spread = wmm / w - (wm / w) ** 2
        of_noise = (wv - wwv / w + noise * (w1 - ww1 / w)) / w
        between = np.maximum((spread - of_noise) / (1 - ww / (w * w)), 0.0)
        share = noise / (noise + between)
    return np.stack([between, noise, share], axis=-1)


@dataclass(frozen=True, slots=True)
class Reliability:
    """Of advantages judged twice: `r` is the correlation of the two, over `turns` of `dialogues` in `groups`.
    The interval is over groups; where they are too few, over dialogues, which makes it a little narrow."""

    method: str
    r: float | None
    interval: Interval | None
    turns: int
    groups: int
    dialogues: int

    @property
    def with_truth(self) -> float | None:
        """The correlation with the advantage of the same judge without noise."""
        return None if self.r is None else math.sqrt(max(self.r, 0.0))

    def as_json(self) -> dict[str, Any]:
        more = {"with_truth": self.with_truth, "growth": growth(self.r), "repeats": repeats_for(self.r)}
        return {**asdict(self), **more}


def reliability_of(
    first: Sequence[Sequence[float | None]],
    second: Sequence[Sequence[float | None]],
    groups: Sequence[str],
    method: str = "mapo",
    **options: Any,
) -> Reliability:
    """Of the advantages of the same dialogues judged twice."""
    a, b = (advantages(rewards, groups, method, **options) for rewards in (first, second))
    rows: dict[Hashable, Floats] = {}
    seen: Counter[str] = Counter()
    whole = len(set(groups)) >= FEWEST
    for at, group in enumerate(groups):
        both = a.mask[at] & b.mask[at]
        x, y = a.mixed[at][both], b.mixed[at][both]
        if len(x):
            own = np.array([len(x), x.sum(), y.sum(), x @ x, y @ y, x @ y], dtype=np.float64)
            unit: Hashable = group if whole else at
            rows[unit] = rows.get(unit, np.zeros(6)) + own
            seen[group] += 1
    table = np.array(list(rows.values()), dtype=np.float64).reshape(-1, 6)
    r = float(_correlation(table.sum(axis=0))) if len(table) else math.nan

    def again(means: Floats) -> Floats:
        found = _correlation(means)
        return np.where(np.isfinite(found), found, r)[..., None]  # one dialogue alone, whose turns are alike

    ends = bootstrap(table, again)
    known = ends is not None and bool(np.isfinite(ends).all())
    return Reliability(
        method,
        None if math.isnan(r) else r,
        told(*ends[0], rows=len(table)) if known and ends is not None else None,
        int(table[:, 0].sum()),
        len(seen),
        seen.total(),
    )


def _correlation(sums: Floats) -> Floats:
    """Sums (or their means) of (1, x, y, x^2, y^2, x y) -> Pearson's r."""
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    both = (xx - x * x / n) * (yy - y * y / n)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(both > 1e-12 * xx * yy, (xy - x * y / n) / np.sqrt(both), math.nan)


def sibling_reliability(
    first: Sequence[Sequence[float | None]], second: Sequence[Sequence[float | None]], groups: Sequence[str]
) -> float | None:
    """Of the dialogues' sums, each measured from its group's mean: s^2 / (s^2 + e^2), free of any scaling."""
    sums: dict[str, list[tuple[float, float]]] = {}
    for a, b, group in zip(first, second, groups, strict=True):
        both = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
        sums.setdefault(group, []).append((sum(x for x, _ in both), sum(y for _, y in both)))
    apart = [np.array(own) - np.mean(own, axis=0) for own in sums.values() if len(own) > 1]
    if not apart:
        return None
    x, y = np.concatenate(apart).T
    spread = math.sqrt(float((x @ x) * (y @ y)))
    return float(x @ y) / spread if spread else None


SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Groups that are tried."""


def group_for(r: float | None, target: float = TARGET) -> int | None:
    """The smallest group whose advantages correlate by `target` with noise-free ones, `r` being the siblings'
    reliability; None where no group does."""
    if r is None or r <= 0:
        return None
    return next((n for n in SIZES if correlation_at(round(r, 3), n) >= target), None)


@lru_cache(maxsize=1024)
def correlation_at(r: float, n: int) -> float:
    """Of z-scores in groups of `n`, with and without the noise, for normal worth and noise: simulated."""
    rng = np.random.default_rng(0)
    truth = rng.standard_normal((60_000 // n, n))
    noisy = truth + math.sqrt((1 - min(r, 1.0)) / r) * rng.standard_normal(truth.shape)
    a, b = ((x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True) for x in (truth, noisy))
    return float((a * b).mean())


def repeats_for(r: float | None, target: float = TARGET) -> int | None:
    """How many answers must be averaged until the correlation with the noise-free advantage is `target`; None
    where no number is enough."""
    if r is None or r <= 0:
        return None
    wanted = target * target
    return max(1, math.ceil(wanted * (1 - r) / (r * (1 - wanted)) - 1e-9))


def growth(r: float | None) -> float | None:
    """By how much a batch must grow to carry as much as it would without noise."""
    return None if r is None or r <= 0 else 1 / r
