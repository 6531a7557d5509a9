"""A judge's noise: known variances are recovered, and the formulas for training agree with simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mapo.advantage import advantages
from mapo.judges.audit.noise import (
    advantage_reliability,
    batch_multiplier,
    correlation_at,
    group_size_for,
    repeats_for,
    sibling_reliability,
    variance_components,
)

RNG = np.random.default_rng


def with_repeats(r: float, m: int) -> float:
    """Spearman and Brown: the reliability of the mean of m answers."""
    return m * r / (1 + (m - 1) * r)


def test_variance_components_by_hand():
    # turns (1, 3), (5, 7): means 2, 6; within 2 + 2 = 4 over 2 degrees; between 2*(4+4) = 16 over 1
    found = variance_components([[1, 3], [5, 7]], ["a", "b"])
    assert found.noise == pytest.approx(2) and found.between == pytest.approx((16 - 2) / 2)
    assert found.share == pytest.approx(2 / 9) and found.interval is None
    assert (found.turns, found.answers) == (2, 4)


def test_turns_asked_unequally_often():
    # n = 3, 1: means 2, 6; within 2 over 2; mean of all 3; between 3*1 + 1*9 over 1; n0 = 4 - 10/4 = 1.5
    found = variance_components([[1, 2, 3], [6], []], ["a", "b", "c"])
    assert found.noise == pytest.approx(1) and found.between == pytest.approx((12 - 1) / 1.5)


def test_a_turn_that_stands_for_many_counts_as_many():
    """Weights of whole numbers: as if each turn were there so many times, for many turns."""
    rng = RNG(4)
    values = (rng.normal(0, 2, 300)[:, None] + rng.normal(0, 1, (300, 3))).tolist()
    times = rng.integers(1, 5, 300).tolist()
    names = [str(i) for i in range(300)]
    found = variance_components(values, names, [float(t) for t in times])
    many = [(own, name) for own, name, t in zip(values, names, times, strict=True) for _ in range(t)]
    plain = variance_components([own for own, _ in many], [name for _, name in many])
    assert found.noise == pytest.approx(plain.noise)
    assert found.between == pytest.approx(plain.between, rel=0.01)
    assert found.turns == 300 and found.answers == 900
    same = variance_components(values, names, [7.0] * 300)
    assert same.between == pytest.approx(variance_components(values, names).between)


def test_a_sample_that_favours_the_rare_is_set_right_by_its_weights():
    """900 turns that hardly move anybody and 100 that do, 50 drawn of each."""
    rng, shares = RNG(6), []
    truth = np.concatenate([rng.normal(0, 0.5, 900), rng.normal(-4, 2, 100)])
    right = 1 / (1 + np.var(truth))
    for _ in range(40):
        drawn = np.concatenate([rng.choice(900, 50, False), 900 + rng.choice(100, 50, False)])
        values = (truth[drawn, None] + rng.normal(0, 1, (100, 3))).tolist()
        names = [str(i) for i in range(100)]
        weighted = variance_components(values, names, [18.0] * 50 + [2.0] * 50)
        shares.append((weighted.share, variance_components(values, names).share))
    found, blind = np.mean(shares, axis=0)
    assert found == pytest.approx(right, abs=0.03) and abs(blind - right) > 0.05


def test_what_cannot_be_known_is_none():
    assert variance_components([[1], [2]], ["a", "b"]) is None
    assert variance_components([[1, 2]], ["a"]) is None
    assert variance_components([], []) is None
    same = variance_components([[1, 1], [1, 1]], ["a", "b"])
    assert same.share is None and same.noise == 0


def test_known_noise_is_recovered_and_its_interval_covers():
    rng, hits, shares = RNG(3), 0, []
    for _ in range(80):
        truth = rng.normal(0, 2, 40)
        found = variance_components(
            (truth[:, None] + rng.normal(0, 1, (40, 4))).tolist(), [str(i) for i in range(40)]
        )
        shares.append(found.share)
        hits += found.interval[0] < 0.2 < found.interval[1]
    assert np.mean(shares) == pytest.approx(0.2, abs=0.015)  # 1 / (1 + 4)
    assert hits >= 70  # of 80; 76 expected


def groups_of(n_groups, siblings, turns, between, noise, rng, draws=2):
    """Rewards of siblings: what they are worth, and `draws` noisy judgements of the same."""
    truth = rng.normal(0, between, (n_groups * siblings, turns))
    noisy = [truth + rng.normal(0, noise, truth.shape) for _ in range(draws)]
    return truth, noisy, [str(i // siblings) for i in range(n_groups * siblings)]


@pytest.mark.parametrize("method", ["mapo", "turn", "batch", "grpo"])
@pytest.mark.parametrize("siblings", [4, 8])
def test_two_judgements_tell_the_correlation_with_the_truth(method, siblings):
    """sqrt(r) of two judgements is the correlation with noise-free ones, a little high in small groups."""
    truth, (a, b), groups = groups_of(2400 // siblings, siblings, 6, 1.0, 0.7, RNG(5))
    found = advantage_reliability(a.tolist(), b.tolist(), groups, method, gamma=0.85)
    clean = np.concatenate(advantages(truth.tolist(), groups, method, gamma=0.85).mixed)
    noisy = np.concatenate(advantages(a.tolist(), groups, method, gamma=0.85).mixed)
    seen = float(np.corrcoef(clean, noisy)[0, 1])
    assert -0.02 < found.with_truth - seen < 0.05
    assert found.interval[0] < found.r < found.interval[1] and found.groups == 2400 // siblings
    # no group gets past sqrt(s^2 / (s^2 + e^2))
    assert seen < 1 / math.sqrt(1 + 0.7**2) + 0.01
    among = sibling_reliability(a.tolist(), b.tolist(), groups)
    assert math.sqrt(among) == pytest.approx(1 / math.sqrt(1 + 0.7**2), abs=0.02)
    if method == "grpo":
        assert seen == pytest.approx(correlation_at(round(among, 3), siblings), abs=0.025)


def test_a_larger_group_helps_up_to_a_limit():
    """With r = s^2 / (s^2 + e^2) the correlation rises with the group towards sqrt(r), and never past it."""
    found = [correlation_at(0.83, n) for n in (2, 4, 8, 64)]
    assert found == sorted(found) and found[0] < 0.8 and found[-1] == pytest.approx(math.sqrt(0.83), abs=0.01)
    assert group_size_for(0.97) < group_size_for(0.9) < group_size_for(0.84)
    assert group_size_for(0.75) is None and group_size_for(0.0) is None and group_size_for(None) is None
    assert group_size_for(1.0) == 2


def test_without_siblings_there_is_nothing_among_them():
    assert sibling_reliability([[1.0]], [[1.0]], ["a"]) is None
    assert sibling_reliability([[1.0], [1.0]], [[1.0], [2.0]], ["a", "a"]) is None
    assert sibling_reliability([[1.0, None], [3.0, 1.0]], [[1.0, 5.0], [3.0, None]], ["a", "a"]) == 1


@pytest.mark.parametrize("m", [2, 4])
def test_repeats_raise_it_as_spearman_and_brown_say(m):
    _, draws, groups = groups_of(200, 4, 6, 1.0, 1.2, RNG(7), draws=2 * m)
    one = advantage_reliability(draws[0].tolist(), draws[1].tolist(), groups)
    many = [np.mean(draws[:m], axis=0), np.mean(draws[m:], axis=0)]
    found = advantage_reliability(many[0].tolist(), many[1].tolist(), groups)
    assert found.r == pytest.approx(with_repeats(one.r, m), abs=0.04)


def test_repeats_for_a_target():
    assert repeats_for(1.0) == 1 and repeats_for(0.81) == 1
    assert repeats_for(0.5) == 5  # 0.81 * 0.5 / (0.5 * 0.19) = 4.26
    assert with_repeats(0.5, 5) >= 0.81 > with_repeats(0.5, 4)
    assert repeats_for(0.0) is None and repeats_for(None) is None and repeats_for(-0.1) is None
    assert batch_multiplier(0.5) == 2 and batch_multiplier(None) is None and batch_multiplier(0) is None


def test_a_batch_grown_by_one_over_r_carries_as_much():
    """A gradient is a mean of advantage times direction: its signal to noise with N noise-free dialogues is
    that of N / r noisy ones."""
    rng, siblings, noise = RNG(11), 8, 1.0

    def snr(groups, noise):
        found = []
        for _ in range(300):
            direction = rng.normal(0, 1, groups * siblings)  # what each dialogue did more of
            truth = 0.3 * direction + rng.normal(0, 1, groups * siblings)
            seen = truth + rng.normal(0, noise, len(truth))
            names = [str(i // siblings) for i in range(len(truth))]
            credit = np.concatenate(advantages(seen[:, None].tolist(), names, "grpo").mixed)
            found.append(float(np.mean(credit * direction)))
        return np.mean(found) / np.std(found)

    r = (0.3**2 + 1) / (0.3**2 + 1 + noise**2)
    clean, noisy, grown = snr(16, 0.0), snr(16, noise), snr(round(16 * batch_multiplier(r)), noise)
    assert noisy < 0.85 * clean
    assert grown == pytest.approx(clean, rel=0.15)


@pytest.mark.parametrize(("groups", "siblings"), [(3, 4), (8, 2)])
def test_the_interval_of_a_reliability_covers_it(groups, siblings):
    """Over groups, or over dialogues where groups are few; a little narrow, so 4 in 5 are asked for."""
    _, (a, b), names = groups_of(1500, siblings, 8, 1.0, 0.5, RNG(1))
    truth = advantage_reliability(a.tolist(), b.tolist(), names, gamma=0.85).r
    hits = 0
    for seed in range(40):
        _, (a, b), names = groups_of(groups, siblings, 8, 1.0, 0.5, RNG(100 + seed))
        found = advantage_reliability(a.tolist(), b.tolist(), names, gamma=0.85)
        hits += found.interval[0] <= truth <= found.interval[1]
        assert (found.groups, found.dialogues) == (groups, groups * siblings)
    assert hits >= 32


def test_unscored_turns_and_lonely_dialogues_are_left_out():
    a = [[1.0, None, 3.0], [2.0, 1.0, None], [0.0, 0.0, 1.0]]
    b = [[1.1, 2.0, 2.9], [2.2, 1.1, None], [0.1, 0.2, 0.9]]
    found = advantage_reliability(a, b, ["g", "g", "g"], "batch")
    assert found.turns == 7 and found.interval is None and 0.9 < found.r < 1
    assert advantage_reliability([[None]], [[1.0]], ["g"]).r is None
    assert advantage_reliability([[1.0]], [[1.0]], ["g"]).with_truth is None
    worse = advantage_reliability([[1.0], [2.0]], [[2.0], [1.0]], ["g", "g"])
    assert worse.r == pytest.approx(-1) and worse.with_truth == 0 and worse.as_json()["repeats"] is None
