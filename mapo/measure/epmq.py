"""EPM-Q: nine indices of a dialogue's path, and their composite for a set of dialogues.

Outcome asks how far the person got, efficiency at what pace and how directly, stability how evenly.
Each index is averaged over dialogues first; the composite weighs the averages, so it is not the mean
of composites. Indices are percentages of a reference value, and Etot, Snet, Rho and Sproj may exceed 100: so
may EPM-Q, in any domain (the best published model has 107). The references are EMPA's, made for three axes;
with another number of axes the points mean something else, and two domains' do not compare.

Turns nobody could judge are no part of the sums or the counts (T is the number of judged turns). The
formulas: docs/method.md, section "EPM-Q".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mapo.measure.potential import Trajectory, distance_between

INDICES = ("RDI", "Etot", "Snet", "Rho", "Sproj", "Tau", "Rpos", "Align", "Pen")
_TINY = 1e-6


@dataclass(frozen=True, slots=True)
class Composite:
    indices: dict[str, float]
    outcome: float
    efficiency: float
    stability: float
    epm_q: float


def indices(path: Trajectory) -> tuple[float, ...]:
    """The nine indices of one dialogue, in the order of INDICES."""
    start, judged = path.states[0], [s for s in path.states[1:] if s.step is not None]
    last, turns = path.now, len(judged)
    entries = turns + 1
    reference = start.distance if start.distance > _TINY else 1.0
    closed = 100 * (start.distance - last.distance) / start.distance if start.distance else 0.0
    marks = [m for form in path.forms for m in form.values()]
    raw = sum(m.progress.level + m.regression.level for m in marks)
    regress = sum(abs(m.regression.level) for m in marks)
    gains = [s.delta_energy for s in judged]
    return (
        min(max((closed + 100) / 2, 0.0), 100.0),
        100 * max(0.0, last.energy) / (1.2 * reference),
        100 * max(0.0, raw) / (1.5 * reference),
        100 * max(0.0, last.energy / turns if turns else 0.0) / 2.5,
        100 * max(0.0, sum(gains) / entries) / 2.5,
        max(0.0, 100 * (3 - tortuosity(path)) / 2),
        100 * sum(g > 0 for g in gains) / entries,
        100 * (sum(s.alignment for s in judged) / entries + 1) / 2,
        max(0.0, 100 * (3 - regress / entries) / 3),
    )


def tortuosity(path: Trajectory) -> float:
    """Path length over displacement, at least 1; 1 where the path ends where it began."""
    positions = [s.position for s in path.states]
    length = sum(distance_between(a, b, path.rubric) for a, b in pairwise(positions))
    displacement = distance_between(positions[0], positions[-1], path.rubric)
    return max(1.0, length / displacement) if displacement > _TINY else 1.0


def composite(rows: Sequence[Sequence[float]] | NDArray[np.float64]) -> Composite:
    """Indices averaged over dialogues, then weighed."""
    means = np.asarray(rows, dtype=np.float64).mean(axis=0)
    outcome, efficiency, stability, total = (float(x) for x in weigh(means))
    return Composite(
        dict(zip(INDICES, map(float, means), strict=True)), outcome, efficiency, stability, total
    )


def weigh(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean indices [..., 9] -> outcome, efficiency, stability, EPM-Q [..., 4]."""
    parts = means.reshape(*means.shape[:-1], 3, 3).mean(axis=-1)
    total = parts @ np.array([0.4, 0.2, 0.4])
    return np.concatenate([parts, total[..., None]], axis=-1)
