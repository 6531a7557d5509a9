"""Turn rewards: their formulas, and that idr telescopes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import marks, walk
from mapo import InputError, Path, Rubric
from mapo.sandbox.potential import origin_distance
from mapo.sandbox.reward import REWARDS, reward_named, rewards_of

RUBRICS = [Rubric.load("empathy"), Rubric.load("tutoring")]
steps = st.lists(st.one_of(st.none(), st.tuples(*[st.integers(-5, 3)] * 4)), max_size=20)


def a_path(rubric, moves, start=-8.0):
    path = Path(rubric, (start,) * len(rubric.axes))
    for move in moves:
        path.advance(None if move is None else move[: len(rubric.axes)])
    return path


@pytest.mark.parametrize("rubric", RUBRICS, ids=lambda r: r.name)
@given(moves=steps)
def test_idr_telescopes(rubric, moves):
    # sum of (D_{t-1} - D_t) = D_0 - D_T, unjudged turns included since they do not move
    path = a_path(rubric, moves)
    for distance, far in (
        ("zone", lambda s: s.distance),
        ("origin", lambda s: origin_distance(s.position, rubric)),
    ):
        rewards = rewards_of(path, reward_named("idr", rubric, distance=distance))
        total = sum(r for r in rewards if r is not None)
        assert total == pytest.approx(far(path.states[0]) - far(path.now), abs=1e-9)


def test_each_formula_by_hand():
    rubric = RUBRICS[0]
    path = a_path(rubric, [(3, 3, 3, 0)], start=-4.0)
    # (-4,-4,-4) -> (-1,-1,-1): zone 3*sqrt(3) -> 0, origin 4*sqrt(3) -> sqrt(3)
    root3 = math.sqrt(3)
    want = {
        ("idr", "zone"): 3 * root3,
        ("idr", "origin"): 3 * root3,
        ("adr", "zone"): 0.0,
        ("adr", "origin"): -root3,
        ("increment", "zone"): 9.0,
        ("outcome", "zone"): 0.0,
    }
    for (name, distance), value in want.items():
        [got] = rewards_of(path, reward_named(name, rubric, distance=distance))
        assert got == pytest.approx(value), name
    # 0.9 * 10/(10 + sqrt 3) - 10/(10 + 4 sqrt 3)
    [got] = rewards_of(path, reward_named("potential", rubric, gamma=0.9))
    assert got == pytest.approx(0.9 * 10 / (10 + root3) - 10 / (10 + 4 * root3))


def test_outcome_pays_once_at_the_end():
    rubric = RUBRICS[0]
    path = Path(rubric, rubric.start({i.key: 2 for i in rubric.indicators}))
    walk(path, [marks(rubric, 2)] * 45)
    rewards = rewards_of(path, reward_named("outcome", rubric))
    assert rewards[-1] == 1.0 and set(rewards[:-1]) == {0.0}


@pytest.mark.parametrize("name", REWARDS)
def test_an_unjudged_turn_has_no_reward(name):
    path = a_path(RUBRICS[0], [(1, 1, 1, 0), None, (1, 0, 0, 0)])
    rewards = rewards_of(path, reward_named(name, RUBRICS[0]))
    assert rewards[1] is None and rewards[0] is not None and rewards[2] is not None


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="idr, adr"):
        reward_named("sparse", RUBRICS[0])
    with pytest.raises(InputError, match="'zone' or 'origin'"):
        reward_named("idr", RUBRICS[0], distance="l1")
