"""Paths and endings: the published dialogues to the last bit, edge cases under every profile, n axes."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapo import InputError, Rubric, StopReason, Trajectory
from mapo.measure.potential import PROFILES, goal_of, origin_distance, zone_distance
from mapo.measure.rubric import SHIPPED
from mapo.types import Goal
from support.builders import form, marks, walk
from support.published import published

BOTH = pytest.mark.parametrize("rubric", [Rubric.load(name) for name in SHIPPED], ids=SHIPPED)


def start_of(rubric, level=2):
    return rubric.start({i.key: level for i in rubric.indicators})


def test_all_published_dialogues_are_reproduced(replay, empathy):
    assert len(replay) == 300
    for record in replay:
        want = record["expected"]
        path = Trajectory(empathy, empathy.start(record["iedr_levels"]))
        ending = walk(path, [form(t["levels"]) for t in record["turns"]])
        states, moved = path.states, path.states[1:]
        assert ending is not None
        success = ending.reason is StopReason.SUCCESS
        failed = ending.reason is StopReason.FAILURE
        flags = {f: f in ending.detail for f in ("collapsed", "stagnant", "regressing")}
        have = {
            "total_turns": path.now.turn,
            "outcome": ending.reason.value,
            "victory_type": ending.detail[0] if success else None,
            "failure_flags": flags if failed else None,
            "oscillation": list(ending.numbers) if ending.reason is StopReason.STAGNATION else None,
            "P0_norm": states[0].norm,
            "v_star_0": list(path.goal.direction),
            "epsilon_distance": path.goal.distance,
            "epsilon_direction": path.goal.crossing,
            "epsilon_energy": path.goal.energy,
            "P": [list(s.position) for s in states],
            "distance": [s.distance for s in states],
            "in_zone": [int(s.in_zone) for s in states],
            "v_t_norm": [s.step_norm for s in moved],
            "alignment": [s.alignment for s in moved],
            "delta_E": [s.delta_energy for s in moved],
            "E_total": [s.energy for s in moved],
            "P_norm": [s.norm for s in moved],
            "projection": [s.projection for s in moved],
        }
        assert have == {k: v for k, v in want.items() if k != "epmq"}, (record["model"], record["case"])
        assert [repr(float(s.distance)) for s in states] == [repr(d) for d in want["distance"]]


def edge_cases():
    path = published("edge_cases.jsonl")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("profile", ["data-2025", "empa-release-precomputed", "empa-release-noprecomputed"])
def test_edge_cases(profile, empathy):
    cases = edge_cases()
    assert len(cases) == 60
    for case in cases:
        want, start = case["expected"][profile], tuple(case["P0"])
        assert empathy.start(case["iedr_levels"]) == start
        # a precomputed file holds the goal as the published profile computes it
        goal = (
            goal_of(start, empathy, PROFILES["published"]) if profile == "empa-release-precomputed" else None
        )
        path = Trajectory(empathy, start, "published" if profile == "data-2025" else "released", goal=goal)
        ending = walk(path, [form(t["levels"]) for t in case["turns"]])
        now = path.now
        told = ending is not None and ending.reason in (StopReason.FAILURE, StopReason.STAGNATION)
        have = {
            "outcome": ending and ending.reason.value,
            "victory_type": ending.detail[0] if ending and ending.reason is StopReason.SUCCESS else None,
            "total_turns": now.turn,
            "reasons": [*ending.detail, *ending.numbers] if told else [],
            "P": list(now.position),
            "distance": now.distance,
            "in_zone": int(now.in_zone),
            "epm": {
                "v_t_norm": now.step_norm,
                "alignment": now.alignment,
                "delta_E": now.delta_energy,
                "E_total": now.energy,
                "P_norm": now.norm,
                "projection": now.projection,
            },
        }
        assert have == want, case["name"]


@BOTH
@pytest.mark.parametrize("profile", PROFILES)
def test_steady_progress_succeeds_and_steady_harm_collapses(rubric, profile):
    path = Trajectory(rubric, start_of(rubric), profile)
    ending = walk(path, [marks(rubric, 2)] * rubric.ending.max_turns)
    assert ending is not None and ending.reason is StopReason.SUCCESS
    assert path.now.turn >= rubric.ending.min_turns
    path = Trajectory(rubric, start_of(rubric), profile)
    ending = walk(path, [marks(rubric, 0, -1)] * rubric.ending.max_turns)
    assert ending is not None and ending.reason is StopReason.FAILURE
    assert "collapsed" in ending.detail and path.now.turn == rubric.ending.min_turns


@BOTH
def test_doing_nothing_stagnates_by_the_published_rules_only(rubric):
    idle = [marks(rubric, 0)] * rubric.ending.max_turns
    path = Trajectory(rubric, start_of(rubric))
    ending = walk(path, idle)
    assert ending is not None and (ending.reason, ending.detail) == (StopReason.STAGNATION, ("minimal",))
    path = Trajectory(rubric, start_of(rubric), "released")
    ending = walk(path, idle)
    assert ending is not None and ending.reason is StopReason.TIMEOUT
    assert path.now.turn == rubric.ending.max_turns


@BOTH
def test_unjudged_turns_move_nothing_and_decide_nothing(rubric):
    path = Trajectory(rubric, start_of(rubric))
    before = path.now
    ending = walk(path, [None] * rubric.ending.max_turns)
    assert ending is not None and ending.reason is StopReason.TIMEOUT  # no stagnation from missing data
    assert path.now.position == before.position and path.now.energy == 0
    assert all(s.step is None for s in path.states[1:])


def test_collapse_needs_its_window_of_judged_turns(empathy):
    path = Trajectory(empathy, start_of(empathy))
    bad = marks(empathy, 0, -1)
    assert walk(path, [marks(empathy, 1)] * 9 + [bad] * 4 + [None] * 3) is None
    path.judge(bad)
    ending = path.ending()
    assert ending is not None and "collapsed" in ending.detail


def test_in_zone_shields_from_stagnation(empathy):
    # in the zone on every axis, but too little energy: only the turn limit ends it
    path = Trajectory(empathy, (-1.0, -1.0, -1.0), goal=Goal((0.577, 0.577, 0.577), 0.1, 0.1, 99.0))
    ending = walk(path, [marks(empathy, 0)] * 60)
    assert ending is not None and ending.reason is StopReason.TIMEOUT and path.now.turn == 45


@BOTH
def test_going_round_in_circles_stagnates(rubric):
    n, window = len(rubric.axes), rubric.ending.idle_window

    def after(moves):
        path = Trajectory(rubric, (-30.0,) * n)
        for move in moves:
            path.advance((move,) * n if isinstance(move, float) else move)
        return path.ending()

    # far out and back within the window: its first and last position are the same
    ending = after([1.0] * (rubric.ending.min_turns - window + 1) + [6.0, -6.0] * ((window - 2) // 2) + [0.0])
    assert ending is not None and (ending.reason, ending.detail) == (StopReason.STAGNATION, ("oscillation",))
    assert ending.numbers[0] == pytest.approx(n * (1 + 6.0 * (window - 2))) and ending.numbers[1] == 0
    # sideways: enough movement, but the distance hardly changes
    sideways = [tuple(0.5 if (i + axis) % 2 else -0.5 for axis in range(n)) for i in range(window + 2)]
    ending = after(sideways)
    assert ending is not None and ending.detail == ("oscillation-distance",)
    # a steady way out does neither
    assert after([0.5] * (window + 2)) is None


@BOTH
def test_standing_still_while_losing_energy_fails(rubric):
    # 6 of the last 8 dE < 0 with a sum below -1, the norm within 0.5, the last five not all negative
    n = len(rubric.axes)
    path = Trajectory(rubric, (-10.0,) * n, "released", min_turns=8)
    for move in [-0.2, -0.2, 0.01, -0.2, -0.2, -0.2, 0.01, -0.2]:
        path.advance((move,) * n)
    ending = path.ending()
    assert ending is not None and ending.detail == ("stagnant", "regressing")


def test_success_by_distance_by_crossing_and_by_zone(empathy):
    # v* = (1,1,1)/sqrt(3), energy needed 17.32, tolerance 1.73 (published) or 0.87 (released)
    def after(profile, *moves):
        path = Trajectory(empathy, (-10.0,) * 3, profile, min_turns=len(moves))
        for move in moves:
            path.advance(move)
        ending = path.ending()
        return ending and ending.detail

    assert after("published", (10.0, 10.0, 10.0)) == ("geometric",)
    assert after("published", (16.0, 4.0, 11.0)) == ("positional",)
    assert after("published", (10.0, 10.0, 9.5)) is None  # a little short of energy
    # the recorded E, 17.3205, is below the 17.320508... needed; the unrounded sum is not
    assert after("released", (10.0, 10.0, 10.0)) == ("zone",)


def test_turn_limits_can_be_set(empathy):
    path = Trajectory(empathy, start_of(empathy), min_turns=3, max_turns=5)
    ending = walk(path, [marks(empathy, 1)] * 9)
    assert ending is not None and ending.reason is StopReason.TIMEOUT and path.now.turn == 5


def test_nothing_needed_from_the_start(empathy):
    path = Trajectory(empathy, (0.0, 0.0, 0.0))
    state = path.advance((1.0, 0.0, 0.0))
    assert (state.alignment, state.delta_energy, state.distance) == (0.0, 0.0, 0.0)
    ending = walk(path, [marks(empathy, 0)] * 45)
    assert ending is not None and ending.reason is StopReason.SUCCESS
    # but doing harm to someone who needs nothing is no success
    path = Trajectory(empathy, (0.0, 0.0, 0.0))
    ending = walk(path, [marks(empathy, 0, -2)] * 45)
    assert ending is not None and ending.reason is StopReason.TIMEOUT


@given(st.lists(st.floats(-30, 10), min_size=4, max_size=4))
def test_distances_in_four_dimensions(position):
    rubric = Rubric.load("tutoring")
    # zone: sqrt(sum (-1 - x)^2 over x < -1); never more than the distance to the origin
    want = math.sqrt(sum((-1 - x) ** 2 for x in position if x < -1))
    assert zone_distance(position, rubric) == pytest.approx(want)
    assert zone_distance(position, rubric) <= origin_distance(position, rubric) + 1e-9


def test_axis_weights_stretch_the_space(empathy):
    heavy = dataclasses.replace(
        empathy, axes=(dataclasses.replace(empathy.axes[0], weight=4.0), *empathy.axes[1:])
    )
    # sqrt(4 * (3 - 1)^2) = 4 against sqrt((3 - 1)^2) = 2
    assert zone_distance((-3.0, 0.0, 0.0), heavy) == 2 * zone_distance((-3.0, 0.0, 0.0), empathy) == 4.0
    path = Trajectory(heavy, (-3.0, 0.0, 0.0))
    assert path.now.norm == 6.0
    # sideways steps along the heavy axis alone: L1 movement 12 * 4 * 0.2, range of D below 2
    still = Trajectory(heavy, (-30.0, -30.0, -30.0))
    light = Trajectory(empathy, (-30.0, -30.0, -30.0))
    for i in range(12):
        for one in (still, light):
            one.advance((0.2 if i % 2 else -0.2, 0.0, 0.0))
    assert light.ending().detail == ("minimal",)  # 12 * 0.2 < 3
    assert still.ending().detail == ("oscillation-distance",)  # 12 * 4 * 0.2 > 3
    # v* = -P/||P|| with ||P|| = 6: alignment of a unit step = 4 * 1 * 0.5 / sqrt(4) = 1
    assert path.advance((1.0, 0.0, 0.0)).alignment == 1.0


@pytest.mark.parametrize("start", [(1.0, 2.0), (float("nan"), 0.0, 0.0), (None, 0.0, 0.0), (-1e308,) * 3])
def test_bad_starts_are_refused(empathy, start):
    with pytest.raises(InputError, match="3 finite numbers"):
        Trajectory(empathy, start)


def test_a_start_with_a_surplus_is_refused(empathy):
    with pytest.raises(InputError, match="above 0"):
        Trajectory(empathy, (1.0, 0.0, 0.0))
    with pytest.raises(InputError, match="goal direction"):
        Trajectory(empathy, (-1.0, 0.0, 0.0), goal=Goal((1.0,), 1.0, 1.0, 1.0))


def test_bad_steps_and_profiles_are_refused(empathy):
    path = Trajectory(empathy, start_of(empathy))
    with pytest.raises(InputError, match="turn 1: step .*does not fit"):
        path.advance((1.0, float("inf"), 0.0))
    with pytest.raises(InputError, match="published, released"):
        Trajectory(empathy, start_of(empathy), "draft")
