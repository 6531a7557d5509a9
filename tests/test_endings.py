"""Credit where dialogues end, in the simulator of benchmarks/endings.py, whose true values are known."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

SIMULATOR = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "endings.py"))
FAMILIES = {family.name: family for family in SIMULATOR["FAMILIES"]}
GROUPS, SIBLINGS, GAMMA = 400, 4, SIMULATOR["GAMMA"]


def play(family, count=GROUPS * SIBLINGS, seed=0):
    policy = SIMULATOR["policy_of"](family.good)
    return SIMULATOR["play"](family, policy, count, np.random.default_rng(seed))


def quality(name, reward, method, endings):
    family = FAMILIES[name]
    played, groups = play(family), np.repeat(np.arange(GROUPS), SIBLINGS)
    gap = SIMULATOR["true_gap"](family, reward, family.good)
    value, used = SIMULATOR["credit"](played, reward, groups, method, endings=endings)
    return SIMULATOR["quality"](family, played, groups, value, used, gap)


@pytest.mark.parametrize("reward", ["idr", "adr"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_true_values_are_those_of_the_simulated_person(name, reward):
    """The first turn, in dialogues that go on after a failure and stay where they are after a success."""
    family = FAMILIES[name]
    p = play(family, 60_000)
    t = np.arange(family.limit)
    success = np.where(p.end == SIMULATOR["SUCCESS"], p.length, family.limit)
    after = np.where(
        t[None] < success[:, None], p.after, p.after[np.arange(len(success)), success - 1][:, None]
    )
    before = np.concatenate([np.full((len(after), 1), family.start), after[:, :-1]], axis=1)
    rewards = before - after if reward == "idr" else -after
    returns = (rewards * GAMMA**t).sum(axis=1)
    good = p.action[:, 0] == 1
    error = np.sqrt(returns[good].var() / good.sum() + returns[~good].var() / (~good).sum())
    gap = SIMULATOR["true_gap"](family, reward, family.good)[0, family.start]
    assert returns[good].mean() - returns[~good].mean() == pytest.approx(gap, abs=4 * error)


def test_all_endings_occur():
    ends = {name: set(play(family).end.tolist()) for name, family in FAMILIES.items()}
    assert set.union(*ends.values()) == set(SIMULATOR["ENDS"].values())
    assert SIMULATOR["SUCCESS"] in ends["strong"] and SIMULATOR["FAILURE"] in ends["weak"]


@pytest.mark.parametrize("method", ["mapo", "turn", "kevin", "rloo_turn", "turn_gae"])
def test_failing_is_rewarded_if_endings_are_cut_and_not_if_they_are_continued(method):
    cut, continued = (quality("weak", "idr", method, e) for e in ("cut", "continued"))
    assert cut["fail"] > 0.1
    assert continued["fail"] < 0.05
    assert continued["cosine"] > cut["cosine"]


@pytest.mark.parametrize("method", ["turn", "rloo_turn", "turn_gae"])
def test_winning_is_punished_if_endings_are_cut_and_not_if_they_are_continued(method):
    cut, continued = (quality("strong", "idr", method, e) for e in ("cut", "continued"))
    assert cut["win"] < -0.3 and continued["win"] > 0.3
    assert continued["cosine"] > 0.95


@pytest.mark.parametrize("method", ["turn", "grpo", "kevin", "rloo_turn", "turn_gae"])
def test_an_absolute_reward_points_away_from_the_true_gradient_unless_it_is_held(method):
    cut, held = (quality("weak", "adr", method, e)["cosine"] for e in ("cut", "held"))
    assert cut < 0.5 and held > 0.8


def test_methods_that_compare_single_rewards_do_not_depend_on_endings():
    for method in ("batch", "reinforce++_turn", "mt_grpo"):
        cut, continued = (quality("weak", "idr", method, e) for e in ("cut", "continued"))
        assert min(cut["cosine"], continued["cosine"]) > 0.97
