"""What a step's record says, from dialogues made by hand."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from mapo import Rubric, Trajectory, advantages
from mapo.config import Advantage, load_config
from mapo.credit import compute_credit
from mapo.errors import InputError, StoreError
from mapo.train.metrics import (
    Stopwatch,
    TensorBoard,
    credit_metrics,
    dialogue_metrics,
    flat,
    memory_gb,
    open_trackers,
    role_ids,
    role_time,
    state_metrics,
)
from mapo.train.run import rules_of
from mapo.types import Dialogue, Ending, Reply, StopReason, Turn


def dialogue(rewards, reason=StopReason.TIMEOUT, error=None):
    turns = [
        Turn("hi", Reply("ho", "length" if i else "stop", (1,), (2,) * (i + 1), (-1.0,) * (i + 1)), reward=r)
        for i, r in enumerate(rewards)
    ]
    return Dialogue("d", "s", "m", "empathy", "published", {}, (), tuple(turns), Ending(reason), error=error)


def test_dialogue_metrics_by_hand():
    got = dialogue_metrics([dialogue([1.0, None, 3.0]), dialogue([], StopReason.BROKEN, "gone")])
    # rewards 1 and 3; replies of 1, 2 and 3 tokens, two of them cut; no turn has levels
    assert (got["reward"], got["reply_tokens"], got["cut"], got["unscored"]) == (2.0, 2.0, 2 / 3, 1.0)
    assert (got["dialogues"], got["broken"], got["turns"]) == (2, 1, 1.5)
    assert got["endings"] == {"timeout": 1, "broken": 1}
    assert (got["health"]["dialogues"], got["health"]["lines"], got["health"]["endings"]) == (
        1,
        3,
        {"timeout": 1},
    )


def test_credit_metrics_by_hand():
    rewards = [[1.0, 2.0], [3.0, None, 4.0]]
    got = credit_metrics(rewards, advantages(rewards, ["s", "s"], gamma=1.0))
    # totals 3 and 7; turn 1: (1 + 3) / 2; turn 2: 2 alone; turn 3: 4 alone
    assert got["return"] == 5.0 and got["reward_by_turn"] == [2.0, 2.0, 4.0]
    # returns at turn 1: 3, continued for one turn at the mean of 1 and 2, and 7
    assert got["return_by_turn"][0] == (3 + 1.5 + 7) / 2
    assert got["turns_trained"] == 3  # the second turn of one is unscored; the third has no sibling
    assert got["turn_part_std"] > 0 and -1 <= got["parts_correlation"] <= 1


def test_a_method_without_parts_has_no_correlation():
    rewards = [[1.0, 2.0], [3.0, 5.0]]
    got = credit_metrics(rewards, advantages(rewards, ["s", "s"], "grpo"))
    assert got["parts_correlation"] is None and got["turn_part_std"] == 0
    assert got["advantage_std"] == pytest.approx(1)


def test_flat_names_for_trackers():
    record = {"reward": 1, "endings": {"success": 2}, "reward_by_turn": [0.5, None], "name": "x"}
    assert flat(record) == {"reward": 1.0, "endings/success": 2.0, "reward_by_turn/1": 0.5}


def test_trackers_write_or_say_what_is_missing(tmp_path):
    (board,) = open_trackers(["tensorboard"], tmp_path, "run", {})
    board.log({"reward": 1.0}, 1)
    board.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = EventAccumulator(str(tmp_path))
    seen.Reload()
    assert [(e.step, e.value) for e in seen.Scalars("reward")] == [(1, 1.0)]
    with pytest.raises(InputError, match="pip install trackio"):
        open_trackers(["trackio"], tmp_path, "run", {})


def test_a_tracker_whose_disk_is_full_names_its_file(tmp_path):
    board = TensorBoard(tmp_path)
    board.close()
    board._file = open("/dev/full", "wb")  # noqa: SIM115
    with pytest.raises(StoreError, match=r"events\.out\.tfevents.*No space left on device"):
        board.log({"reward": 1.0}, 1)
    board.close()
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        TensorBoard(tmp_path / "file")


def test_of_several_processes_the_busiest_tells_where_the_time_went():
    first, second = {"policy": {"decode": 2.0}}, {"policy": {"decode": 1.0}, "judge": {"read": 3.0}}
    assert role_time([first, second], 5.0) == {**second, "rest": 1.0}
    assert role_time([{}], 2.0) == {"rest": 2.0}  # scripted roles, dialogues from disk
    ids = [{"policy": {"decode": 2}}, {"policy": {"decode": 1, "prefill": 7}}]
    assert role_ids(ids) == {"policy": {"decode": 3, "prefill": 7}}


def test_memory_is_measured():
    assert 0.01 < memory_gb() < 1000 and np.isfinite(memory_gb())


def test_the_reward_potential_is_discounted_as_the_advantage():
    config = load_config(None, ["reward.name=potential", "advantage.gamma=0.5"])
    assert (rules_of(config).reward, rules_of(config).gamma) == ("potential", 0.5)


def test_movement_per_axis_is_a_metric_of_its_own():
    rubric = Rubric.load("empathy")
    path = Trajectory(rubric, (-4.0, -2.0, 0.0))
    forms = [rubric.levels(C=(2, 0), A=(0, -1)), rubric.levels(C=(1, 0))]
    turns = [Turn("hi", Reply("ho"), form, path.judge(form), 1.0) for form in forms]
    made = Dialogue("d", "s", "m", "empathy", "published", {}, path.start, tuple(turns))
    got = dialogue_metrics([made, dialogue([], StopReason.BROKEN, "gone")], (), rubric)
    # beyond the zone of 1: C 3 -> 0 -> 0, A 1 -> 3 -> 3; regression of A -2 in one of two turns
    assert got["axis_rewards"] == {"C": 1.5, "A": -1.0, "P": 0.0}
    assert (got["regression"], got["regressed"]) == (-1.0, 0.5)
    assert flat(got)["axis_rewards/C"] == 1.5


def test_matched_turns_are_counted_where_states_are_compared():
    talks = [dialogue([1.0, 2.0]), dialogue([3.0, None])]
    for states in ("binned", "exact"):
        settings = Advantage(method="gigpo", states=states, endings="cut")
        credit = compute_credit(talks, settings, Rubric.load("empathy"))
        # without positions all states of a bin are equal, and so are all user messages
        assert state_metrics(talks, credit, settings) == {"matched": 1.0}
    other = replace(talks[1], turns=(replace(talks[1].turns[0], user="hm"), talks[1].turns[1]))
    credit = compute_credit([talks[0], other], settings, Rubric.load("empathy"))
    assert state_metrics([talks[0], other], credit, settings) == {"matched": pytest.approx(2 / 3)}
    assert state_metrics(talks, credit, Advantage()) == {}


def test_parts_of_the_same_name_add_up_to_the_elapsed_time(monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 7.0, 15.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    watch = Stopwatch()
    for name in ("forward", "backward", "forward"):  # at 1, 3 and 7; the last one ends at 15
        watch.start(name)
    assert watch.seconds() == {"forward": 2.0 + 8.0, "backward": 4.0}


def test_a_stopwatch_that_was_never_started_has_no_parts():
    watch = Stopwatch()
    assert watch.seconds() == {} and watch.elapsed() >= 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_parts_are_measured_on_its_clock():
    device = torch.device("cuda")
    a = torch.randn(4096, 4096, device=device)
    watch = Stopwatch(device)
    watch.start("many")
    for _ in range(50):
        a @ a
    watch.start("one")
    a @ a
    parts = watch.seconds()
    assert parts["many"] > 5 * parts["one"] > 0
