"""Gradient norms of runs, and the paper's claim about them: with the batch-level advantage alone gradients
explode, with the mixed one they do not.

All norms are of the gradient before clipping. The *peak* of a run is its largest norm. A *spike* is a step
whose norm exceeds `SPIKE` times the run's median. The claim is tested on the ratio of the peaks, batch to
mixed, seed by seed: its geometric mean and Student's t interval of the logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mapo.measure.stats import Interval, t_interval
from mapo.text import counted

SPIKE = 3.0
"""A step above this multiple of the run's median norm is a spike."""
EXPLOSION = 2.0
"""The smallest ratio of peaks that counts as an explosion."""
DEFINITION = f"An explosion is a ratio of {EXPLOSION:g} or more whose interval lies above 1"
FEWEST = 3
"""Seeds below which the claim is not judged."""


@dataclass(frozen=True, slots=True)
class RunGradient:
    """Gradient norms of one run. None where no norm was recorded."""

    mean: float | None = None
    peak: float | None = None
    spikes: float | None = None
    """Share of steps that are spikes."""


def run_gradient(steps: Sequence[Mapping[str, Any]]) -> RunGradient:
    """Return the gradient norms of a run from the lines of its metrics.jsonl.

    `grad_norm` is the mean over the updates of a step, `grad_norm_max` the largest of them. Runs of earlier
    versions and of the engine verl record the mean only; with one update per step the two are the same.
    """
    means = [line["grad_norm"] for line in steps if line.get("grad_norm") is not None]
    peaks = [
        value for line in steps if (value := line.get("grad_norm_max", line.get("grad_norm"))) is not None
    ]
    if not means or not peaks:
        return RunGradient()
    middle = float(np.median(peaks))
    return RunGradient(
        mean=float(np.mean(means)),
        peak=float(max(peaks)),
        spikes=float(np.mean([peak > SPIKE * middle for peak in peaks])),
    )


@dataclass(frozen=True, slots=True)
class PeakRatio:
    """Peaks of `a` over those of `b`, paired by seed: geometric mean, and interval over seeds."""

    ratios: tuple[float, ...]
    mean: float | None
    interval: Interval | None

    @property
    def verdict(self) -> str:
        """supported: the interval lies above 1 and the mean is an explosion (`EXPLOSION` or more)."""
        if len(self.ratios) < FEWEST or self.mean is None or self.interval is None:
            return "too few seeds"
        return "supported" if self.interval[0] > 1 and self.mean >= EXPLOSION else "not supported"


def peak_ratio(a: Mapping[int, RunGradient], b: Mapping[int, RunGradient]) -> PeakRatio:
    """Compare the peaks of the seeds that both have."""
    pairs = [(a[seed].peak, b[seed].peak) for seed in sorted(a.keys() & b.keys())]
    ratios = tuple(x / y for x, y in pairs if x and y)
    logs = [math.log(ratio) for ratio in ratios]
    ends = t_interval(logs)
    return PeakRatio(
        ratios,
        math.exp(float(np.mean(logs))) if logs else None,
        (math.exp(ends[0]), math.exp(min(ends[1], 700.0))) if ends else None,
    )


def gradient_claims(
    gradients: Mapping[str, Mapping[str, Mapping[int, RunGradient]]],
) -> list[dict[str, Any]]:
    """Return the claim with its verdict for every place where both methods were run. `gradients` is by place
    (the settings held fixed), method and seed."""
    claims: list[dict[str, Any]] = []
    for place, by_method in gradients.items():
        if not ("batch" in by_method and "mapo" in by_method):
            continue
        batch, mixed = by_method["batch"], by_method["mapo"]
        ratio = peak_ratio(batch, mixed)
        if not ratio.ratios:
            continue
        where = f" ({place})" if len(gradients) > 1 and place else ""
        claims.append(
            {
                "claim": f"Gradients explode with the batch advantage alone, not with the mixed one{where}",
                "verdict": ratio.verdict,
                "told": _details(ratio, batch, mixed) + ("" if claims else f". {DEFINITION}"),
                "ratio": {"by_seed": ratio.ratios, "mean": ratio.mean, "interval": ratio.interval},
            }
        )
    return claims


def _details(ratio: PeakRatio, batch: Mapping[int, RunGradient], mixed: Mapping[int, RunGradient]) -> str:
    ends = f" ({ratio.interval[0]:.2f} to {ratio.interval[1]:.2f})" if ratio.interval else ""
    n = len(ratio.ratios)
    return (
        f"the peak norm before clipping is {ratio.mean:.2f}{ends} times that of the mixed one over {n} "
        f"seed{'' if n == 1 else 's'}; steps above {SPIKE:g} times the run's median: batch {_share(batch)}, "
        f"mixed {_share(mixed)}{_left_out(batch, mixed)}"
    )


def _left_out(batch: Mapping[int, RunGradient], mixed: Mapping[int, RunGradient]) -> str:
    """Say which seeds are not compared: a gradient that is not finite ends a run before its summary."""
    lines = [
        f"; {counted(len(missing), f'{name} run')} did not finish and {'is' if len(missing) == 1 else 'are'} "
        "left out, whatever ended it"
        for name, missing in (("batch", mixed.keys() - batch.keys()), ("mixed", batch.keys() - mixed.keys()))
        if missing
    ]
    return "".join(lines)


def _share(runs: Mapping[int, RunGradient]) -> str:
    known = [run.spikes for run in runs.values() if run.spikes is not None]
    return f"{100 * float(np.mean(known)):.1f} %" if known else "unknown"
