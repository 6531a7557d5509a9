"""Agreement of two judges, held to the textbook formulas and to scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy

from mapo.measure.agreement import (
    correlation_interval,
    cosine,
    kappa_interval,
    mean_cosine,
    pearson,
    pooled_kappa,
    quadratic_kappa,
    ranks,
    spearman,
)

pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=60)


def table_kappa(a, b, k=4):
    """1 - sum w O / sum w E over the k x k table, w_ij = (i - j)^2, E the product of the margins."""
    observed = np.zeros((k, k))
    for i, j in zip(a, b, strict=True):
        observed[i, j] += 1 / len(a)
    expected = np.outer(observed.sum(axis=1), observed.sum(axis=0))
    weights = (np.arange(k)[:, None] - np.arange(k)[None]) ** 2
    chance = float((weights * expected).sum())
    return None if chance < 1e-12 else 1 - float((weights * observed).sum()) / chance


@given(pairs)
def test_quadratic_kappa_is_the_tables(drawn):
    a, b = [x for x, _ in drawn], [y for _, y in drawn]
    ours, theirs = quadratic_kappa(a, b), table_kappa(a, b)
    assert (ours is None) == (theirs is None)
    assert ours is None or ours == pytest.approx(theirs, abs=1e-9)


def test_quadratic_kappa_by_hand():
    # together 0, 0, 1, 4: 1.25 on average; apart: both variances, and the squared difference of the means
    assert quadratic_kappa([0, 1, 2, 2], [0, 1, 1, 0]) == pytest.approx(
        1 - 1.25 / (np.var([0, 1, 2, 2]) + np.var([0, 1, 1, 0]) + (1.25 - 0.5) ** 2)
    )
    assert quadratic_kappa([0, 1, 2], [0, 1, 2]) == 1
    assert quadratic_kappa([0, 2], [2, 0]) == -1
    assert quadratic_kappa([1, 1], [1, 1]) is None and quadratic_kappa([], []) is None


def test_items_that_hardly_move_weigh_little_in_the_pooled_kappa():
    rng = np.random.default_rng(0)
    busy = rng.integers(0, 3, 300)
    idle = np.zeros(300, dtype=int)
    idle[:2] = 1
    other = np.zeros(300, dtype=int)
    assert quadratic_kappa(idle.tolist(), other.tolist()) == pytest.approx(0, abs=0.02)
    pooled = pooled_kappa([busy.tolist(), idle.tolist()], [busy.tolist(), other.tolist()])
    assert pooled > 0.99


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=3, max_size=30))
def test_rank_correlation_is_scipys(drawn):
    a, b = [round(x, 1) for x, _ in drawn], [round(y, 1) for _, y in drawn]
    assert ranks(a) == pytest.approx(scipy.rankdata(a).tolist())
    ours = spearman(a, b)
    if len(set(a)) < 2 or len(set(b)) < 2:
        assert ours is None
    else:
        assert ours == pytest.approx(float(scipy.spearmanr(a, b).statistic), abs=1e-9)
        assert pearson(a, b) == pytest.approx(float(scipy.pearsonr(a, b).statistic), abs=1e-6)


def test_too_few_have_no_correlation():
    assert spearman([1, 2], [1, 2]) is None and pearson([1], [1]) is None


def test_cosine_of_steps():
    assert cosine((1, 0, 0), (0, 1, 0)) == 0
    assert cosine((1, 1), (2, 2)) == pytest.approx(1) and cosine((1, 0), (-3, 0)) == pytest.approx(-1)
    assert cosine((0, 0), (1, 0)) is None
    mean, n = mean_cosine([(1, 0), (0, 0), (1, 1)], [(1, 0), (1, 0), (1, 0)])
    assert n == 2 and mean == pytest.approx((1 + math.sqrt(0.5)) / 2)
    assert mean_cosine([(0, 0)], [(1, 0)]) == (None, 0)


def test_the_interval_of_kappa_covers_and_is_none_without_spread():
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(60):
        truth = rng.integers(0, 3, (40, 6, 3))  # 40 dialogues of 6 turns and 3 items
        a, b = (np.clip(truth + rng.choice([-1, 0, 1], truth.shape, p=[0.15, 0.7, 0.15]), 0, 2) for _ in "ab")
        clusters = [str(d) for d in range(40) for _ in range(6)]
        low, high = kappa_interval(a.reshape(-1, 3).astype(float), b.reshape(-1, 3).astype(float), clusters)
        assert low < pooled_kappa(a.reshape(-1, 3).T.tolist(), b.reshape(-1, 3).T.tolist()) < high
        hits += low < EXPECTED < high
    assert hits >= 52  # 95 % of 60 is 57; fewer than 52 has a chance of 1 in 100
    same = np.ones((12, 3))
    assert kappa_interval(same, same, [str(i) for i in range(12)]) is None
    assert kappa_interval(same[:1], same[:1], ["a"]) is None


def _expected() -> float:
    """The kappa of two such judges: over all truths and both noises."""
    chances = {-1: 0.15, 0: 0.7, 1: 0.15}
    drawn = [
        (min(2, max(0, t + i)), min(2, max(0, t + j)), p * q / 3)
        for t in range(3)
        for i, p in chances.items()
        for j, q in chances.items()
    ]
    mean = sum(x * p for x, _, p in drawn)
    apart = 2 * (sum(x * x * p for x, _, p in drawn) - mean**2)
    return 1 - sum((x - y) ** 2 * p for x, y, p in drawn) / apart


EXPECTED = _expected()


def test_the_interval_of_a_correlation_covers_it():
    """Fisher's z over normal pairs: 95 of 100 hold the correlation they were drawn with."""
    rng, hits, ranked = np.random.default_rng(1), 0, 0
    for _ in range(400):
        x = rng.normal(size=20)
        y = 0.8 * x + 0.6 * rng.normal(size=20)
        low, high = correlation_interval(pearson(x, y), 20)
        hits += low < 0.8 < high
        low, high = correlation_interval(spearman(x, y), 20, of_ranks=True)
        ranked += low < 6 / math.pi * math.asin(0.4) < high
    assert 370 <= hits <= 390 and 365 <= ranked <= 393
    assert correlation_interval(None, 20) is None and correlation_interval(0.5, 5) is None
    assert correlation_interval(1.0, 6) == (1.0, 1.0)
