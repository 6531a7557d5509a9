"""Agreement with the recorded judge, against values computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mapo.measure.calibration import Calibration
from mapo.roles.agreement import (
    Judgement,
    agreement,
    calibration_error,
    curve,
    explained,
    judgements_of,
    step_sums,
    within,
)
from mapo.roles.examples import magnitudes, turn_name
from support.recordings import EMPATHY, recordings

OWN = recordings(3, 2, turns=9)


def certain(levels):
    """Log-probabilities that are sure of these levels."""
    return tuple(tuple(0.0 if k == level else -50.0 for k in range(3)) for level in levels)


def judged(predict=lambda levels: levels):
    names = [turn_name(r, n) for r in OWN for n in range(1, 10)]
    recorded = [magnitudes(t.levels, EMPATHY) for r in OWN for t in r.dialogue.turns]
    return judgements_of(OWN, names, [certain(predict(levels)) for levels in recorded], EMPATHY)


def test_a_perfect_judge():
    measured = agreement(judged(), Calibration(), EMPATHY)
    assert measured["turns"] == 54 and measured["dialogues"] == 6
    assert measured["kappa"] == measured["correlation"] == measured["within"] == pytest.approx(1)
    assert measured["endings"]["same"] == 1
    assert measured["policies"]["spearman"] == pytest.approx(1)
    assert measured["policies"]["epmq_error"] == pytest.approx(0)
    assert all(own["accuracy"] == 1 for own in measured["places"].values())


def test_a_judge_that_always_says_one():
    measured = agreement(judged(lambda levels: (1,) * 6), Calibration(), EMPATHY)
    assert measured["kappa"] == pytest.approx(0)
    assert measured["correlation"] is None and measured["within"] is None
    shares = measured["places"]["C progress"]
    assert shares["predicted"] == [0, 1, 0] and shares["accuracy"] == pytest.approx(shares["recorded"][1])


def test_steps_are_expectations_over_the_level_values():
    half = ((0.5, 0.5, 0.0), (1.0, 0.0, 0.0)) * 3
    expected, truth = step_sums([half], np.array([[2, 1] * 3]), EMPATHY)
    assert expected == pytest.approx([1.5])  # 0 and 1 with probability 1/2, on three axes
    assert truth == pytest.approx([3 * 3 - 2 * 3])  # +3 and -2 on three axes


def test_correlation_within_dialogues_leaves_out_their_means():
    truth = np.array([*range(8), *range(100, 108)], float)
    steps = np.array([*range(8), *range(8, 0, -1)], float)
    names = ["a"] * 8 + ["b"] * 8
    assert within(steps, truth, names) == pytest.approx(0)  # +1 and -1
    assert within(steps[:7], truth[:7], names[:7]) is None


def test_variance_between_groups():
    assert explained(["a", "a", "b", "b"], np.array([0.0, 2.0, 4.0, 6.0])) == pytest.approx(16 / 20)
    assert explained(["a", "b"], np.array([1.0, 1.0])) is None


def test_calibration_error_and_curve():
    p = np.array([[0.75, 0.25]] * 4)
    assert calibration_error(p, np.array([0, 0, 0, 1])) == pytest.approx(0)
    assert calibration_error(p, np.array([0, 0, 0, 0])) == pytest.approx(0.25)
    points = curve([((0.75, 0.25),)] * 4, np.array([[0], [0], [0], [1]]))
    assert [(q["predicted"], q["observed"], q["n"]) for q in points] == [(0.25, 0.25, 4), (0.75, 0.75, 4)]


def test_even_probabilities_are_not_calibrated_if_one_level_is_common():
    # levels 0: |1/3 - 1|, 1 and 2: |1/3 - 0|, mean (2/3 + 1/3 + 1/3) / 3
    assert calibration_error(np.full((6, 3), 1 / 3), np.zeros(6, int)) == pytest.approx(4 / 9)


def test_a_judgement_knows_its_reply():
    first = judged()[0]
    assert isinstance(first, Judgement) and first.reply == OWN[0].dialogue.turns[0].reply.text
    assert math.isclose(first.logprobs[0][first.levels[0]], 0.0)
