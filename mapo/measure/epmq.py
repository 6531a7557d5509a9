"""EPM-Q: nine indices of a dialogue's trajectory, and their composite for a set of dialogues.

Outcome (RDI, Etot, Snet) measures how far the person got, efficiency (Rho, Sproj, Tau) how fast and how
directly, stability (Rpos, Align, Pen) how evenly. With T scored turns, zone distance D, energy E and r0 =
D_0:

    RDI   = clip((100 * (D_0 - D_T) / D_0 + 100) / 2, 0, 100)
    Etot  = 100 * max(0, E_T) / (1.2 * r0)
    Snet  = 100 * max(0, sum of all levels) / (1.5 * r0)
    Rho   = 100 * max(0, E_T / T) / 2.5
    Sproj = 100 * max(0, sum of dE / (T + 1)) / 2.5
    Tau   = max(0, 100 * (3 - tortuosity) / 2)
    Rpos  = 100 * #(dE > 0) / (T + 1)
    Align = 100 * (sum of alignment / (T + 1) + 1) / 2
    Pen   = max(0, 100 * (3 - sum of |regression levels| / (T + 1)) / 3)
    EPM-Q = 0.4 * outcome + 0.2 * efficiency + 0.4 * stability, each the mean of its three indices

Indices are first averaged over dialogues; the composite is computed from the averages. Etot, Snet, Rho and
Sproj may exceed 100, and so may EPM-Q (the best published model has 107). The reference values are EMPA's and
were chosen for three axes: scores of domains with different axes are not comparable. Unscored turns are
ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mapo.measure.potential import Trajectory, distance_between

INDICES = ("RDI", "Etot", "Snet", "Rho", "Sproj", "Tau", "Rpos", "Align", "Pen")
_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Composite:
    """Mean indices of a set of dialogues and the scores computed from them."""

    indices: dict[str, float]
    outcome: float
    efficiency: float
    stability: float
    epm_q: float


def indices(trajectory: Trajectory) -> tuple[float, ...]:
    """Return the nine indices of one dialogue, in the order of INDICES."""
    start, scored = trajectory.states[0], [s for s in trajectory.states[1:] if s.step is not None]
    last, turns = trajectory.now, len(scored)
    entries = turns + 1
    reference = start.distance if start.distance > _EPS else 1.0
    closed = 100 * (start.distance - last.distance) / start.distance if start.distance else 0.0
    marks = [m for form in trajectory.forms for m in form.values()]
    raw = sum(m.progress.level + m.regression.level for m in marks)
    regress = sum(abs(m.regression.level) for m in marks)
    gains = [s.delta_energy for s in scored]
    return (
        min(max((closed + 100) / 2, 0.0), 100.0),
        100 * max(0.0, last.energy) / (1.2 * reference),
        100 * max(0.0, raw) / (1.5 * reference),
        100 * max(0.0, last.energy / turns if turns else 0.0) / 2.5,
        100 * max(0.0, sum(gains) / entries) / 2.5,
        max(0.0, 100 * (3 - tortuosity(trajectory)) / 2),
        100 * sum(g > 0 for g in gains) / entries,
        100 * (sum(s.alignment for s in scored) / entries + 1) / 2,
        max(0.0, 100 * (3 - regress / entries) / 3),
    )


def tortuosity(trajectory: Trajectory) -> float:
    """Return path length / displacement, at least 1; it is 1 if the trajectory ends where it began."""
    positions = [s.position for s in trajectory.states]
    length = sum(distance_between(a, b, trajectory.rubric) for a, b in pairwise(positions))
    displacement = distance_between(positions[0], positions[-1], trajectory.rubric)
    return max(1.0, length / displacement) if displacement > _EPS else 1.0


def composite(rows: Sequence[Sequence[float]] | NDArray[np.float64]) -> Composite:
    """Average the indices over dialogues and compute the composite scores."""
    means = np.asarray(rows, dtype=np.float64).mean(axis=0)
    outcome, efficiency, stability, total = (float(x) for x in weigh(means))
    return Composite(
        dict(zip(INDICES, map(float, means), strict=True)), outcome, efficiency, stability, total
    )


def weigh(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return outcome, efficiency, stability and EPM-Q [..., 4] from mean indices [..., 9]."""
    parts = means.reshape(*means.shape[:-1], 3, 3).mean(axis=-1)
    total = parts @ np.array([0.4, 0.2, 0.4])
    return np.concatenate([parts, total[..., None]], axis=-1)
