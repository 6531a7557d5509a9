"""advantages(): against a slow obvious loop, and the facts that must hold for any input."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mapo import RewardError, advantages
from mapo.advantage import EPS, HORIZONS, METHODS, SCOPES

finite = st.floats(-50, 50).map(lambda x: round(x, 3))
cell = st.one_of(finite, st.none(), st.just(float("nan")))
ragged = st.lists(st.lists(cell, max_size=7), max_size=9)
options = st.fixed_dictionaries(
    {
        "method": st.sampled_from(METHODS),
        "gamma": st.sampled_from([0.0, 0.5, 0.85, 1.0]),
        "turn_weight": st.sampled_from([0.0, 0.3, 0.5, 1.0]),
        "scope": st.sampled_from(SCOPES),
        "horizon": st.sampled_from(HORIZONS),
    }
)


def z(x, peers):
    """(x - mean) / (population std + 1e-8); 0 for fewer than two peers or no spread."""
    if len(peers) < 2 or max(peers) == min(peers):
        return 0.0
    mean = sum(peers) / len(peers)
    std = math.sqrt(sum((p - mean) ** 2 for p in peers) / len(peers))
    return (x - mean) / (std + EPS)


def slow(rewards, groups, method, gamma, turn_weight, scope, horizon):
    """The definition, spelt out turn by turn."""
    n = len(rewards)
    r = [[None if x is None or math.isnan(x) else float(x) for x in row] for row in rewards]
    returns = [
        [
            sum(gamma ** (k - t) * row[k] for k in range(t, len(row)) if row[k] is not None)
            for t in range(len(row))
        ]
        for row in r
    ]
    alive = [any(x is not None for x in row) for row in r]

    def counts(i, t):
        if r[i][t] is None:
            return False
        siblings = [j for j in range(n) if groups[j] == groups[i]]
        if horizon == "shortest":
            return t < min(len(r[j]) for j in siblings if alive[j])
        return sum(t < len(r[j]) for j in siblings) >= 2

    turn, batch, mixed, mask = ([[0.0] * len(row) for row in r] for _ in range(4))
    for i, row in enumerate(r):
        siblings = [j for j in range(n) if groups[j] == groups[i]]
        for t, reward in enumerate(row):
            mask[i][t] = False
            if method in ("mapo", "turn", "batch") and counts(i, t):
                peers = [returns[j][t] for j in siblings if t < len(r[j]) and counts(j, t)]
                turn[i][t] = z(returns[i][t], peers) if method != "batch" else 0.0
                pool = siblings if scope == "group" else range(n)
                peers = [r[j][u] for j in pool for u in range(len(r[j])) if counts(j, u)]
                batch[i][t] = z(reward, peers) if method != "turn" else 0.0
                mask[i][t] = True
            if method == "mapo":
                mixed[i][t] = turn_weight * turn[i][t] + (1 - turn_weight) * batch[i][t]
            elif method in ("turn", "batch"):
                mixed[i][t] = {"turn": turn, "batch": batch}[method][i][t]
            else:
                mask[i][t] = reward is not None
                if reward is None:
                    continue
                if method == "grpo":
                    totals = [sum(x for x in r[j] if x is not None) for j in siblings if alive[j]]
                    mixed[i][t] = z(sum(x for x in row if x is not None), totals)
                elif method == "reinforce++":
                    mixed[i][t] = z(returns[i][0], [returns[j][0] for j in range(n) if alive[j]])
                else:
                    mixed[i][t] = batch[i][t] = z(reward, [x for other in r for x in other if x is not None])
    return turn, batch, mixed, returns, mask


@given(ragged, options, st.randoms())
def test_equals_the_obvious_loop(rewards, opts, random):
    groups = [random.choice("abc") for _ in rewards]
    got = advantages(rewards, groups, **opts)
    for name, want in zip(
        ("turn", "batch", "mixed", "returns", "mask"), slow(rewards, groups, **opts), strict=True
    ):
        have = getattr(got, name)
        assert len(have) == len(rewards)
        for a, b in zip(have, want, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6, err_msg=name)


def test_hand_computed_case():
    # two siblings, gamma 0.5: G = (1 + 0.5*3, 3), (2 + 0.5*0, 0) = (2.5, 3), (2, 0); z of two peers is +-1
    # batch: r = 1, 3, 2, 0: mean 1.5, std sqrt(1.25)
    got = advantages([[1, 3], [2, 0]], ["s", "s"], gamma=0.5)
    std = math.sqrt(1.25)
    np.testing.assert_allclose(np.concatenate(got.returns), [2.5, 3, 2, 0])
    np.testing.assert_allclose(np.concatenate(got.turn), [1, 1, -1, -1], atol=1e-7)
    np.testing.assert_allclose(np.concatenate(got.batch), np.array([-0.5, 1.5, 0.5, -1.5]) / std, atol=1e-7)
    np.testing.assert_allclose(
        np.concatenate(got.mixed),
        (np.concatenate(got.turn) + np.concatenate(got.batch)) / 2,
    )


@given(st.integers(2, 6), st.integers(1, 20), st.integers(0, 2**32))
def test_samuelson_bound(n, turns, seed):
    # |z| <= sqrt(n - 1) for n peers: siblings for the turn part, all n * turns for the batch part
    rewards = list(np.random.default_rng(seed).standard_cauchy(size=(n, turns)))
    got = advantages(rewards, ["s"] * n)
    assert np.abs(np.concatenate(got.turn)).max() <= math.sqrt(n - 1) + 1e-6
    assert np.abs(np.concatenate(got.batch)).max() <= math.sqrt(n * turns - 1) + 1e-6


def test_samuelson_bound_is_reached_by_one_outlier():
    # one sibling of four stands out: z = sqrt(3); one turn of 4 x 15: z = sqrt(59)
    rewards = np.zeros((4, 15))
    rewards[0, 14] = 1.0
    got = advantages(list(rewards), ["s"] * 4)
    assert got.turn[0][14] == pytest.approx(math.sqrt(3), abs=1e-6)
    assert got.batch[0][14] == pytest.approx(math.sqrt(59), abs=1e-6)


@given(
    st.lists(st.lists(finite, min_size=5, max_size=5), min_size=2, max_size=5),
    st.floats(-10, 10),
    st.floats(0.1, 10),
    options,
)
def test_shift_and_positive_scale_change_nothing(rewards, shift, scale, opts):
    x = np.array(rewards)
    assume(x.std() > 0.1 and (x[:, ::-1].cumsum(1).std(0) > 0.1).all())
    before = advantages(list(x), ["s"] * len(x), **opts).mixed
    after = advantages(list(scale * x + shift), ["s"] * len(x), **opts).mixed
    np.testing.assert_allclose(np.array(after), np.array(before), atol=1e-4)


def test_shift_does_matter_when_lengths_differ():
    """A constant is collected once a turn: the turn part then favours the longer dialogue."""
    rewards = [[1.0, 1.0, 1.0], [1.5, 1.5]]
    low = advantages([[x - 2 for x in row] for row in rewards], ["s", "s"], "turn").mixed
    high = advantages(rewards, ["s", "s"], "turn").mixed
    assert low[0][0] < 0 and high[0][0] == 0  # sums -3 against -1; 3 against 3


@given(ragged, options, st.randoms())
def test_permuting_dialogues_permutes_advantages(rewards, opts, random):
    groups = [random.choice("ab") for _ in rewards]
    order = random.sample(range(len(rewards)), len(rewards))
    straight = advantages(rewards, groups, **opts)
    shuffled = advantages([rewards[i] for i in order], [groups[i] for i in order], **opts)
    for name in ("turn", "batch", "mixed", "returns", "mask"):
        for place, i in enumerate(order):
            a, b = getattr(shuffled, name)[place], getattr(straight, name)[i]
            np.testing.assert_allclose(a, b, atol=1e-9)


def test_variance_identity_and_its_minimum():
    # Var(a x + (1-a) y) = 1 - 2 a (1-a) (1 - rho) for unit variances; smallest at a = 1/2
    rng = np.random.default_rng(0)
    rewards = list(rng.normal(size=(8, 12)))
    parts = advantages(rewards, ["s"] * 8, gamma=0.9)
    x, y = np.concatenate(parts.turn), np.concatenate(parts.batch)
    rho = float(np.mean(x * y))  # both have mean 0 and variance 1
    assert x.var() == pytest.approx(1) and y.var() == pytest.approx(1)
    variances = {}
    for a in np.linspace(0, 1, 11):
        mixed = np.concatenate(advantages(rewards, ["s"] * 8, gamma=0.9, turn_weight=float(a)).mixed)
        variances[round(float(a), 1)] = mixed.var()
        assert mixed.var() == pytest.approx(1 - 2 * a * (1 - a) * (1 - rho), abs=1e-6)
    assert min(variances, key=variances.get) == 0.5


def test_horizon_available_and_shortest():
    rewards = [[1, 2, 3, 4], [2, 1, 5], [3, 3]]
    available = advantages(rewards, ["s"] * 3)
    shortest = advantages(rewards, ["s"] * 3, horizon="shortest")
    # three reach turns 0 and 1, two reach turn 2, one reaches turn 3
    assert [m.tolist() for m in available.mask] == [[True] * 3 + [False], [True] * 3, [True] * 2]
    assert [m.tolist() for m in shortest.mask] == [[True] * 2 + [False] * 2, [True] * 2 + [False], [True] * 2]
    # what is masked still flows into the returns of earlier turns
    assert shortest.returns[0][0] == 10
    assert shortest.batch[0][3] == 0 and shortest.mixed[0][3] == 0


def test_shortest_ignores_dialogues_that_were_never_scored():
    got = advantages([[1.0, 2.0], [2.0, 0.0], [], [None]], ["s"] * 4, horizon="shortest")
    assert got.mask[0].all() and got.mask[1].all() and not got.mask[3].any()


def test_mapo_at_the_ends_is_turn_and_batch():
    rng = np.random.default_rng(1)
    rewards = [rng.normal(size=n) for n in (3, 5, 4, 6)]
    groups = ["a", "a", "b", "b"]
    for weight, method in ((1.0, "turn"), (0.0, "batch")):
        mapo, alone = (
            advantages(rewards, groups, turn_weight=weight),
            advantages(rewards, groups, method),
        )
        np.testing.assert_array_equal(np.concatenate(mapo.mixed), np.concatenate(alone.mixed))


def test_unscored_turns_leave_statistics_and_loss():
    nothing = float("nan")
    with_gap = advantages([[1, None, 3], [2, 5, nothing]], ["s", "s"])
    assert [m.tolist() for m in with_gap.mask] == [[True, False, True], [True, True, False]]
    # the sibling at turn 1 has nobody to be compared with there, but its own reward still counts
    assert with_gap.turn[1][1] == 0 and with_gap.batch[1][1] > 0
    # The gap adds nothing to earlier returns, and the discount keeps running over it
    gamma = 0.5
    got = advantages([[1, None, 3], [2, 5, nothing]], ["s", "s"], gamma=gamma)
    np.testing.assert_allclose(got.returns[0], [1 + gamma**2 * 3, gamma * 3, 3])
    np.testing.assert_allclose(got.returns[1], [2 + gamma * 5, 5, 0])


def test_an_unscored_turn_is_not_a_zero():
    scored = advantages([[0.0, 5.0], [1.0, 6.0], [2.0, 7.0]], ["s"] * 3, "batch")
    missing = advantages([[None, 5.0], [1.0, 6.0], [2.0, 7.0]], ["s"] * 3, "batch")
    assert missing.mixed[1][0] != pytest.approx(scored.mixed[1][0])
    assert missing.mixed[0][0] == 0 and not missing.mask[0][0]


@pytest.mark.parametrize("method", METHODS)
def test_degenerate_inputs_give_zeros_not_errors(method):
    empty = advantages([], [], method)
    assert empty.mixed == [] and empty.mask == []
    no_turns = advantages([[], []], ["s", "s"], method)
    assert [len(x) for x in no_turns.mixed] == [0, 0]
    flat = advantages([[0.1, 0.1], [0.1, 0.1]], ["s", "s"], method)
    assert all((x == 0).all() for x in flat.mixed)
    unscored = advantages([[None], [None]], ["s", "s"], method)
    assert not np.concatenate(unscored.mask).any()
    big_and_flat = advantages([[1e9 + 0.1] * 7, [1e9 + 0.1] * 7], ["s", "s"], method)
    assert all((x == 0).all() for x in big_and_flat.mixed)


def test_one_member_group_has_no_siblings_to_compare_with():
    got = advantages([[1.0, 2.0, 3.0]], ["alone"])
    assert not got.mask[0].any() and not got.mixed[0].any()
    # "shortest" keeps its turns: no turn part, but a batch part among its own turns
    got = advantages([[1.0, 2.0, 3.0]], ["alone"], horizon="shortest")
    assert got.mask[0].all() and not got.turn[0].any() and got.batch[0][2] > 0
    got = advantages([[1.0, 2.0]], ["alone"], "grpo")
    assert got.mask[0].all() and not got.mixed[0].any()


def test_exact_spread_counts_however_large_the_values():
    got = advantages([[1e12 + 1], [1e12]], ["s", "s"])
    np.testing.assert_allclose(np.concatenate(got.turn), [1, -1], atol=1e-6)


def test_a_plain_matrix_is_fine():
    got = advantages(np.arange(6.0).reshape(2, 3), ["s", "s"])
    assert got.mixed[0].shape == (3,) and got.mask[1].all()


def test_reinforce_turn_is_batch_over_everything_where_all_turns_count():
    rng = np.random.default_rng(2)
    rewards, groups = list(rng.normal(size=(4, 5))), ["a", "a", "b", "b"]
    one = advantages(rewards, groups, "reinforce++_turn").mixed
    other = advantages(rewards, groups, "batch", scope="batch").mixed
    np.testing.assert_allclose(one, other)


def test_one_turn_dialogues():
    got = advantages([[1.0], [3.0]], ["s", "s"])
    np.testing.assert_allclose(np.concatenate(got.mixed), [-1, 1], atol=1e-7)


def test_scope_batch_pools_all_groups():
    rewards = [[0.0, 1.0], [1.0, 0.0], [10.0, 11.0], [11.0, 10.0]]
    groups = ["a", "a", "b", "b"]
    group = advantages(rewards, groups, "batch").mixed
    pooled = advantages(rewards, groups, "batch", scope="batch").mixed
    np.testing.assert_allclose(group[0], group[2], atol=1e-9)
    assert pooled[0].max() < 0 < pooled[2].min()


def test_accepts_arrays_and_any_hashable_group():
    got = advantages([np.array([1, 2]), (3.0, None)], np.array([7, 7]), "grpo")
    assert got.mixed[0].dtype == np.float64 and got.mask[1].tolist() == [True, False]
    assert got.mixed[0].tolist() == [0.0, 0.0]  # 1 + 2 against 3 + nothing
    assert advantages([[1.0], [2.0]], [("s", 1), ("s", 1)]).mask[0].all()


@pytest.mark.parametrize(
    ("rewards", "groups", "place", "words"),
    [
        ([[1.0], [2.0]], ["s"], "", "rewards of 2 dialogues but 1 groups"),
        (None, ["s"], "", "rewards is a NoneType"),
        ([[1.0]], None, "", "groups is a NoneType"),
        ([[1.0]], {"s": 1}, "", "groups is a dict"),
        ((x for x in [[1.0]]), ["s"], "", "rewards is a generator"),
        ([{0: 1.0}], ["s"], "rewards[0]", "got a dict"),
        ([np.ma.array([1.0, 9.0], mask=[0, 1])], ["s"], "rewards[0]", "got a MaskedArray"),
        ([[10**400]], ["s"], "", "too large"),
        ([[True, 2.0]], ["s"], "rewards[0][0]", "True is not a number"),
        ([np.array(["1"])], ["s"], "rewards[0][0]", "not a number"),
        ([[1.0, float("inf")]], ["s"], "rewards[0][1]", "not finite"),
        ([[1.0], [], [2.0, "3"]], ["s"] * 3, "rewards[2][1]", "'3' is not a number"),
        ([[True], [True]], ["s"] * 2, "rewards[0][0]", "True is not a number"),
        ([[1.0], [[1.0]]], ["s"] * 2, "rewards[1][0]", "not a number"),
        ([1.0, 2.0], ["s"] * 2, "rewards[0]", "expected the turn rewards"),
        (["12"], ["s"], "rewards[0]", "expected the turn rewards"),
        ([[1.0]], [["s"]], "groups[0]", "cannot be used as a group name"),
        ([[1e308, 1e308]], ["s"], "", "too large"),
    ],
)
def test_bad_input_is_refused_with_its_place(rewards, groups, place, words):
    with pytest.raises(RewardError, match=".") as caught:
        advantages(rewards, groups)
    assert place in str(caught.value) and words in str(caught.value)


@pytest.mark.parametrize(
    "option",
    [
        {"method": "ppo"},
        {"scope": "world"},
        {"horizon": "far"},
        {"gamma": 1.5},
        {"turn_weight": float("nan")},
    ],
)
def test_bad_options_are_refused(option):
    with pytest.raises(RewardError, match=next(iter(option))):
        advantages([[1.0]], ["s"], **option)
