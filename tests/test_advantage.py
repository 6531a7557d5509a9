"""advantages(): against a slow obvious loop, and the facts that must hold for any input."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import mapo
from mapo import RewardError, advantages
from mapo.advantage import ENDINGS, HORIZONS, METHODS, SCALES, SCOPES
from support.slow_advantages import slow_advantages

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
        "endings": st.sampled_from(ENDINGS),
        "scale": st.sampled_from([None, *SCALES]),
        "lam": st.sampled_from([0.0, 0.7, 1.0]),
        "step_weight": st.sampled_from([0.0, 0.5, 1.0]),
    }
)


def inputs(rewards, random):
    """What some methods need beside the rewards, at random."""
    return {
        "outcome": [random.choice([0.0, 1.0]) for _ in rewards],
        "states": [[random.choice(["a", "b", (1, 2), None]) for _ in row] for row in rewards],
        "axes": [{k: [round(random.uniform(-3, 3), 2) for _ in row] for k in "CA"} for row in rewards],
        "axis_weights": {"C": 2.0},
    }


@given(ragged, options, st.randoms())
def test_equals_the_obvious_loop(rewards, opts, random):
    groups = [random.choice("abc") for _ in rewards]
    opts |= inputs(rewards, random)
    got = advantages(rewards, groups, **opts)
    for name, want in zip(
        ("turn", "batch", "mixed", "returns", "mask"), slow_advantages(rewards, groups, **opts), strict=True
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
    assume((opts["scale"] or "std") == "std" and opts["method"] != "kevin")
    opts |= inputs(rewards, random.Random(0)) | {"lam": 1.0, "states": [list(range(5))] * len(x)}
    before = advantages(list(x), ["s"] * len(x), **opts).mixed
    after = advantages(list(scale * x + shift), ["s"] * len(x), **opts).mixed
    if opts["method"] in ("rloo", "rloo_turn"):  # bare differences by default
        before = [scale * row for row in before] if opts["scale"] is None else before
    np.testing.assert_allclose(np.array(after), np.array(before), atol=1e-4, rtol=1e-4)


@given(ragged, st.floats(-10, 10), options, st.randoms())
def test_with_dialogues_continued_a_shift_changes_nothing_whatever_the_lengths(rewards, shift, opts, rng):
    """All peers have equally many turns, so each collects the constant equally often."""
    rewards = [[x for x in row if x is not None and not math.isnan(x)] for row in rewards]
    groups = [rng.choice("ab") for _ in rewards]
    # equal states at one turn index only: returns of different turns collect the constant differently
    opts |= inputs(rewards, rng) | {"endings": rng.choice(["continued", "held"]), "scale": "none"}
    opts["states"] = [list(range(len(row))) for row in rewards]
    assume(opts["method"] != "kevin")
    assume(all(x and x + shift for row in rewards for x in row))  # a single reward at the end is an outcome
    before = advantages(rewards, groups, **opts)
    after = advantages([[x + shift for x in row] for row in rewards], groups, **opts)
    for a, b in zip(before.mixed, after.mixed, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_shift_does_matter_when_lengths_differ():
    """A constant is collected once a turn: the turn part then favours the longer dialogue."""
    rewards = [[1.0, 1.0, 1.0], [1.5, 1.5]]
    low = advantages([[x - 2 for x in row] for row in rewards], ["s", "s"], "turn", endings="cut").mixed
    high = advantages(rewards, ["s", "s"], "turn", endings="cut").mixed
    assert low[0][0] < 0 and high[0][0] == 0  # sums -3 against -1; 3 against 3


@given(ragged, options, st.randoms())
def test_permuting_dialogues_permutes_advantages(rewards, opts, random):
    groups = [random.choice("ab") for _ in rewards]
    order = random.sample(range(len(rewards)), len(rewards))
    more = inputs(rewards, random)
    straight = advantages(rewards, groups, **opts, **more)
    more |= {name: [more[name][i] for i in order] for name in ("outcome", "states", "axes")}
    shuffled = advantages([rewards[i] for i in order], [groups[i] for i in order], **opts, **more)
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
    def advantages(rewards, groups, method):
        return mapo.advantages(rewards, groups, method, **inputs(rewards, random.Random(0)))

    empty = advantages([], [], method)
    assert empty.mixed == [] and empty.mask == []
    no_turns = advantages([[], []], ["s", "s"], method)
    assert [len(x) for x in no_turns.mixed] == [0, 0]
    if method not in ("mt_grpo", "gdpo", "kevin", "gigpo"):  # which compare outcomes, axes, different turns
        flat = advantages([[0.1, 0.1], [0.1, 0.1]], ["s", "s"], method)
        assert all((x == 0).all() for x in flat.mixed)
    unscored = advantages([[None], [None]], ["s", "s"], method)
    assert not np.concatenate(unscored.mask).any()
    if method not in ("mt_grpo", "gdpo", "kevin", "gigpo"):  # which compare outcomes, axes, different turns
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
        {"endings": "happy"},
        {"scale": "max"},
        {"lam": 2},
        {"step_weight": -1},
    ],
)
def test_bad_options_are_refused(option):
    with pytest.raises(RewardError, match=next(iter(option))):
        advantages([[1.0]], ["s"], **option)


# ---- endings


@pytest.mark.parametrize("gamma", [0.85, 1.0])
def test_winning_is_not_punished(gamma):
    """One dialogue moves twice as fast and passes at turn 12; its siblings go on to turn 14."""
    rewards, groups = [[2.0] * 11 + [0.3], *[[1.0] * 14] * 3], ["s"] * 4
    cut = advantages(rewards, groups, gamma=gamma, endings="cut")
    assert cut.turn[0][-1] == pytest.approx(-math.sqrt(3), abs=1e-6)
    assert cut.mixed[0][-1] == pytest.approx(-1.926, abs=1e-3)
    # pace 8.3 / 5 = 1.66: G_12 = 0.3 + gamma 1.66 + gamma^2 1.66, the siblings' 1 + gamma + gamma^2
    got = advantages(rewards, groups, gamma=gamma)
    assert got.returns[0][-1] == pytest.approx(0.3 + gamma * 1.66 + gamma**2 * 1.66)
    assert got.turn[0][-1] == pytest.approx(math.sqrt(3), abs=1e-6)
    # the last reward stands for three turns: (0.3 + 2 * 1.66) / 3 = 1.2067, close to the mean of all turns
    assert got.batch[0][-1] == pytest.approx(0, abs=0.01)
    assert got.mixed[0][-1] > 0.8 and (got.mixed[0] > 0.8).all()
    assert all((row[:12] < 0).all() for row in got.mixed[1:])


@pytest.mark.parametrize("gamma", [0.85, 1.0])
@pytest.mark.parametrize("method", METHODS)
def test_collapsing_early_is_not_rewarded(method, gamma):
    """All turns are equally bad, and one dialogue collapses three turns before its siblings."""
    rewards, groups = [[-1.5] * 12, *[[-1.5] * 15] * 3], ["s"] * 4
    more = {
        "outcome": [0.0] * 4,
        "states": [list(range(len(row))) for row in rewards],
        "axes": [{"C": row, "A": [0.0] * len(row)} for row in rewards],
    }
    got = advantages(rewards, groups, method, gamma=gamma, **more)
    if method in ("kevin",):  # compares turns of different indices: late ones have less to lose
        got = advantages(rewards, groups, method, gamma=0.0, **more)
    np.testing.assert_allclose(np.concatenate(got.mixed), 0, atol=1e-6)
    cut = advantages(rewards, groups, "mapo", gamma=gamma, endings="cut")
    assert cut.mixed[0] == pytest.approx(np.full(12, math.sqrt(3) / 2), abs=1e-6)


def test_hand_computed_continuation():
    # Six turns, pace (1 + 2 + 3 + 4 + 5) / 5 = 3; two more turns to the sibling's length of 8
    rewards = [[9.0, 1.0, 2.0, 3.0, 4.0, 5.0], [0.0] * 8]
    got = advantages(rewards, ["s", "s"], gamma=0.5)
    assert got.returns[0][5] == 5 + 0.5 * 3 + 0.25 * 3
    assert got.returns[0][4] == 4 + 0.5 * got.returns[0][5]
    total = advantages(rewards, ["s", "s"], "rloo").mixed
    assert total[0][0] == 24 + 2 * 3
    settled = advantages(rewards, ["s", "s"], "batch", scale="none").mixed
    others = [9, 1, 2, 3, 4, *[0.0] * 6]  # turns 7 and 8 of the sibling have no peer and do not count
    assert settled[0][5] == pytest.approx((5 + 3 + 3) / 3 - np.mean([*others, 11 / 3]))


@pytest.mark.parametrize("endings", ENDINGS)
@pytest.mark.parametrize("method", METHODS)
def test_an_outcome_at_the_end_is_not_a_pace(method, endings):
    """Two dialogues win, one early and one late; two earn nothing. The reward is paid once."""
    rewards = [[0.0] * 11 + [1.0], [0.0] * 19 + [1.0], [0.0] * 20, [0.0] * 20]
    more = inputs(rewards, random.Random(0))
    got = advantages(rewards, ["s"] * 4, method, gamma=1.0, endings=endings, **more)
    cut = advantages(rewards, ["s"] * 4, method, gamma=1.0, endings="cut", **more)
    for a, b in zip(got.mixed, cut.mixed, strict=True):
        np.testing.assert_array_equal(a, b)


def test_turn_gae_leaves_unscored_turns_out_of_the_values():
    rewards = [[1.0, None, 2.0], [2.0, 1.0, 0.0], [0.0, 3.0, 5.0]]
    gae = advantages(rewards, ["s"] * 3, "turn_gae", gamma=0.9, lam=1.0, scale="none").mixed
    turn = advantages(rewards, ["s"] * 3, "turn", gamma=0.9, scale="none").mixed
    for a, b in zip(gae, turn, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_held_repeats_the_last_reward():
    got = advantages([[-9.0, -5.0, -2.0], [-4.0] * 5], ["s", "s"], gamma=1.0, endings="held")
    assert got.returns[0].tolist() == [-16 - 4, -7 - 4, -2 - 4]
    # the winner has the lower distance at the end, though its last five rewards have a lower mean
    assert got.turn[0][-1] > 0 > advantages([[-9.0, -5.0, -2.0], [-4.0] * 5], ["s", "s"]).turn[0][-1]


def test_unscored_turns_at_the_end_are_turns_and_not_part_of_the_pace():
    rewards = [[4.0, 2.0, None], [1.0] * 5]
    got = advantages(rewards, ["s", "s"], gamma=1.0)
    assert got.returns[0].tolist() == [4 + 2 + 2 * 3, 2 + 2 * 3, 2 * 3]  # pace 3, two more turns
    # the last turn is unscored, so no reward is averaged with the continued turns
    assert got.batch[0][1] == advantages(rewards, ["s", "s"], endings="cut").batch[0][1]
    # nothing is known of a dialogue without a scored turn: nobody is continued to its length
    alone = advantages([[4.0, 2.0], [1.0, 1.0], [None] * 9], ["s"] * 3, gamma=1.0)
    assert alone.returns[0].tolist() == [6, 2]


@given(st.integers(1, 6), st.integers(2, 5), options, st.randoms())
def test_groups_that_end_together_are_not_changed(turns, siblings, opts, rng):
    rewards = [[round(rng.uniform(-9, 9), 2) for _ in range(turns)] for _ in range(2 * siblings)]
    groups = ["a", "b"] * siblings
    opts |= inputs(rewards, rng)
    other = rng.choice(["continued", "held"])
    cut, continued = (advantages(rewards, groups, **opts | {"endings": e}) for e in ("cut", other))
    for name in ("turn", "batch", "mixed", "returns", "mask"):
        for a, b in zip(getattr(cut, name), getattr(continued, name), strict=True):
            np.testing.assert_array_equal(a, b)


@given(ragged, st.floats(0.1, 10), options, st.randoms())
def test_bare_differences_scale_with_the_rewards(rewards, factor, opts, rng):
    groups = [rng.choice("ab") for _ in rewards]
    opts |= inputs(rewards, rng) | {"scale": "none"}
    assume(opts["method"] not in ("mt_grpo", "gdpo"))
    before = advantages(rewards, groups, **opts)
    after = advantages([[None if x is None else factor * x for x in row] for row in rewards], groups, **opts)
    for a, b in zip(before.mixed, after.mixed, strict=True):
        np.testing.assert_allclose(factor * a, b, atol=1e-6)


# ---- other estimators, by hand


TWO = ([[1.0, 3.0], [2.0, 0.0]], ["s", "s"])
"""Returns with gamma 0.5: (2.5, 3) and (2, 0); sums 4 and 2."""


def test_kevin_by_hand():
    got = np.concatenate(advantages(*TWO, "kevin", gamma=0.5).mixed)
    values = np.array([2.5, 3.0, 2.0, 0.0])
    np.testing.assert_allclose(got, (values - values.mean()) / values.std(), atol=1e-7)


def test_rloo_by_hand():
    three = ([[1.0], [2.0], [6.0]], ["s"] * 3)
    assert [x[0] for x in advantages(*three, "rloo").mixed] == [1 - 4, 2 - 3.5, 6 - 1.5]
    got = advantages(*TWO, "rloo_turn", gamma=0.5).mixed
    assert [x.tolist() for x in got] == [[0.5, 3.0], [-0.5, -3.0]]
    # the same direction as GRPO without a standard deviation: n / (n - 1) times as much
    grpo = advantages(*three, "grpo", scale="none").mixed
    np.testing.assert_allclose([1.5 * x[0] for x in grpo], [-3, -1.5, 4.5])


def test_scale_batch_by_hand():
    # Group differences +-1 and +-3; their standard deviation over the batch is sqrt(5)
    got = advantages([[1.0], [3.0], [0.0], [6.0]], ["a", "a", "b", "b"], "grpo", scale="batch").mixed
    np.testing.assert_allclose([x[0] for x in got], np.array([-1, 1, -3, 3]) / math.sqrt(5), atol=1e-7)
    std = advantages([[1.0], [3.0], [0.0], [6.0]], ["a", "a", "b", "b"], "grpo").mixed
    np.testing.assert_allclose([x[0] for x in std], [-1, 1, -1, 1], atol=1e-7)


def test_turn_gae_by_hand():
    # V = (2.25, 1.5), and 0 after the end. d = (1 + .5 * 1.5 - 2.25, 3 - 1.5), (2 + .75 - 2.25, -1.5)
    got = advantages(*TWO, "turn_gae", gamma=0.5, lam=0.8, scale="none").mixed
    np.testing.assert_allclose(got, [[-0.5 + 0.4 * 1.5, 1.5], [0.5 - 0.4 * 1.5, -1.5]])
    one = advantages(*TWO, "turn_gae", gamma=0.5, lam=1.0, scale="none").mixed
    np.testing.assert_allclose(one, advantages(*TWO, "turn", gamma=0.5, scale="none").mixed)


def test_mt_grpo_by_hand():
    got = advantages(*TWO, "mt_grpo", outcome=[0, 1], step_weight=0.5).mixed
    np.testing.assert_allclose(got, [[-1 - 0.5, -1 + 0.5], [1 + 0.5, 1 - 0.5]], atol=1e-6)
    same = advantages(*TWO, "mt_grpo", outcome=[1, 1]).mixed  # all succeed: only the turns differ
    np.testing.assert_allclose(same, [[-1, 1], [1, -1]], atol=1e-6)


def test_gigpo_by_hand():
    # sums 4 and 2: z = +-1. G: (2.5, 3), (2, 0). State x at turn 1 of both, y once, unknown once
    got = advantages(*TWO, "gigpo", gamma=0.5, states=[["x", "y"], ["x", None]]).mixed
    np.testing.assert_allclose(got, [[1 + 1, 1], [-1 - 1, -1]], atol=1e-6)
    # a state may recur at another turn, also of the same dialogue; groups do not mix
    states = [["x", "x"], ["y", "y"]]
    within = advantages(*TWO, "gigpo", gamma=0.5, states=states).turn
    np.testing.assert_allclose(within, [[-1, 1], [1, -1]], atol=1e-6)
    apart = advantages(TWO[0], ["a", "b"], "gigpo", states=[["x", "y"], ["x", "y"]]).turn
    assert not np.concatenate(apart).any()


def test_gdpo_by_hand():
    # C sums to 4 and 2, A to 0 and 30: z = (1, -1) and (-1, 1). Weights 2 and 1: total +-1, whitened +-1
    axes = [{"C": [1.0, 3.0], "A": [0.0, 0.0]}, {"C": [2.0, 0.0], "A": [10.0, 20.0]}]
    got = advantages(*TWO, "gdpo", axes=axes, axis_weights={"C": 2.0}).mixed
    np.testing.assert_allclose(got, [[1, 1], [-1, -1]], atol=1e-6)
    equal = advantages(*TWO, "gdpo", axes=axes).mixed  # the axes cancel
    np.testing.assert_allclose(equal, 0, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "more", "words"),
    [
        ("mt_grpo", {}, "needs `outcome`"),
        ("gigpo", {}, "needs `states`"),
        ("gdpo", {}, "needs `axes`"),
        ("mt_grpo", {"outcome": [1.0]}, "one finite number per dialogue"),
        ("mt_grpo", {"outcome": [1.0, None]}, "not numbers"),
        ("mt_grpo", {"outcome": [1.0, math.nan]}, "one finite number per dialogue"),
        ("mt_grpo", {"outcome": ["a", "b"]}, "not numbers"),
        ("gigpo", {"states": [["x"], ["x", "y"]]}, "one entry per turn"),
        ("gigpo", {"states": [[[], "x"], ["x", "y"]]}, "cannot be compared"),
        ("gdpo", {"axes": [{"C": [1, 2]}, {"A": [1, 2]}]}, "different axes"),
        ("gdpo", {"axes": [{"C": [1, 2]}, {"C": [1]}]}, "one entry per turn"),
        ("gdpo", {"axes": [{"C": [1, 2]}, {"C": [None, 1]}]}, "no finite reward"),
        ("gdpo", {"axes": []}, "one entry per dialogue"),
        ("gdpo", {"axes": {"C": [1, 2]}}, "one entry per dialogue"),
        ("gdpo", {"axes": [{"C": 1}, {"C": 2}]}, "one entry per turn"),
        ("gigpo", {"states": [None, ["x", "y"]]}, "one entry per turn"),
        ("gigpo", {"states": 5}, "one entry per turn"),
        ("gigpo", {"states": ["ab", "cd"]}, "one entry per turn"),
        ("mt_grpo", {"outcome": {}}, "not numbers"),
        ("mt_grpo", {"outcome": ["1", "0"]}, "not numbers"),
        ("mt_grpo", {"outcome": [[1.0], [0.0]]}, "not numbers"),
        ("mt_grpo", {"outcome": [1e200, 0.0]}, "one finite number"),
        *(
            ("gdpo", {"axes": [{"C": [1, 2]}, {"C": [2, 1]}], "axis_weights": w}, "not weights")
            for w in ({"C": math.nan}, {"C": "a"}, [1.0], {"c": 5}, {"C": -1})
        ),
    ],
)
def test_missing_or_wrong_input_is_refused(method, more, words):
    with pytest.raises(RewardError, match=words):
        advantages(*TWO, method, **more)


def test_a_turn_in_an_unknown_state_counts_as_one_without_peers():
    got = advantages([[0.0], [1.0], [5.0]], ["s"] * 3, "gigpo", scale="batch",
                     states=[["a"], ["a"], [None]])  # fmt: skip
    # differences -1/2, 1/2 and 0, over their standard deviation sqrt(1/6)
    assert [row[0] for row in got.turn] == pytest.approx([-math.sqrt(1.5), math.sqrt(1.5), 0.0])


@pytest.mark.parametrize("method", METHODS)
def test_an_excluded_turn_is_masked_and_no_peer_but_stays_in_the_returns(method):
    rewards = [[1.0, 5.0, 2.0], [3.0, 1.0, 4.0], [2.0, 2.0, 0.0]]
    excluded = [[False, True, False], [False] * 3, [False] * 3]
    more = {
        "outcome": [1.0, 0.0, 0.0],
        "states": [[0, 0, 0]] * 3,
        "axes": [{"C": row} for row in rewards],
    }
    plain = advantages(rewards, ["s"] * 3, method, **more)
    found = advantages(rewards, ["s"] * 3, method, **more, excluded=excluded)
    assert not found.mask[0][1]
    assert found.mixed[0][1] == 0.0
    assert sum(map(sum, found.mask)) == sum(map(sum, plain.mask)) - 1
    assert [row.tolist() for row in found.returns] == [row.tolist() for row in plain.returns]


def test_peers_of_an_excluded_turn_are_compared_without_it():
    # turn 2: returns 9 (excluded), 1 and 3; z of 1 and 3 is -1 and +1
    rewards, excluded = [[0.0, 9.0], [0.0, 1.0], [0.0, 3.0]], [[False, True], [False] * 2, [False] * 2]
    found = advantages(rewards, ["s"] * 3, "turn", endings="cut", excluded=excluded)
    assert [row[1] for row in found.turn] == pytest.approx([0.0, -1.0, 1.0])


def test_turns_can_be_excluded_only_one_by_one():
    for excluded in ([[True]], [[True], [1]], [[True], [False, True]], "yes"):
        with pytest.raises(RewardError, match="excluded"):
            advantages([[1.0], [2.0]], ["s", "s"], excluded=excluded)
