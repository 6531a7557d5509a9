"""Measures derived from a trajectory, in addition to those that records carry.

The alignment of the potential model compares every step with v* = -P_0 / ||P_0||, fixed at the start. It
cannot see that a need is met and the dialogue goes on meeting it. *Dynamic alignment* compares each step with
the direction from the current state to the origin (EMPA, arXiv:2603.00552, Appendix B.2):

    dynamic_t = cos(v_t, -P_{t-1})

A dialogue can also pass while an axis keeps its deficit, because energy and projection along v* add up over
axes: see `unmet_axes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from mapo.measure.potential import Trajectory, origin_distance
from mapo.measure.rubric import Rubric


def dynamic_alignments(path: Trajectory) -> list[float | None]:
    """Return cos(v_t, -P_{t-1}) of every turn, None for unscored turns; 0 if nothing moved or was needed."""
    return [
        None if after.step is None else dynamic_alignment(after.step, before.position, path.rubric)
        for before, after in zip(path.states, path.states[1:], strict=False)
    ]


def dynamic_alignment(step: Sequence[float], position: Sequence[float], rubric: Rubric) -> float:
    """Return cos(step, -position); 0 if one of them is zero."""
    size = origin_distance(step, rubric) * origin_distance(position, rubric)
    towards = -sum(w * v * p for w, v, p in zip(rubric.weights, step, position, strict=True))
    return towards / size if size else 0.0


def mean_dynamic_alignment(path: Trajectory) -> float | None:
    """Return the mean dynamic alignment of the scored turns; None if there are none."""
    known = [value for value in dynamic_alignments(path) if value is not None]
    return fmean(known) if known else None


def mean_alignment(path: Trajectory) -> float | None:
    """Return the mean alignment with the fixed direction over the scored turns; None if there are none."""
    known = [state.alignment for state in path.states[1:] if state.step is not None]
    return fmean(known) if known else None


def unmet_axes(path: Trajectory) -> tuple[str, ...]:
    """Return the keys of the axes whose deficit is outside the target zone at the end."""
    at = zip(path.rubric.keys, path.now.position, strict=True)
    return tuple(key for key, x in at if x < -path.rubric.zone)
