"""Bootstrap intervals: against scipy, and for what they promise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from mapo.measure import stats
from mapo.measure.stats import bootstrap


def test_agrees_with_scipy():
    rows = np.random.default_rng(0).gamma(2.0, size=(40, 1))
    [[lo, hi]] = bootstrap(rows, lambda m: m, resamples=20_000, level=0.95)
    theirs = scipy_stats.bootstrap(
        (rows[:, 0],), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    assert (lo, hi) == pytest.approx((theirs.low, theirs.high), abs=0.02)


def test_rows_stay_together():
    # second column = -first: their sum never varies, which only holds if whole rows are resampled
    x = np.random.default_rng(0).normal(size=(30, 1))
    [[lo, hi]] = bootstrap(np.hstack([x, -x]), lambda m: m.sum(axis=-1, keepdims=True))
    assert lo == pytest.approx(0) and hi == pytest.approx(0)


def test_same_seed_same_interval_and_chunks_do_not_matter(monkeypatch):
    rows = np.random.default_rng(0).normal(size=(50, 2))
    whole = bootstrap(rows, lambda m: m)
    assert np.array_equal(whole, bootstrap(rows, lambda m: m))
    monkeypatch.setattr(stats, "_CHUNK", 50 * 7)
    np.testing.assert_allclose(bootstrap(rows, lambda m: m), whole)


def test_one_row_has_no_interval():
    assert bootstrap(np.ones((1, 9)), lambda m: m) is None


def test_without_a_level_it_is_widened_for_few_rows():
    rows = np.random.default_rng(0).normal(size=(12, 1))
    wide, plain = bootstrap(rows, lambda m: m), bootstrap(rows, lambda m: m, level=0.95)
    assert wide[0, 0] < plain[0, 0] and wide[0, 1] > plain[0, 1]
    level = stats.small_sample_level(12)
    assert np.array_equal(wide, bootstrap(rows, lambda m: m, level=level)) and level > 0.96


def test_what_is_worth_showing():
    assert stats.reportable(1.0, 2.0, rows=6) == (1.0, 2.0)
    assert stats.reportable(1.0, 2.0, rows=5) is None and stats.reportable(1.0, 1.0, rows=100) is None


@pytest.mark.parametrize(("hits", "n"), [(0, 5), (5, 5), (7, 30), (25, 30)])
def test_the_interval_of_a_share_is_wilsons(hits, n):
    theirs = scipy_stats.binomtest(hits, n).proportion_ci(method="wilson")
    assert stats.wilson(hits, n) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


def test_strata_keep_their_sizes():
    # rows of one kind are all 0, of the other all 1: only the mixture varies, and strata hold it fast
    rows = np.array([[0.0]] * 10 + [[1.0]] * 30)
    [[lo, hi]] = bootstrap(rows, lambda m: m, strata=["a"] * 10 + ["b"] * 30)
    assert lo == hi == 0.75
    [[lo, hi]] = bootstrap(rows, lambda m: m)
    assert lo < 0.7 and hi > 0.8
