"""The dice: one number in, one token out."""

from __future__ import annotations

import math
from unittest import mock

import torch
from hypothesis import given
from hypothesis import strategies as st

from mapo.sampling.draw import PendingReply, noise_of, pack_rows, sample


@given(st.integers(0, 10**6), st.integers(2, 700), st.floats(0, 1, exclude_max=True, width=32))
def test_sampling_inverts_the_cumulative_distribution(seed, size, u):
    # token = min{k : p_0 + ... + p_k > u}; checked in float64, leaving a hair's breadth at the edges.
    logits = torch.randn(1, size, generator=torch.Generator().manual_seed(seed)) * 4
    logits[0, ::3] = -math.inf
    if size > 2:
        token, logprob = sample(logits, torch.tensor([u]), torch.tensor([1.0]))
        exact = logits.double().log_softmax(-1)[0]
        edges = exact.exp().cumsum(0)
        k = int(token)
        assert exact[k] > -math.inf
        assert edges[k] - exact[k].exp() - 1e-5 <= u <= edges[k] + 1e-5
        assert abs(float(logprob) - float(exact[k])) < 1e-4


@given(st.integers(0, 10**6), st.floats(0, 1, exclude_max=True, width=32))
def test_a_masked_token_is_never_sampled(seed, u):
    # Rounding may select an id without probability; the most likely id is sampled instead.
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, 1100, generator=generator).masked_fill(
        torch.rand(1, 1100, generator=generator) < 0.99, -math.inf
    )
    logits[0, 5] = 0.0
    with mock.patch(
        "torch.searchsorted", lambda sums, *_, **__: torch.full_like(sums[:, :1], 300, dtype=torch.int64)
    ):
        token, logprob = sample(logits, torch.tensor([u]), torch.tensor([1.0]), masked=True)
    assert logits[0, int(token)] > -math.inf
    assert math.isfinite(float(logprob))


def test_top_p_keeps_the_fewest_ids_that_reach_it():
    # p = (0.5, 0.3, 0.15, 0.05); top_p 0.7 keeps the first two: 0.5/0.8 and 0.3/0.8.
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log().repeat(50, 1)
    noise = torch.arange(50) / 50
    token, logprob = sample(logits, noise, torch.ones(50), torch.full((50,), 0.7))
    assert set(token.tolist()) == {0, 1}
    expected = torch.tensor([0.5 / 0.8, 0.3 / 0.8]).log()[token]
    assert torch.allclose(logprob, expected, atol=1e-6)


@given(st.integers(-(2**70), 2**70), st.integers(1, 50), st.integers(1, 50))
def test_noise_depends_on_seed_and_index_alone(seed, few, many):
    few, many = sorted((few, many))
    assert (noise_of(seed, many)[:few] == noise_of(seed, few)).all()
    assert (noise_of(seed, many) >= 0).all() and (noise_of(seed, many) < 1).all()


def test_prompts_make_lines_no_longer_than_the_budget_if_they_can():
    def prompt(slot, length):
        return PendingReply(slot, 0, [1] * length, noise_of(0, 4))

    fresh = [prompt(slot, length) for slot, length in enumerate([4, 3, 3, 12, 1, 9])]
    assert [[f.slot for f in line] for line in pack_rows(fresh, 10)] == [[0, 1, 2], [3], [4, 5]]
    assert pack_rows([], 10) == []
