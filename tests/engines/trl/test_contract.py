"""What the TRL engine refuses: settings, and rollouts that break the contract."""

from __future__ import annotations

import numpy as np
import pytest
from trl import GRPOConfig

from mapo.engines.trl import MAPOTrainer, rollout_of
from mapo.engines.trl.contract import check_rollout, dialogue_return
from mapo.errors import InputError, RewardError
from mapo.types import Dialogue, Reply, Turn
from support.trl_rollouts import canned, fields, in_sandbox, model_of, rows, sandbox, settings, told


def test_siblings_are_needed(tmp_path):
    with pytest.raises(InputError, match="num_generations is 1"):
        settings(tmp_path, num_generations=1)


@pytest.mark.parametrize(
    "options",
    [{"method": "ppo"}, {"scope": "world"}, {"horizon": "far"}, {"gamma": 2.0}, {"turn_weight": -1.0}],
)
def test_options_no_estimator_knows_are_refused_before_anything_is_loaded(options, tmp_path):
    with pytest.raises(RewardError, match=next(iter(options))):
        settings(tmp_path, **options)


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


def test_a_rollout_that_forgets_the_turns_is_refused():
    with pytest.raises(InputError, match="the returned dict has no turn_ids, turn_rewards"):
        check_rollout({key: GOOD[key] for key in ("prompt_ids", "completion_ids", "logprobs")}, 2)
