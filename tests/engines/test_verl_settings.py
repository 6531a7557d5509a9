"""What verl is told: every shipped config, and what is refused before verl would refuse it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mapo.config import load_config, shipped_configs
from mapo.engines.verl.settings import METHODS, check_settings, hydra_value, overrides, verl_name
from mapo.errors import InputError

TABLES = {split: Path(f"/r/verl/{split}.parquet") for split in ("train", "validation", "test")}


def told(*given: str, config: str | None = None) -> dict[str, str]:
    lines = overrides(load_config(config, given), Path("/r"), TABLES, "/models/m")
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("name", sorted(shipped_configs()))
def test_shipped_configs_can_be_told(name):
    config = load_config(name)
    check_settings(config)
    found = told(config=name)
    assert found["actor_rollout_ref.model.path"] == "/models/m"
    assert found["algorithm.adv_estimator"] == "mapo" and found["+algorithm.mapo.gamma"] == "0.85"
    assert int(found["data.max_prompt_length"]) + int(found["data.max_response_length"]) == (
        config.rollout.context
    )
    assert int(found["actor_rollout_ref.actor.ppo_mini_batch_size"]) * config.optim.updates == (
        config.rollout.scenarios
    )
    assert float(found["actor_rollout_ref.actor.optim.lr"]) == config.optim.lr
    assert found["data.shuffle"] == "false" and found["trainer.v1.trainer_mode"] == "mapo"
    assert json.loads(found["trainer.logger"]) == ["console", *config.run.trackers]
    assert ("actor_rollout_ref.model.lora_rank" in found) == (config.model.lora is not None)


def test_what_decides_the_course_is_handed_on():
    found = told(
        "advantage.method=reinforce++_turn",
        "advantage.horizon=shortest",
        "optim.kl=0.01",
        "eval.temperature=0",
        "eval.test_repeats=0",
        "verl.tensor_parallel=2",
        "verl.offload=true",
        'verl.settings=["trainer.balance_batch=false", "trainer.nnodes=7"]',
    )
    assert found["algorithm.adv_estimator"] == "mapo_reinforce_pp_turn"
    assert found["+algorithm.mapo.horizon"] == "shortest"
    assert found["actor_rollout_ref.actor.use_kl_loss"] == "true"
    assert found["actor_rollout_ref.actor.kl_loss_coef"] == "0.01"
    assert found["actor_rollout_ref.rollout.val_kwargs.do_sample"] == "false"
    assert found["trainer.val_before_train"] == "false"
    assert found["actor_rollout_ref.rollout.tensor_model_parallel_size"] == "2"
    assert found["actor_rollout_ref.actor.fsdp_config.param_offload"] == "true"
    assert found["trainer.balance_batch"] == "false"
    assert found["trainer.nnodes"] == "7"  # the last word is the user's
    assert "trainer.device" not in found


def test_cards_that_are_not_there_are_counted_by_ray():
    found = told("verl.rollout=mapo_cpu", "verl.gpus=2")
    assert found["trainer.device"] == "cpu" and found["+ray_kwargs.ray_init.num_gpus"] == "2"
    assert found["actor_rollout_ref.rollout.load_format"] == "auto"


def test_a_low_rank_run_loads_the_base_weights():
    found = told("model.lora.rank=8", "model.lora.alpha=16")
    assert found["actor_rollout_ref.model.lora_rank"] == "8"
    assert found["actor_rollout_ref.rollout.load_format"] == "safetensors"


def test_every_method_has_a_name_of_its_own_in_verl():
    assert [verl_name(method) for method in METHODS.values()] == list(METHODS)
    assert all(name.replace("_", "").isalnum() and name.startswith("mapo") for name in METHODS)
    assert len(set(METHODS.values())) == len(METHODS) == 6


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ("rollout.scenarios=15", "optim.updates"),
        ("verl.tensor_parallel=3", "8 cards in groups of 3 x 1"),
        ("optim.schedule=linear", "linear schedule"),
        ("optim.steps=0", "no step to train"),
        ("advantage.method=magic", "no method 'magic'"),
    ],
)
def test_what_verl_could_not_do_is_refused(given, where):
    with pytest.raises(InputError, match=where):
        check_settings(load_config(None, [given]))


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("vllm", "vllm"),
        ("/a/b-c.d_1", "/a/b-c.d_1"),
        ("", '""'),
        ("12", '"12"'),
        ("true", '"true"'),
        ("Null", '"Null"'),
        ("a b", '"a b"'),
        ("a=b,c", '"a=b,c"'),
        ('say "so"', r'"say \"so\""'),
        ("ends\\", '"ends\\\\"'),
        ("Größe/数", '"Größe/数"'),
        (True, "true"),
        (1e-6, "1e-06"),
        (["a", "b"], '["a", "b"]'),
    ],
)
def test_values_are_written_as_hydra_reads_them(value, written):
    assert hydra_value(value) == written  # tests/verl: that Hydra does
