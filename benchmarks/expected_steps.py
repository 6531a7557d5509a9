"""Measure whether likely or expected steps of a judge that is read out give better advantages.

    .venv/bin/python benchmarks/expected_steps.py [--groups N] [--out FILE]

Every mark has a hidden quality, normally distributed, part of it shared by the turns of a dialogue. Its level
is the quality cut at the quantiles of the published level frequencies. The judge sees the quality with noise
and gives the exact probabilities of the levels, or the same with log-probabilities doubled (overconfident).
Noise per dialogue is shared by its turns, as a liking for a style is. Steps are those of the most likely
levels, of levels by cuts that maximise kappa on other data, or expected ones. The advantages of each are
compared with those of the true levels:

  kappa            mean quadratic weighted kappa of the levels by cuts with the true ones
  METHOD_STEPS     correlation of the advantages; 1 / r^2 times as many dialogues give the same signal
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from statistics import NormalDist

import numpy as np

from mapo.advantage import advantages
from mapo.measure.agreement import quadratic_kappa
from mapo.measure.calibration import fit, softmax
from mapo.measure.rubric import Rubric

RUBRIC = Rubric.load("empathy")
TABLES = [np.array(table, float) for axis in RUBRIC.axes for table in (axis.progress, axis.regression)]
FREQUENCIES = [
    np.array(f)
    for f in (
        (0.14, 0.74, 0.12),
        (0.75, 0.24, 0.01),
        (0.09, 0.74, 0.17),
        (0.66, 0.12, 0.22),
        (0.14, 0.73, 0.13),
        (0.69, 0.30, 0.01),
    )
]
"""Frequencies of the levels of each mark in EMPA's published judgements."""
SIBLINGS, TURNS, START, GAMMA = 8, 15, -20.0, 0.85
DIALOGUE_SHARE = 0.25
"""Share of the variance of the quality that the turns of a dialogue share."""
METHODS = ("mapo", "grpo")
_PHI = np.vectorize(NormalDist().cdf)


def bounds_of(frequencies: np.ndarray) -> np.ndarray:
    """Return the qualities at which the next level begins."""
    return np.array([NormalDist().inv_cdf(p) for p in frequencies.cumsum()[:-1]])


def normal(rng: np.random.Generator, groups: int, share: float) -> np.ndarray:
    """Return standard normal numbers [group, sibling, turn, mark] of which turns share a part."""
    shape = (groups, SIBLINGS, TURNS, len(TABLES))
    once = rng.normal(size=(groups, SIBLINGS, 1, len(TABLES)))
    return math.sqrt(share) * once + math.sqrt(1 - share) * rng.normal(size=shape)


def judgements(rng: np.random.Generator, groups: int, rho: float, share: float):
    """Return true levels and log-probabilities of the judge, both per mark."""
    quality = normal(rng, groups, DIALOGUE_SHARE)
    seen = rho * quality + math.sqrt(1 - rho**2) * normal(rng, groups, share)
    levels, logprobs = [], []
    for k, frequencies in enumerate(FREQUENCIES):
        bounds = bounds_of(frequencies)
        levels.append((quality[..., k, None] >= bounds).sum(axis=-1))
        below = _PHI((bounds - rho * seen[..., k, None]) / math.sqrt(1 - rho**2))
        edges = np.concatenate([np.zeros_like(below[..., :1]), below, np.ones_like(below[..., :1])], axis=-1)
        logprobs.append(np.log(np.maximum(np.diff(edges, axis=-1), 1e-9)))
    return levels, logprobs


def rewards_of(values: list[np.ndarray]) -> np.ndarray:
    """Return the incremental distance rewards [dialogue, turn] of the values of all marks."""
    steps = np.stack([values[2 * a] + values[2 * a + 1] for a in range(len(RUBRIC.axes))], axis=-1)
    position = START + steps.reshape(-1, TURNS, len(RUBRIC.axes)).cumsum(axis=1)
    distance = np.sqrt(np.minimum(position + RUBRIC.zone, 0) ** 2 @ np.array(RUBRIC.weights))
    first = np.full((len(distance), 1), math.sqrt(sum(RUBRIC.weights)) * -(START + RUBRIC.zone))
    return -np.diff(np.concatenate([first, distance], axis=1), axis=1)


