"""What verl is told: every shipped config, and what is refused before verl would refuse it."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapo.config import load_config, shipped_configs
from mapo.engines.verl.settings import (
    METHODS,
    check_heads,
    check_settings,
    checkpoint_due,
    hydra_value,
    learning_rate_at,
    overrides,
    schedule_end,
    verl_name,
)
from mapo.errors import InputError
from mapo.estimators.methods import ESTIMATORS

TABLES = {split: Path(f"/r/verl/{split}.parquet") for split in ("train", "validation", "test")}
RAY = "+ray_kwargs.ray_init"


def told(*given: str, config: str | None = None) -> dict[str, str]:
    environment = {"PLACE": "/a/b", "COUNT": "2"}
    lines = overrides(load_config(config, given), Path("/r"), TABLES, "/models/m", 8192, environment)
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("name", sorted(shipped_configs()))
def test_shipped_configs_can_be_told(name):
    config = load_config(name)
    check_settings(config)
    found = told(config=name)
    assert found["actor_rollout_ref.model.path"] == "/models/m"
    assert found["algorithm.adv_estimator"] == "mapo" and found["+algorithm.mapo.gamma"] == "0.85"
    assert int(found["data.max_prompt_length"]) + int(found["data.max_response_length"]) == 8192
    assert int(found["actor_rollout_ref.actor.ppo_mini_batch_size"]) * config.optim.updates == (
        config.rollout.scenarios
    )
    assert float(found["actor_rollout_ref.actor.optim.lr"]) == config.optim.lr
    assert found["data.shuffle"] == "false" and found["trainer.v1.trainer_mode"] == "mapo"
    assert json.loads(found["trainer.logger"]) == ["console", *config.run.trackers]
    assert found["trainer.val_before_train"] == "true"  # our trainer decides what that means


def test_what_decides_the_course_is_handed_on():
    found = told(
        "advantage.method=reinforce++_turn",
        "advantage.horizon=shortest",
        "advantage.endings=cut",
        "advantage.scale=none",
        "advantage.lam=0.5",
        "advantage.step_weight=2",
        "optim.kl=0.01",
        "eval.temperature=0",
        "verl.tensor_parallel=2",
        "verl.offload=true",
        'verl.settings=["trainer.balance_batch=false", "trainer.nnodes=7"]',
    )
    assert found["algorithm.adv_estimator"] == "mapo_reinforce_pp_turn"
    mapo = {name.rpartition(".")[2]: value for name, value in found.items() if ".mapo." in name}
    assert mapo == {
        "gamma": "0.85",
        "turn_weight": "0.5",
        "scope": "group",
        "horizon": "shortest",
        "endings": "cut",
        "scale": "none",
        "lam": "0.5",
        "step_weight": "2.0",
    }
    assert told()["+algorithm.mapo.scale"] == "null"  # as in the method's paper
    assert told()["+algorithm.mapo.endings"] == "continued"
    assert told("reward.name=adr")["+algorithm.mapo.endings"] == "held"
    assert found["actor_rollout_ref.actor.use_kl_loss"] == "true"
    assert found["actor_rollout_ref.actor.kl_loss_coef"] == "0.01"
    assert found["actor_rollout_ref.rollout.val_kwargs.do_sample"] == "false"
    assert found["actor_rollout_ref.rollout.tensor_model_parallel_size"] == "2"
    assert found["actor_rollout_ref.actor.fsdp_config.param_offload"] == "true"
    assert found["trainer.balance_batch"] == "false"
    assert found["trainer.nnodes"] == "7"  # the last word is the user's
    assert "trainer.device" not in found
    kind = "actor_rollout_ref.actor.fsdp_config.model_dtype"
    assert kind not in found and told("model.dtype=float32")[kind] == "fp32"


def test_cards_that_are_not_there_are_counted_by_ray():
    found = told("verl.rollout=mapo_cpu", "verl.gpus=2", "roles.judge.model=")
    assert found["trainer.device"] == "cpu" and found["+ray_kwargs.ray_init.num_gpus"] == "2"
    assert found["actor_rollout_ref.rollout.load_format"] == "auto"


def test_every_process_finds_our_environment_whoever_started_ray():
    found = told()
    # in quotes: Ray takes nothing but text
    assert {k: v for k, v in found.items() if k.startswith(RAY)} == {
        f"{RAY}.runtime_env.env_vars.PLACE": "/a/b",
        f"{RAY}.runtime_env.env_vars.COUNT": '"2"',
        f"{RAY}.address": "local",
    }
    assert told("verl.nodes=2")[f"{RAY}.address"] == "auto"


def test_every_method_has_a_name_of_its_own_in_verl():
    assert [verl_name(method) for method in METHODS.values()] == list(METHODS)
    assert all(name.replace("_", "").isalnum() and name.startswith("mapo") for name in METHODS)
    assert list(METHODS.values()) == list(ESTIMATORS)


@pytest.mark.parametrize(
    ("told", "where"),
    [
        (["rollout.scenarios=15"], "optim.updates: 15 scenarios cannot be split into 4 equal updates"),
        (["verl.tensor_parallel=3"], "verl.tensor_parallel: 8 GPUs cannot be split into groups of 3"),
        (["verl.sequence_parallel=3"], "verl.sequence_parallel: 8 GPUs cannot be split into groups of 3"),
        (
            ["verl.tensor_parallel=4", "verl.sequence_parallel=16"],
            "sequence_parallel: 8 GPUs cannot be split into groups of 16",
        ),
        (["verl.nodes=3"], "an update of 16 dialogues cannot be split evenly among 24 ranks"),
        (["verl.gpus=3"], "cannot be split evenly among 3 ranks"),
        (["model.lora.dropout=0.1"], "model.lora.dropout: verl has no setting for dropout"),
        (["model.lora.alpha=1.5"], "model.lora.alpha: verl takes a whole number for alpha, not 1.5"),
        (["model.lora.rank=513"], "model.lora.rank: vLLM samples adapters of rank 512 at most"),
        (
            ["verl.nodes=2", "verl.gpus=6", "verl.tensor_parallel=4"],
            "a sampling replica of 4 GPUs would share nodes of 6 unevenly",
        ),
        (
            ["verl.rollout=mapo_cpu", "verl.gpus=2", "verl.sequence_parallel=2"],
            "verl.sequence_parallel: sequence parallelism needs flash attention",
        ),
        (
            [
                "verl.sequence_parallel=2",
                'verl.settings=["+actor_rollout_ref.model.override_config.attn_implementation=sdpa"]',
            ],
            "attn_implementation=sdpa: sequence parallelism needs flash attention",
        ),
        (
            [
                "verl.sequence_parallel=2",
                'verl.settings=["actor_rollout_ref.model.use_remove_padding=False"]',
            ],
            "use_remove_padding=False: sequence parallelism needs",
        ),
        (["optim.schedule=linear"], "linear schedule"),
        (["optim.steps=0"], "there are no steps to train"),
        (["advantage.method=magic"], "unknown method 'magic'"),
    ],
)
def test_what_verl_could_not_do_is_refused(told, where):
    with pytest.raises(InputError, match=where):
        check_settings(load_config(None, ["rollout.scenarios=16", "optim.updates=4", *told]))


def test_samplers_and_trainers_may_be_grouped_each_in_their_own_way():
    """8 cards: 4 ranks of 2 share an update's 16 dialogues, whatever the sampler's groups are."""
    for sampling in (1, 4, 8):
        given = [f"verl.tensor_parallel={sampling}", "verl.sequence_parallel=2"]
        check_settings(load_config(None, ["rollout.scenarios=16", "optim.updates=4", *given]))


def test_a_replica_may_span_whole_nodes_and_other_flash_attention_is_fine():
    flash = "+actor_rollout_ref.model.override_config.attn_implementation=flash_attention_3"
    given = ["verl.nodes=2", "verl.gpus=2", "verl.tensor_parallel=4", "verl.sequence_parallel=4"]
    check_settings(load_config(None, [*given, f'verl.settings=["{flash}"]']))


@pytest.mark.parametrize(
    ("setting", "heads", "refused"),
    [
        ("verl.tensor_parallel=8", (64, 8), None),
        ("verl.sequence_parallel=8", (32, 4), None),  # key-value heads are repeated
        ("verl.sequence_parallel=4", (14, 2), "14 attention heads with 2 key-value heads .* by 4 GPUs"),
        ("verl.tensor_parallel=4", (24, 6), "verl.tensor_parallel: .* divides 6"),
    ],
)
def test_attention_heads_are_divided_evenly(setting, heads, refused):
    config = load_config(None, [setting])
    with pytest.raises(InputError, match=refused) if refused else nullcontext():
        check_heads(config, *heads)


def test_gpus_that_share_a_row_hold_a_part_of_it():
    """8192 tokens of context: all on one GPU, or at least a fourth on each of four."""
    names = ("actor.ppo_max_token_len_per_gpu", "rollout.log_prob_max_token_len_per_gpu")
    for groups, tokens, expected in ((1, 1024, 8192), (4, 1024, 2048), (4, 4096, 4096)):
        settings = told(f"verl.sequence_parallel={groups}", f"optim.tokens={tokens}")
        assert {settings[f"actor_rollout_ref.{name}"] for name in names} == {str(expected)}
        assert settings["actor_rollout_ref.actor.ulysses_sequence_parallel_size"] == str(groups)


def test_adapters_are_sampled_unmerged_and_saved_alone():
    settings = told("model.lora.rank=16", "model.lora.alpha=32")
    model, saved = "actor_rollout_ref.model", "actor_rollout_ref.actor.checkpoint.save_contents"
    assert (settings[f"{model}.lora_rank"], settings[f"{model}.lora_alpha"]) == ("16", "32")
    assert settings[f"{model}.target_modules"] == "all-linear"
    assert settings["actor_rollout_ref.rollout.load_format"] == "safetensors"
    assert settings["+actor_rollout_ref.actor.checkpoint.save_lora_only"] == "true"
    assert json.loads(settings[saved]) == ["model", "optimizer", "extra"]
    assert "hf_model" in json.loads(told()[saved]) and f"{model}.lora_rank" not in told()
    cpu = told("model.lora.rank=16", "verl.rollout=mapo_cpu")
    assert cpu["actor_rollout_ref.rollout.load_format"] == "auto"


def test_a_running_cluster_keeps_its_resources():
    settings = told("verl.rollout=mapo_cpu", "verl.nodes=2", "verl.gpus=1")
    assert settings[f"{RAY}.address"] == "auto"
    assert not [name for name in settings if name.endswith(("ray_init.num_gpus", "ray_init.num_cpus"))]


# ---- rates and checkpoints


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        # 8 steps, the first 2 of them rise; then 0.5 (1 + cos(pi (s - 2) / 7)) of the rate, 0 at step 9
        ("cosine", [0.5, 1.0] + [0.5 * (1 + math.cos(math.pi * done / 7)) for done in range(1, 7)]),
        ("constant", [0.5] + [1.0] * 7),
    ],
)
def test_a_rate_rises_then_follows_its_schedule(schedule, expected):
    config = load_config(
        None, ["optim.lr=0.25", "optim.warmup=0.2", "optim.steps=8", f"optim.schedule={schedule}"]
    )
    rates = [learning_rate_at(config, step) for step in range(1, 9)]
    assert rates == pytest.approx([0.25 * x for x in expected])


@given(st.integers(1, 40), st.floats(0, 0.9), st.sampled_from(["cosine", "constant"]))
def test_no_step_is_trained_with_no_rate(steps, warmup, schedule):
    config = load_config(
        None, [f"optim.steps={steps}", f"optim.warmup={warmup}", f"optim.schedule={schedule}"]
    )
    rates = [learning_rate_at(config, step) for step in range(1, steps + 1)]
    assert all(0 < rate <= config.optim.lr for rate in rates)
    if schedule == "cosine":
        assert learning_rate_at(config, schedule_end(config)) == pytest.approx(0, abs=1e-12)


@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 12))
def test_verl_asks_about_every_checkpoint_that_is_due(steps, saved, validated):
    given = [f"optim.steps={steps}", f"run.checkpoint_every={saved}", f"eval.every={validated}"]
    config = load_config(None, given)
    asked = int(told(*given)["trainer.save_freq"])
    due = {step for step in range(1, steps + 1) if checkpoint_due(config, step)}
    looked = {s for s in range(1, steps + 1) if validated and s % validated == 0}
    assert due == looked | {s for s in range(1, steps + 1) if s % saved == 0 or s == steps}
    assert all(step % asked == 0 or step == steps for step in due)


def test_without_validations_verl_still_comes_to_the_test_at_the_end():
    found = told("optim.steps=7", "eval.every=0", "run.checkpoint_every=3")
    assert (found["trainer.test_freq"], found["trainer.save_freq"]) == ("7", "3")


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
    assert hydra_value(value) == written  # tests/engines/verl: that Hydra does
