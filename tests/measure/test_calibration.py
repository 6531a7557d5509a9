"""Calibration of levels that are read out: temperatures, cuts, and what is read from a file."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mapo.errors import InputError
from mapo.measure.agreement import quadratic_kappa
from mapo.measure.calibration import Calibration, expected_level, fit, softmax

LOGPROBS = ((math.log(0.7), math.log(0.2), math.log(0.1)),)


def noisy(seed: int = 0, n: int = 4000, temperature: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities that are too confident by `temperature`, and levels drawn from the true ones."""
    rng = np.random.default_rng(seed)
    true = rng.normal(0, 1.5, (n, 3)) + np.array([2.0, 0.0, -1.0])
    p = softmax(true)
    levels = (rng.random((n, 1)) > p.cumsum(axis=1)).sum(axis=1)
    return np.log(softmax(true * temperature)), levels


def test_the_default_changes_nothing():
    assert Calibration().apply(LOGPROBS)[0] == pytest.approx((0.7, 0.2, 0.1))


def test_without_cuts_the_level_is_the_most_likely_one():
    assert Calibration().levels([(0.3, 0.3, 0.4), (0.6, 0.0, 0.4)]) == (2, 0)


def test_a_temperature_of_two_takes_square_roots():
    roots = np.sqrt([0.7, 0.2, 0.1])
    assert Calibration((2.0,)).apply(LOGPROBS)[0] == pytest.approx(tuple(roots / roots.sum()))


def test_the_level_is_the_number_of_cuts_that_the_expected_level_reaches():
    calibration = Calibration(cuts=((0.3, 0.9), (0.3, 0.9), (0.3, 0.9)))
    assert calibration.levels([(0.8, 0.2, 0.0), (0.7, 0.2, 0.1), (0.4, 0.2, 0.4)]) == (0, 1, 2)


def test_the_expected_level_is_the_mean_under_the_probabilities():
    assert expected_level((0.5, 0.2, 0.3)) == pytest.approx(0.2 + 2 * 0.3)


def test_the_fitted_temperature_undoes_overconfidence():
    logprobs, levels = noisy()
    assert fit([logprobs], [levels]).temperatures[0] == pytest.approx(2.0, rel=0.1)


def test_fitted_cuts_agree_better_than_the_most_likely_level():
    logprobs, levels = noisy()
    fitted = fit([logprobs], [levels])
    by_cuts = [fitted.levels(fitted.apply([row]))[0] for row in logprobs]
    likely = [int(np.argmax(row)) for row in logprobs]
    assert quadratic_kappa(by_cuts, levels) > quadratic_kappa(likely, levels) + 0.02


def test_places_with_different_numbers_of_levels_are_fitted_apart():
    logprobs, levels = noisy(n=300)
    two = np.log(softmax(logprobs[:, :2]))
    fitted = fit([logprobs, two], [levels, np.minimum(levels, 1)])
    assert [len(cuts) for cuts in fitted.cuts] == [2, 1]


def test_levels_that_never_vary_leave_the_cuts_in_the_middle():
    logprobs, _ = noisy(n=50)
    assert fit([logprobs], [np.zeros(50, dtype=int)]).cuts == ((0.5, 1.5),)


def test_json_gives_the_same_calibration_back():
    calibration = Calibration((0.5, 2.0), ((0.4, 1.2), (0.7,)))
    assert Calibration.from_json(calibration.to_json(), (3, 2)) == calibration


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ([], "not an object"),
        ({"temperatures": []}, "not an object"),
        ({"temperatures": [0.0], "cuts": []}, "temperature"),
        ({"temperatures": ["1"], "cuts": []}, "temperature"),
        ({"temperatures": [math.nan], "cuts": []}, "temperature"),
        ({"temperatures": [True], "cuts": []}, "temperature"),
        ({"temperatures": [10**400], "cuts": []}, "temperature"),
        ({"temperatures": [1.0], "cuts": [[0.5, 10**400]]}, "increasing"),
        ({"temperatures": [1.0], "cuts": [[1.5, 0.5]]}, "increasing"),
        ({"temperatures": [1.0], "cuts": [0.5]}, "increasing"),
        ({"temperatures": [1.0, 1.0], "cuts": []}, "does not fit"),
        ({"temperatures": [1.0], "cuts": [[0.5]]}, "does not fit"),
    ],
)
def test_a_calibration_that_makes_no_sense_is_refused(data, problem):
    with pytest.raises(InputError, match=problem):
        Calibration.from_json(data, (3,))
