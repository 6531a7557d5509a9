"""Turn rewards: their formulas, and that idr telescopes."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapo import Ending, InputError, Rubric, StopReason, Trajectory
from mapo.measure.potential import origin_distance
from mapo.measure.reward import REWARDS, RecordedReward, rewards_of
from support.builders import marks, walk

RUBRICS = [Rubric.load("empathy"), Rubric.load("tutoring")]
steps = st.lists(st.one_of(st.none(), st.tuples(*[st.integers(-5, 3)] * 4)), max_size=20)


def a_path(rubric, moves, start=-8.0):
    path = Trajectory(rubric, (start,) * len(rubric.axes))
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
        rewards = rewards_of(path, "idr", distance=distance)
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
        [got] = rewards_of(path, name, distance=distance)
        assert got == pytest.approx(value), name
    # 0.9 * 10/(10 + sqrt 3) - 10/(10 + 4 sqrt 3)
    [got] = rewards_of(path, "potential", gamma=0.9)
    assert got == pytest.approx(0.9 * 10 / (10 + root3) - 10 / (10 + 4 * root3))


def test_outcome_pays_once_at_the_end():
    rubric = RUBRICS[0]
    path = Trajectory(rubric, rubric.start({i.key: 2 for i in rubric.indicators}))
    walk(path, [marks(rubric, 2)] * 45)
    rewards = rewards_of(path, "outcome")
    assert rewards[-1] == 1.0 and set(rewards[:-1]) == {0.0}


@pytest.mark.parametrize("name", REWARDS)
def test_an_unjudged_turn_has_no_reward(name):
    path = a_path(RUBRICS[0], [(1, 1, 1, 0), None, (1, 0, 0, 0)])
    rewards = rewards_of(path, name)
    assert rewards[1] is None and rewards[0] is not None and rewards[2] is not None


def test_unknown_names_are_refused():
    path = a_path(RUBRICS[0], [])
    with pytest.raises(InputError, match="idr, adr"):
        rewards_of(path, "sparse")
    with pytest.raises(InputError, match="'zone' or 'origin'"):
        rewards_of(path, "idr", distance="l1")


def test_outcome_is_paid_on_the_last_judged_turn():
    """An unjudged turn may be the one that completes the minimum number of turns."""
    path = Trajectory(RUBRICS[0], (-9.0,) * 3, min_turns=4)
    for move in [(3.0, 3.0, 3.0)] * 3 + [None]:
        path.advance(move)
    assert rewards_of(path, "outcome") == [0.0, 0.0, 1.0, None]


def test_an_ending_from_outside_can_be_given():
    path = a_path(RUBRICS[0], [(1, 1, 1, 0)])
    assert rewards_of(path, "outcome", ending=Ending(StopReason.SUCCESS)) == [1.0]


def test_axis_weights_count_in_increment():
    first = dataclasses.replace(RUBRICS[0].axes[0], weight=4.0)
    heavy = dataclasses.replace(RUBRICS[0], axes=(first, *RUBRICS[0].axes[1:]))
    assert rewards_of(a_path(heavy, [(1, 1, 1, 0)]), "increment") == [6.0]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("idr/zone", ("idr", "zone", 1.0)),
        ("adr/origin", ("adr", "origin", 1.0)),
        ("potential/zone", ("potential", "zone", 1.0)),  # records of earlier versions
        ("potential/origin/0.85", ("potential", "origin", 0.85)),
        ("", ("", "zone", 1.0)),
        ("potential/zone/x", ("potential", "zone", 1.0)),
        ("potential/zone/nan", ("potential", "zone", 1.0)),
    ],
)
def test_recorded_rewards(text, parts):
    recorded = RecordedReward.read(text)
    assert (recorded.name, recorded.distance, recorded.gamma) == parts
    assert RecordedReward.read(str(recorded)) == recorded
    assert str(RecordedReward("idr", "zone", 0.85)) == "idr/zone"
