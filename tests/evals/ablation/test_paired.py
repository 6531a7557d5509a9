"""Paired tests: against scipy, against hand-made numbers, and for what they promise."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mapo.evals.ablation.paired import (
    SeedComparison,
    claims,
    compare_seeds,
    corrected,
    difference_grid,
    verdict,
)
from mapo.measure.stats import grid_interval, holm, sign_flip, t_cdf, t_interval, t_quantile, t_test

NUMBERS = st.floats(-50, 50, allow_nan=False).map(lambda x: round(x, 3))


@pytest.mark.parametrize("df", [1, 2, 3, 4, 7, 10, 31, 100])
def test_students_t_agrees_with_scipy(df):
    for t in (0.0, 0.3, 1.0, 2.5, 12.0):
        assert t_cdf(t, df) == pytest.approx(stats.t.cdf(t, df), abs=1e-12)
    assert t_quantile(df) == pytest.approx(stats.t.ppf(0.975, df), rel=1e-9)


@given(st.lists(NUMBERS, min_size=2, max_size=12).filter(lambda x: np.std(x) > 1e-3))
def test_t_test_and_interval_agree_with_scipy(values):
    theirs = stats.ttest_1samp(values, 0.0)
    assert t_test(values) == pytest.approx(theirs.pvalue, abs=1e-9)
    assert t_interval(values) == pytest.approx(tuple(theirs.confidence_interval(0.95)), abs=1e-6)


def test_no_spread_and_too_few():
    assert t_test([0.0, 0.0, 0.0]) == 1.0 and t_test([2.0, 2.0, 2.0]) == 0.25  # 2^(1-3)
    assert t_test([1.0]) is None and t_interval([1.0]) is None and sign_flip([]) is None
    assert sign_flip([3.0]) == 1.0  # either sign is as far from 0


def test_sign_flip_by_hand():
    # all five positive: of 2^5 sign assignments only + + + + + and its mirror are as far out: 2/32
    assert sign_flip([1.0, 2.0, 3.0, 4.0, 5.0]) == 2 / 32
    # d = (1, 2, -1): |sum| = 2; sums over signs: 4, 2, 2, 0, 0, -2, -2, -4; six of eight reach 2
    assert sign_flip([1.0, 2.0, -1.0]) == 6 / 8


@given(st.lists(NUMBERS, min_size=1, max_size=8), st.randoms())
def test_sign_flip_is_the_share_of_assignments(values, random):
    far = [abs(math.fsum(s * v for s, v in zip(signs, values, strict=True)))
           for signs in itertools.product((1, -1), repeat=len(values))]  # fmt: skip
    share = sum(x >= far[0] * (1 - 1e-9) - 1e-12 for x in far) / len(far)
    assert sign_flip(values) == pytest.approx(share, abs=1e-9)
    turned = [-v for v in values]
    random.shuffle(turned)
    assert sign_flip(turned) == pytest.approx(share, abs=1e-9)


def test_many_pairs_are_sampled_close_to_the_normal_limit():
    d = np.random.default_rng(1).normal(0.4, 1.0, size=40)
    theirs = stats.permutation_test(
        (d,), np.mean, permutation_type="samples", n_resamples=20_000, rng=np.random.default_rng(2)
    ).pvalue
    assert sign_flip(d) == pytest.approx(theirs, abs=0.01)


def test_holm_by_hand():
    # sorted .01 .03 .04 of three: 3*.01, 2*.03, then max(.06, 1*.04)
    assert holm([0.01, 0.04, None, 0.03]) == [
        pytest.approx(x) if x else None for x in (0.03, 0.06, None, 0.06)
    ]
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_order_and_never_helps(ps):
    adjusted = holm(ps)
    assert all(a >= p and a <= 1 for a, p in zip(adjusted, ps, strict=True))
    order = np.argsort(ps)
    assert all(np.diff([adjusted[i] for i in order]) >= 0)
    assert min(adjusted) == pytest.approx(min(1.0, len(ps) * min(ps)))


def test_the_grid_pairs_jobs_that_both_played():
    a = {0: {("s", "s_1"): 5.0, ("s", "s_2"): 7.0, ("u", "u_1"): 1.0}, 1: {("s", "s_1"): 3.0}}
    b = {0: {("s", "s_1"): 4.0, ("s", "s_2"): 4.0, ("u", "u_1"): 9.0}, 1: {("s", "s_1"): 1.0}}
    # scenario u is missing in seed 1, so only s is complete: seed 0 mean(1, 3) = 2, seed 1: 2
    assert difference_grid(a, b, [0, 1]).tolist() == [[2.0], [2.0]]
    assert difference_grid(a, b, [0]).tolist() == [[2.0, -8.0]]
    assert difference_grid({}, {}, [0]).size == 0


def test_resampling_scenarios_and_seeds():
    rng = np.random.default_rng(0)
    # a seed effect of spread 3 and a scenario effect of spread 1 around 10
    grid = 10 + 3 * rng.normal(size=(8, 1)) + rng.normal(size=(1, 12))
    over, both = grid_interval(grid, seeds=False), grid_interval(grid, seeds=True)
    assert over[0] < grid.mean() < over[1] and both[0] < over[0] < over[1] < both[1]
    # scenarios alone: half the width is about 1.96 * std of the column means / sqrt(12)
    assert (over[1] - over[0]) / 2 == pytest.approx(1.96 * grid.mean(axis=0).std() / math.sqrt(12), rel=0.1)
    wide = math.hypot(grid.mean(axis=0).std() / math.sqrt(12), grid.mean(axis=1).std() / math.sqrt(8))
    assert (both[1] - both[0]) / 2 == pytest.approx(1.96 * wide, rel=0.15)
    assert grid_interval(grid, seeds=True) == both
    assert grid_interval(grid[:1], seeds=True) is None and grid_interval(grid[:, :1], seeds=False) is None
    assert grid_interval(np.zeros((0, 0)), seeds=False) is None


def test_compare_takes_the_seeds_of_both():
    c = compare_seeds("x", "a", "b", {0: 3.0, 1: 5.0, 2: 9.0}, {1: 4.0, 2: 6.0, 7: 0.0})
    assert c.seeds == (1, 2) and c.differences == (1.0, 3.0) and c.mean == 2.0 and c.n == 2
    assert c.scenarios == 0 and c.over_both is None
    none = compare_seeds("x", "a", "b", {0: 1.0}, {1: 1.0})
    assert none.n == 0 and none.mean is None and none.p is None
    assert none.as_json()["n"] == 0


def pair(b: str, *differences: float) -> SeedComparison:
    a = dict(enumerate(differences))
    return compare_seeds("epm_q", "mapo", b, a, dict.fromkeys(a, 0.0))


def test_verdicts():
    clear, against = pair("turn", 5.0, 5.2, 4.9, 5.1, 5.0), pair("batch", -5.0, -5.2, -4.9, -5.1, -5.0)
    noisy = pair("grpo", 5.0, -4.0, 1.0, -2.0, 3.0)
    assert verdict(corrected([clear]), 1) == "holds"
    assert verdict(corrected([clear]), -1) == "does not hold"
    assert verdict(corrected([clear, against]), 1) == "does not hold"
    assert verdict(corrected([clear, noisy]), 1) == "undecided at n = 5"
    assert verdict(corrected([pair("turn", 5.0)]), 1) == "undecided at n = 1"
    # the correction decides: p = 0.02 alone, but 5 * 0.02 > 0.05 among five such
    edge = pair("turn", 1.0, 2.0, 3.0, 4.0, 6.0)
    assert verdict(corrected([edge]), 1) == "holds"
    assert verdict(corrected([edge] * 5), 1) == "undecided at n = 5"


def test_claims_say_what_was_compared():
    families = {
        "epm_q/idr": corrected([pair("turn", 5.0, 5.2, 4.9), pair("reinforce++", 0.1, -0.1, 0.0)]),
        "need/idr": corrected([pair("turn", -64.0, -128.0, -96.0)]),
    }
    first, second = claims(families, ["idr", "adr"])
    assert first["verdict"] == "holds" and first["claim"].endswith("than turn")
    assert "against turn +5.0 (+4.7 to +5.4), 3 of 3 seeds" in first["told"]
    assert second["verdict"] == "holds" and "fewer dialogues than turn" in second["claim"]
    assert claims({}, ["idr"]) == []
