"""Dynamic alignment and unmet axes, on paths worked out by hand."""

from __future__ import annotations

import math

import pytest

from mapo import Rubric, StopReason, Trajectory
from mapo.measure.alignment import dynamic_alignments, mean_alignment, mean_dynamic_alignment, unmet_axes


def overdone() -> Trajectory:
    """From (-15, -21, -3), twelve turns of A +3 and nothing else: the affective axis ends at +15."""
    path = Trajectory(Rubric.load("empathy"), (-15.0, -21.0, -3.0))
    for _ in range(12):
        path.advance((0.0, 3.0, 0.0))
    return path


def test_the_fixed_direction_cannot_see_overdoing_and_the_dynamic_one_can():
    path = overdone()
    # v* = (15, 21, 3) / sqrt(675), so every step of A has 21 / sqrt(675) = 0.81
    assert [s.alignment for s in path.states[1:]] == [0.8083] * 12
    dynamic = dynamic_alignments(path)
    assert dynamic[0] == pytest.approx(21 / math.sqrt(675))
    # before turn 8 A is at 0; before turn 12 at +12: -12 / sqrt(15^2 + 12^2 + 3^2) = -0.62
    assert dynamic[7] == pytest.approx(0.0)
    assert dynamic[11] == pytest.approx(-12 / math.sqrt(378)) == pytest.approx(-0.62, abs=0.005)
    assert dynamic == sorted(dynamic, reverse=True)
    assert mean_alignment(path) == pytest.approx(0.8083)
    assert mean_dynamic_alignment(path) == pytest.approx(sum(dynamic) / 12)


def test_a_pass_can_leave_axes_unmet():
    path = overdone()
    ending = path.ending()
    assert (ending.reason, ending.detail) == (StopReason.SUCCESS, ("positional",))
    assert path.now.position == (-15.0, 15.0, -3.0)
    # axes below -1 are C by 14 and P by 2: sqrt(14^2 + 2^2) = 14.1
    assert path.now.distance == pytest.approx(math.sqrt(200)) and unmet_axes(path) == ("C", "P")


def test_unscored_turns_still_ones_and_no_turns():
    path = Trajectory(Rubric.load("empathy"), (0.0, 0.0, 0.0))
    assert mean_dynamic_alignment(path) is mean_alignment(path) is None
    path.advance(None)
    path.advance((1.0, 0.0, 0.0))
    path.advance((0.0, 0.0, 0.0))
    assert dynamic_alignments(path) == [None, 0.0, 0.0] and unmet_axes(path) == ()
