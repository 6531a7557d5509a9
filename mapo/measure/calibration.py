"""Calibration of levels that are read out of a model: one temperature and a list of cuts per place.

The temperature T of a place turns log-probabilities into probabilities, p ~ exp(log p / T); it is fitted by
maximum likelihood. The level is then the number of cuts that the expected level sum_k k * p_k reaches. Cuts
are fitted to maximise the quadratic weighted kappa with the recorded levels, because the most likely level of
a rare class is almost never the rare one. Without cuts, the level is the most likely one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mapo.errors import InputError
from mapo.measure.stats import Floats

TEMPERATURES = (0.05, 20.0)
"""The range of temperatures that are fitted, and the only ones that are read."""
LARGEST = 1e6
"""Numbers of this size and more are not read."""
_CANDIDATES = 128
"""Cuts that are tried per level: quantiles of the expected levels."""

Probabilities = tuple[tuple[float, ...], ...]
"""For each place, the probabilities of its levels 0, 1, 2, ..."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Temperatures and cuts, one entry per place. An empty tuple stands for 1 and for the most likely
    level.
    """

    temperatures: tuple[float, ...] = ()
    cuts: tuple[tuple[float, ...], ...] = ()

    def apply(self, logprobs: Sequence[Sequence[float]]) -> Probabilities:
        """Return the calibrated probabilities of every place."""
        temperatures = self.temperatures or (1.0,) * len(logprobs)
        return tuple(
            tuple(softmax(np.array(place, dtype=np.float64) / t).tolist())
            for place, t in zip(logprobs, temperatures, strict=True)
        )

    def levels(self, probabilities: Sequence[Sequence[float]]) -> tuple[int, ...]:
        """Return the level of every place, counted from 0."""
        if not self.cuts:
            return tuple(int(np.argmax(place)) for place in probabilities)
        return tuple(
            sum(expected_level(place) >= cut for cut in cuts)
            for place, cuts in zip(probabilities, self.cuts, strict=True)
        )

    def to_json(self) -> dict[str, Any]:
        """Return the calibration as plain JSON values."""
        return {"temperatures": list(self.temperatures), "cuts": [list(cuts) for cuts in self.cuts]}

    @staticmethod
    def from_json(data: object, options: Sequence[int], where: str = "calibration") -> Calibration:
        """Read what `to_json` returned, for places with `options` levels each. Raises InputError."""
        fix = "Train the role again, or remove the calibration"
        if not isinstance(data, dict) or data.keys() != {"temperatures", "cuts"}:
            raise InputError("not an object with temperatures and cuts", where=where, fix=fix)
        temperatures, cuts = data["temperatures"], data["cuts"]
        low, high = TEMPERATURES
        if not _numbers(temperatures) or not all(low <= t <= high for t in temperatures):
            raise InputError(f"a temperature is not a number from {low} to {high}", where=where, fix=fix)
        if not isinstance(cuts, list) or not all(_numbers(c) and c == sorted(c) for c in cuts):
            raise InputError("cuts are not lists of increasing numbers", where=where, fix=fix)
        if len(temperatures) not in (0, len(options)) or [len(c) + 1 for c in cuts] not in ([], [*options]):
            raise InputError("does not fit the places of the form", where=where, fix=fix)
        return Calibration(tuple(map(float, temperatures)), tuple(tuple(map(float, c)) for c in cuts))


IDENTITY = Calibration()
"""Changes no probability; levels are the most likely ones."""


def fit(logprobs: Sequence[Floats], levels: Sequence[Sequence[int]]) -> Calibration:
    """Fit a calibration to recorded levels.

    `logprobs[k]` are the log-probabilities of place k, one row per judgement;
    `levels[k]` are its recorded levels.
    """
    temperatures, cuts = [], []
    for place, recorded in zip(logprobs, levels, strict=True):
        x, y = np.asarray(place, dtype=np.float64), np.asarray(recorded, dtype=np.int64)
        temperatures.append(_fit_temperature(x, y))
        probabilities = softmax(x / temperatures[-1])
        cuts.append(_fit_cuts(probabilities @ np.arange(x.shape[1]), y, x.shape[1]))
    return Calibration(tuple(temperatures), tuple(cuts))


def expected_level(probabilities: Sequence[float]) -> float:
    """Return sum_k k * p_k."""
    return sum(level * p for level, p in enumerate(probabilities))


def softmax(x: Floats) -> Floats:
    """Return the softmax over the last dimension."""
    scaled = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(scaled / scaled.sum(axis=-1, keepdims=True))


def _fit_temperature(x: Floats, y: np.ndarray[Any, np.dtype[np.int64]]) -> float:
    """Return the temperature with the smallest negative log-likelihood of the levels `y`."""

    def nll(log_t: float) -> float:
        p = softmax(x / math.exp(log_t))[np.arange(len(y)), y]
        return float(-np.log(np.maximum(p, 1e-12)).mean())

    low, high = TEMPERATURES
    return math.exp(_golden_section(nll, math.log(low), math.log(high)))


def _golden_section(f: Callable[[float], float], low: float, high: float, rounds: int = 40) -> float:
    """Return the minimum of a unimodal function between `low` and `high`."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    at_a, at_b = f(a), f(b)
    for _ in range(rounds):
        if at_a <= at_b:
            high, b, at_b = b, a, at_a
            a = high - ratio * (high - low)
            at_a = f(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + ratio * (high - low)
            at_b = f(b)
    return (low + high) / 2


def _fit_cuts(expected: Floats, y: np.ndarray[Any, np.dtype[np.int64]], options: int) -> tuple[float, ...]:
    """Return the increasing cuts on expected levels with the best kappa, by coordinate ascent.

    Levels that do not vary leave the cuts half-way between two levels.
    """
    cuts = np.arange(options - 1) + 0.5
    if np.ptp(y) == 0:
        return tuple(cuts.tolist())
    candidates = np.unique(np.quantile(expected, np.linspace(0, 1, _CANDIDATES)))
    candidates = np.concatenate([(candidates[1:] + candidates[:-1]) / 2, cuts])
    best = -math.inf
    for _ in range(10):
        before = best
        for k in range(len(cuts)):
            trials = np.repeat(cuts[None], len(candidates), axis=0)
            trials[:, k] = candidates
            trials.sort(axis=1)
            scores = _kappas((expected[None, :, None] >= trials[:, None]).sum(axis=-1), y)
            top = int(np.argmax(scores))
            if scores[top] > best:
                best, cuts = float(scores[top]), trials[top]
        if best <= before:
            break
    return tuple(cuts.tolist())


def _kappas(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> Floats:
    """Return the quadratic weighted kappa of each row of `x` with `y`, which varies."""
    xx, yy, xy = (x * x).mean(axis=1), (y * y).mean(), (x * y).mean(axis=1)
    return np.asarray(1 - (xx + yy - 2 * xy) / (xx + yy - 2 * x.mean(axis=1) * y.mean()))


def _numbers(values: object) -> bool:
    return isinstance(values, list) and all(
        type(value) in (int, float) and abs(value) < LARGEST for value in values
    )
