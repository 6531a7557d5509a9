"""What the TRL engine refuses: settings, and rollouts that break the contract."""

from __future__ import annotations

import json
from typing import get_args

import numpy as np
import pytest
from trl import GRPOConfig

from mapo.config import Advantage
from mapo.credit import STATES
from mapo.engines.trl import MAPOTrainer, rollout_of
from mapo.engines.trl.contract import all_entries, check_rollout, dialogue_return
from mapo.errors import InputError
from mapo.types import Dialogue, Reply, Turn
from support.trl_rollouts import canned, fields, in_sandbox, model_of, rows, sandbox, settings, told


def test_siblings_are_needed(tmp_path):
    with pytest.raises(InputError, match="num_generations is 1"):
        settings(tmp_path, num_generations=1)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "ppo"},
        {"scope": "world"},
        {"horizon": "far"},
        {"gamma": 2.0},
        {"turn_weight": -1.0},
        {"endings": "happy"},
        {"scale": "mad"},
        {"lam": 1.5},
        {"step_weight": -1.0},
        {"states": "blurred"},
    ],
)
def test_options_no_estimator_knows_are_refused_before_anything_is_loaded(options, tmp_path):
    with pytest.raises(InputError, match=next(iter(options))):
        settings(tmp_path, **options)


def test_states_are_those_of_the_config():
    assert get_args(Advantage.model_fields["states"].annotation) == STATES


def test_a_dialogue_of_several_rows_is_refused():
    whole = told(0, 0, [1.0, 2.0])
    turns = [
        Turn("", Reply("", "stop", (1, 2), (3,), (0.0,), whole_prompt=True), reward=1.0) for _ in whole.turns
    ]
    with pytest.raises(InputError, match="several rows"):
        rollout_of([Dialogue(**{**fields(whole), "turns": tuple(turns)})], filler=0)


def test_a_dialogue_without_words_is_one_token_of_which_nothing_is_learnt():
    silent = told(0, 0, [1.0])
    turn = Turn("", Reply("", "stop", (1, 2), (), ()), reward=1.0)
    found = rollout_of([Dialogue(**{**fields(silent), "turns": (turn,)})], filler=7)
    assert (
        found["completion_ids"] == [[7]] and found["turn_ids"] == [[-1]] and found["turn_rewards"] == [[1.0]]
    )


def test_rewards_and_settings_of_another_kind_are_refused(tmp_path):
    plain = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    with pytest.raises(InputError, match="GRPOConfig"):
        MAPOTrainer(model_of(), args=plain, train_dataset=rows(), rollout_func=canned([]))
    with pytest.raises(InputError, match="does not support reward_funcs"):
        in_sandbox(tmp_path, sandbox(), more={"reward_funcs": len})


GOOD = {
    "prompt_ids": [[1], [1, 2]],
    "completion_ids": [[3, 4, 5], [6]],
    "logprobs": [[0.0, 0.0, -1.0], [-2.0]],
    "turn_ids": [[0, -1, 1], [0]],
    "turn_rewards": [[1, None], np.array([0.5])],
}


def test_what_a_rollout_of_ones_own_returns():
    found = check_rollout({**GOOD, "mood": ["good", "bad"]}, 2)
    assert found["env_mask"] == [[1, 0, 1], [1]]
    assert found["turn_rewards"] == [[1.0, None], [0.5]] and found["mood"] == ["good", "bad"]
    assert check_rollout({**GOOD, "logprobs": None}, 2)["logprobs"] is None
    assert check_rollout({**GOOD, "turn_rewards": [None, [1.0]]}, 2)["turn_rewards"] == [None, [1.0]]
    assert dialogue_return([[1.0, None, 2.0], [None], None, []]) == [3.0, None, None, None]


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"turn_ids": None}, "turn_ids is a NoneType"),
        ({"turn_rewards": [[1.0]]}, "a list of 1, but there are 2 prompts"),
        ({"prompt_ids": [[], [1]]}, "dialogue 0: prompt_ids or"),
        ({"completion_ids": [[3, 4, 5], []]}, "dialogue 1"),
        ({"turn_ids": [[0, 1], [0]]}, "3 completion_ids but 2 turn_ids"),
        ({"logprobs": [[0.0], [0.0]]}, "3 completion_ids but 1 logprobs"),
        ({"turn_ids": [[0, -1, 2], [0]]}, "turn_ids range from -1 to 2, but there are 2"),
        ({"turn_ids": [[0, -2, 1], [0]]}, "turn_ids range from -2"),
        ({"turn_ids": [[1, -1, 0], [0]]}, "turn_ids are in the order 1, 0"),
        ({"turn_rewards": [[1.0, "2"], [1.0]]}, "'2' is not a number"),
        ({"turn_rewards": [[1.0, True], [1.0]]}, "True is not a number"),
        ({"turn_rewards": [3.0, [1.0]]}, r"turn_rewards\[0\]: the entry is a float"),
    ],
)
def test_a_rollout_that_breaks_the_contract_is_refused(changed, match):
    with pytest.raises(InputError, match=match):
        check_rollout({**GOOD, **changed}, 2)


