"""Movement per axis and regression, by hand."""

from __future__ import annotations

import pytest

from mapo import InputError, Reply, Rubric, Trajectory, Turn
from mapo.measure.axes import Movement, axis_rewards, movement_of, movement_of_paths, regressions
from mapo.types import Dialogue

EMPATHY = Rubric.load("empathy")
START = (-4.0, -2.0, -0.5)
FORMS = [
    EMPATHY.levels(C=(2, 0), A=(1, -1)),  # C +3; A +1 - 2
    None,
    EMPATHY.levels(A=(2, 0), P=(1, 0)),  # A +3; P +1
]


def played():
    path = Trajectory(EMPATHY, START)
    turns = [Turn("hi", Reply("ho"), form, path.judge(form), None if form is None else 1.0) for form in FORMS]
    return path, Dialogue("d", "s", "m", "empathy", "published", {}, START, tuple(turns))


def test_the_reward_of_an_axis_is_the_deficit_outside_the_zone_that_was_removed():
    _, dialogue = played()
    # zone 1: C 3 -> 0; A 1 -> 2 -> 0; P 0 -> 0
    assert axis_rewards(dialogue, EMPATHY) == {"C": [3, None, 0], "A": [-1, None, 2], "P": [0, None, 0]}


def test_regression_is_kept_apart():
    assert regressions(played()[1], EMPATHY) == [-2, None, 0]


def test_means_are_over_scored_turns():
    path, dialogue = played()
    wanted = Movement({"C": 1.5, "A": 0.5, "P": 0.0}, -1.0, 0.5)
    assert movement_of([dialogue], EMPATHY) == wanted
    assert movement_of_paths([path]) == wanted


def test_without_scored_turns_there_are_no_means():
    empty = Dialogue("d", "s", "m", "empathy", "published", {}, START, ())
    assert movement_of([empty], EMPATHY) == Movement({"C": None, "A": None, "P": None}, None, None)


def test_dialogues_of_another_rubric_are_rejected():
    with pytest.raises(InputError, match="do not fit the rubric 'tutoring'"):
        axis_rewards(played()[1], Rubric.load("tutoring"))
