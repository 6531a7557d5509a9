"""Peaks of gradient norms, and the claim that they explode with the batch advantage alone."""

from __future__ import annotations

import math

import pytest

from mapo.evals.ablation.gradients import RunGradient, gradient_claims, peak_ratio, run_gradient


def test_peak_mean_and_spikes_by_hand():
    lines = [{"grad_norm": 1.0, "grad_norm_max": 1.5}, {"grad_norm": 1.0}, {"grad_norm": 5.0}, {"score": 1}]
    # peaks 1.5, 1, 5: median 1.5, of which 5 is more than three times
    assert run_gradient(lines) == RunGradient(mean=7 / 3, peak=5.0, spikes=1 / 3)
    assert run_gradient([]) == RunGradient()


def peaks(*values: float) -> dict[int, RunGradient]:
    return {seed: RunGradient(value, value, 0.25) for seed, value in enumerate(values)}


def test_the_ratio_of_peaks_is_geometric_with_an_interval_of_the_logarithms():
    ratio = peak_ratio(peaks(2.0, 8.0, 4.0), {**peaks(1.0, 1.0, 1.0), 9: RunGradient(1.0, 1.0)})
    assert ratio.ratios == (2.0, 8.0, 4.0) and ratio.mean == pytest.approx(4.0)
    # logs are log 4 plus -log 2, log 2, 0: sd = log 2; half = t(2) * sd / sqrt(3)
    half = 4.302653 * math.log(2) / math.sqrt(3)
    assert ratio.interval == pytest.approx((4 * math.exp(-half), 4 * math.exp(half)), rel=1e-5)


@pytest.mark.parametrize(
    ("batch", "verdict"),
    [
        ((5.0, 5.5, 6.0), "supported"),
        ((1.2, 1.21, 1.22), "not supported"),  # larger, but no explosion
        ((0.5, 5.0, 50.0), "not supported"),  # the interval holds 1
        ((5.0, 5.0), "too few seeds"),
    ],
)
def test_verdicts(batch, verdict):
    by_method = {"batch": peaks(*batch), "mapo": peaks(*[1.0] * len(batch)), "turn": peaks(9.0)}
    [claim] = gradient_claims({"idr": by_method, "adr": {"mapo": peaks(1.0)}})
    assert claim["verdict"] == verdict and claim["claim"].endswith("not with the mixed one (idr)")
    assert "batch 25.0 %, mixed 25.0 %" in claim["told"]


def test_without_both_methods_or_norms_there_is_no_claim():
    assert gradient_claims({"": {"batch": peaks(1.0)}}) == []
    assert gradient_claims({"": {"batch": {0: RunGradient()}, "mapo": peaks(1.0)}}) == []


def test_runs_that_did_not_finish_are_named():
    both = {"batch": peaks(4.0, 5.0), "mapo": peaks(1.0, 1.0, 1.0)}
    [claim] = gradient_claims({"": both})
    assert "; 1 batch run did not finish and is left out, whatever ended it" in claim["told"]
    [claim] = gradient_claims({"": {"batch": peaks(4.0), "mapo": peaks(1.0)}})
    assert "did not finish" not in claim["told"]