def test_what_a_method_needs_is_checked_and_made_plain():
    rollout = {**GOOD, "turn_rewards": [[1, None], None]}
    found = check_rollout({**rollout, "outcome": [np.True_, "gone"]}, 2, "mt_grpo")
    assert found["outcome"] == [1.0, None]
    found = check_rollout({**rollout, "states": [[[1, "a"], None], None]}, 2, "gigpo")
    assert found["states"] == [[(1, "a"), None], None]
    found = check_rollout({**rollout, "states": [np.array([3, 4]), None]}, 2, "gigpo")
    assert json.dumps(found["states"]) == "[[3, 4], null]"
    found = check_rollout({**rollout, "states": [[np.array([3, 4]), np.int64(5)], None]}, 2, "gigpo")
    assert found["states"] == [[(3, 4), 5], None]
    axes = [{"C": [np.float32(0.5), np.nan], "A": (1, None)}, None]
    found = check_rollout({**rollout, "axes": axes, "axis_weights": {"C": 2}}, 2, "gdpo")
    assert found["axes"] == [{"C": [0.5, None], "A": [1.0, None]}, None]
    assert found["axis_weights"] == {"C": 2.0}
    assert check_rollout({**rollout, "states": "mood"}, 2)["states"] == "mood"  # of no concern to mapo


def test_excluded_turns_are_optional_and_checked():
    rollout = {**GOOD, "turn_rewards": [[1, None], None]}
    found = check_rollout({**rollout, "excluded": [[np.True_, False], None]}, 2)
    assert found["excluded"] == [[True, False], None]
    assert all_entries("excluded", [[True], None]) == [[True], []]
    with pytest.raises(InputError, match=r"excluded\[0\]: 1 is not a bool"):
        check_rollout({**rollout, "excluded": [[1, 0], None]}, 2)
    with pytest.raises(InputError, match=r"excluded\[0\]: the entry is a list of 1, but there are 2"):
        check_rollout({**rollout, "excluded": [[True], None]}, 2)


def test_dialogues_that_broke_have_no_turns_in_what_a_method_needs():
    assert all_entries("outcome", [1.0, None]) == [1.0, 0.0]
    assert all_entries("states", [[[1, [2, "a"]], None], None]) == [[(1, (2, "a")), None], []]
    assert all_entries("axes", [None, {"C": [1.0]}]) == [{"C": []}, {"C": [1.0]}]
    assert all_entries("axes", [None]) == [{}]


@pytest.mark.parametrize(
    ("method", "changed", "match"),
    [
        ("mt_grpo", {}, "has no outcome, which the method 'mt_grpo' needs"),
        ("gigpo", {}, "has no states, which the method 'gigpo' needs"),
        ("gdpo", {}, "has no axes, which the method 'gdpo' needs"),
        ("mt_grpo", {"outcome": [1.0]}, "outcome is a list of 1, but there are 2 prompts"),
        ("mt_grpo", {"outcome": [1.0, None]}, r"outcome\[1\]: None is not a finite number"),
        ("mt_grpo", {"outcome": [np.inf, 1.0]}, r"outcome\[0\]: inf is not a finite number"),
        ("gigpo", {"states": [[1], [1]]}, r"states\[0\]: the entry is a list of 1, but there are 2"),
        (
            "gigpo",
            {"states": [np.array([1]), [1]]},
            r"states\[0\]: the entry is a list of 1, but there are 2",
        ),
        ("gigpo", {"states": [[1, 2], None]}, r"states\[1\]: the entry is a NoneType"),
        ("gigpo", {"states": [[1, {2}], [1]]}, r"states\[0\]: a state is a set"),
        ("gdpo", {"axes": [[1, 2], [1]]}, r"axes\[0\]: the entry is a list\. Use a dict of axes"),
        ("gdpo", {"axes": [{"C": [1]}, {"C": [1]}]}, r"axes\[0\], C: the entry is a list of 1"),
        ("gdpo", {"axes": [{"C": [1, "2"]}, {"C": [1]}]}, r"axes\[0\], C: '2' is not a number"),
        (
            "gdpo",
            {"axes": [{"C": [1, None]}, {"C": [1]}], "axis_weights": [1.0]},
            "axis_weights: .* not a dict of numbers",
        ),
    ],
)
def test_a_rollout_without_what_its_method_needs_is_refused(method, changed, match):
    with pytest.raises(InputError, match=match):
        check_rollout({**GOOD, **changed}, 2, method)


def test_a_rollout_that_forgets_the_turns_is_refused():
    with pytest.raises(InputError, match="the returned dict has no turn_ids, turn_rewards"):
        check_rollout({key: GOOD[key] for key in ("prompt_ids", "completion_ids", "logprobs")}, 2)