def advantages_of(rewards: np.ndarray, method: str) -> np.ndarray:
    groups = [str(n // SIBLINGS) for n in range(len(rewards))]
    result = advantages(rewards.tolist(), groups, method=method, gamma=GAMMA)
    return np.concatenate([np.asarray(row) for row in result.mixed])


def row(name: str, rho: float, share: float, sharpness: float, groups: int, seed: int) -> dict:
    """Return the correlations of one judge."""
    rng = np.random.default_rng(seed)
    flat = lambda parts: [part.reshape(-1, *part.shape[3:]) for part in parts]  # noqa: E731
    known_levels, known = judgements(rng, 60, rho, share)
    calibration = fit([x * sharpness for x in flat(known)], flat(known_levels))
    levels, logprobs = judgements(rng, groups, rho, share)
    p = [softmax(x * sharpness) for x in logprobs]
    tempered = [softmax(x * sharpness / t) for x, t in zip(logprobs, calibration.temperatures, strict=True)]
    counts = [x @ np.arange(x.shape[-1]) for x in tempered]
    by_cuts = [
        (x[..., None] >= np.array(c)).sum(axis=-1) for x, c in zip(counts, calibration.cuts, strict=True)
    ]
    values = {
        "true": [t[x] for t, x in zip(TABLES, levels, strict=True)],
        "likely": [t[x.argmax(axis=-1)] for t, x in zip(TABLES, p, strict=True)],
        "cuts": [t[x] for t, x in zip(TABLES, by_cuts, strict=True)],
        "expected": [x @ t for t, x in zip(TABLES, p, strict=True)],
        "expected_fitted": [x @ t for t, x in zip(TABLES, tempered, strict=True)],
    }
    kappas = [quadratic_kappa(x.ravel(), y.ravel()) for x, y in zip(by_cuts, levels, strict=True)]
    result = {"judge": name, "kappa": round(float(np.mean(kappas)), 3)}
    rewards = {kind: rewards_of(marks) for kind, marks in values.items()}
    for method in METHODS:
        credit = {kind: advantages_of(r, method) for kind, r in rewards.items()}
        for kind in ("likely", "cuts", "expected", "expected_fitted"):
            r = np.corrcoef(credit[kind], credit["true"])[0, 1]
            result[f"{method}_{kind}"] = round(float(r), 3)
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--groups", type=int, default=400)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    judges = [
        ("kappa 0.4", 0.55, 0.0, 1.0),
        ("kappa 0.4, half of the noise per dialogue", 0.55, 0.5, 1.0),
        ("kappa 0.4, overconfident", 0.55, 0.0, 2.0),
        ("kappa 0.6", 0.75, 0.0, 1.0),
        ("kappa 0.8", 0.92, 0.0, 1.0),
    ]
    rows = [row(*judge, groups=options.groups, seed=n) for n, judge in enumerate(judges)]
    for line in rows:
        print(json.dumps(line))
    if options.out:
        content = {
            "command": "python benchmarks/expected_steps.py",
            "setup": "Correlation of advantages with those of the true levels: steps of the most likely "
            "level, of levels by cuts, expected, expected with a fitted temperature. "
            f"{options.groups} groups of {SIBLINGS}, {TURNS} turns, reward idr, gamma {GAMMA}.",
            "columns": {
                "judge": "{judge}",
                "kappa": "{kappa:.2f}",
                **{
                    f"{m}: {k.replace('_', ', ')}": f"{{{m}_{k}:.2f}}"
                    for m in METHODS
                    for k in ("likely", "cuts", "expected", "expected_fitted")
                },
            },
            "rows": rows,
        }
        options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
