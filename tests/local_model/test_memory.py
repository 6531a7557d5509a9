"""Memory of the machine, sizes of models, and plans that fit or are refused."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mapo.config import Config
from mapo.errors import InputError
from mapo.local_model.files import write_tensors
from mapo.local_model.memory import (
    CGROUPS,
    GIB,
    MIN_SLOTS,
    ModelNeed,
    ModelSize,
    adapter_size,
    host_memory,
    model_size,
    plan_memory,
    training_need,
)
from mapo.local_model.policy import load_policy
from mapo.local_model.shipped import POCKET


def system(root: Path, files: dict[str, str]) -> Path:
    """Write the /proc and /sys files of a machine with 16 GiB, 12 of them available."""
    meminfo = f"MemTotal: {16 * GIB // 1024} kB\nMemAvailable: {12 * GIB // 1024} kB\nHugePages_Total: 0\n"
    for name, text in {"proc/meminfo": meminfo, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def limit(folder: str, names: tuple[str, str, str], most: object, used: int, idle: int) -> dict[str, str]:
    limit_file, usage_file, reclaimable = names
    stat = f"anon 5\n{reclaimable} {idle}\nother 9\n"
    return {
        f"sys/fs/cgroup/{folder}/{limit_file}": f"{most}\n",
        f"sys/fs/cgroup/{folder}/{usage_file}": f"{used}\n",
        f"sys/fs/cgroup/{folder}/memory.stat": stat,
    }


V1, V2 = CGROUPS["memory"], CGROUPS[""]


@pytest.mark.parametrize(
    ("files", "available", "total"),
    [
        ({}, 12, 16),
        ({"proc/self/cgroup": "0::/\n"}, 12, 16),
        # limit 8 GiB, 5 used, 2 of those reclaimable: 5 are left
        ({"proc/self/cgroup": "0::/\n", **limit("", V2, 8 * GIB, 5 * GIB, 2 * GIB)}, 5, 8),
        ({"proc/self/cgroup": "0::/a/b\n", **limit("a/b", V2, 4 * GIB, GIB, 0)}, 3, 4),
        # no limit of its own, but one two groups above
        ({"proc/self/cgroup": "0::/a/b/c\n", **limit("a", V2, 4 * GIB, GIB, 0)}, 3, 4),
        ({"proc/self/cgroup": "0::/\n", **limit("", V2, "max", 5 * GIB, 0)}, 12, 16),
        ({"proc/self/cgroup": "9:cpu:/\n4:memory:/x\n", **limit("memory/x", V1, 6 * GIB, GIB, 0)}, 5, 6),
        ({"proc/self/cgroup": "4:memory:/x\n", **limit("memory", V1, 2**63 - 4096, GIB, 0)}, 12, 16),
    ],
)
def test_memory_respects_container_limits(tmp_path, files, available, total):
    assert host_memory(system(tmp_path, files)) == (available * GIB, total * GIB)


@pytest.mark.parametrize("meminfo", ["", "MemTotal: many kB\n", "MemTotal:\n"])
def test_memory_can_be_unknown(tmp_path, meminfo):
    assert host_memory(tmp_path) is None
    assert host_memory(system(tmp_path, {"proc/meminfo": meminfo})) is None


# ---- sizes


def test_the_size_of_a_model_is_that_of_the_loaded_one():
    model = load_policy("pocket", device="cpu").model
    size = model_size(POCKET)
    assert size.parameters == sum(p.numel() for p in model.parameters())
    assert size.in_layers == sum(p.numel() for p in model.model.layers.parameters())
    assert size.largest == max(p.numel() for p in model.parameters())
    config = model.config
    # keys and values of every layer
    assert size.kv_per_token == 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim


def test_adapters_have_the_size_that_peft_gives_them():
    from mapo.config import Lora

    model = load_policy("pocket", device="cpu", lora=Lora(rank=4)).model
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert model_size(POCKET).adapters(4) == trained


def test_the_size_of_a_folder_without_config_is_unknown(tmp_path):
    assert model_size(tmp_path) is None


@pytest.mark.parametrize(("base", "size"), [("pocket", model_size(POCKET)), ("some/model-on-a-hub", None)])
def test_an_adapter_is_as_large_as_its_base(tmp_path, base, size):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    assert model_size(tmp_path) == size


def test_the_parameters_of_an_adapter_are_counted(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "pocket"}))
    write_tensors(tmp_path / "adapter_model.safetensors", {"a": torch.zeros(4, 2), "b": torch.zeros(3, 4)})
    assert adapter_size(tmp_path) == 8 + 12


def test_a_whole_model_has_no_adapter():
    assert adapter_size(POCKET) is None


def test_the_size_of_an_unknown_architecture_is_unknown(tmp_path):
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    assert model_size(tmp_path) is None


def test_sizes_that_no_model_has_are_unknown(tmp_path):
    config = {"hidden_size": 10**400, "num_hidden_layers": 1, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_size(tmp_path) is None


def safetensors(entry: dict[str, object]) -> bytes:
    """Return a safetensors file of one tensor, without its data."""
    header = json.dumps({"w": entry}).encode()
    return len(header).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 16,
        (2).to_bytes(8, "little") + b"[]",
        safetensors({"a": 1}),
        safetensors({"shape": [-1]}),
        safetensors({"shape": [10**400]}),
        safetensors({"shape": [2] * 60}),
        safetensors({"shape": "12"}),
    ],
)
def test_damaged_weights_are_one_clear_line(tmp_path, content):
    config = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"model.safetensors: the weights cannot be read"):
        model_size(tmp_path)


def test_weights_that_are_not_a_regular_file_are_refused(tmp_path):
    config = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"model.safetensors: the weights cannot be read"):
        model_size(tmp_path)


# ---- plans

JUDGE = ModelNeed("judge-1b", ("judge",), weights=2 * GIB, per_slot=GIB // 4, slots=64, context=8192)
POLICY = ModelNeed(
    "policy",
    ("policy",),
    weights=2 * GIB,
    per_slot=GIB // 8,
    slots=7,
    context=4096,
    state=4 * GIB,
    fixed=True,
)


def test_a_plan_that_fits_is_not_changed():
    assert plan_memory([POLICY, JUDGE], 40 * GIB, "GPU").needs == (POLICY, JUDGE)


def test_slots_are_reduced_until_the_plan_fits():
    # 10 GiB usable; policy 2 + 4 + 8 / 8 = 7 GiB and the judge's weights 2 GiB leave 1 GiB short of 5 slots
    available = int(11 * GIB / 0.92) + 1
    plan = plan_memory([POLICY, JUDGE], available, "GPU")
    assert plan.total <= 11 * GIB < plan.total + JUDGE.per_slot
    assert plan.needs[0] == POLICY


def test_an_estimate_of_activations_reduces_slots_but_refuses_nothing():
    busy = replace(POLICY, activations=100 * GIB)
    plan = plan_memory([busy, JUDGE], 16 * GIB, "GPU")
    assert plan.needs[1].slots == MIN_SLOTS


def test_models_that_do_not_fit_are_refused_with_a_context_that_would():
    with pytest.raises(InputError) as refusal:
        plan_memory([JUDGE], 3 * GIB, "GPU")
    # 0.92 * 3 - 2 = 0.76 GiB for five slots of a quarter: 0.608 of 8192 tokens are 4980
    assert str(refusal.value) == (
        "GPU: judge-1b need 3.2 GiB with the fewest slots, and of 3.0 GiB available memory 2.8 GiB can be "
        "planned. "
        "A context of 4864 tokens would fit (roles.context, --context)"
    )


def test_weights_that_do_not_fit_are_refused_with_a_size_that_would():
    with pytest.raises(
        InputError, match=r"Models with up to 920 MiB of weights would fit|Models with up to 0.9 GiB"
    ):
        plan_memory([JUDGE], GIB, "GPU")


def test_training_that_does_not_fit_is_refused_with_adapters():
    with pytest.raises(InputError, match=r"Train with LoRA .*run\.shard=true.* --engine verl"):
        plan_memory([POLICY], 4 * GIB, "GPU")


def test_without_known_memory_nothing_is_refused():
    assert plan_memory([JUDGE], None, "CPU").needs == (JUDGE,)


def test_a_plan_says_what_is_where():
    lines = plan_memory([POLICY, JUDGE], 40 * GIB, "GPU").lines
    assert lines[1] == "judge-1b (judge): weights 2.0 GiB, 64 slots of 8192 tokens 16.2 GiB"
    assert lines[2] == "GPU: 25.2 GiB planned, 40.0 GiB available"


SIZE = ModelSize(1000, kv_per_token=8, layers=2, hidden=10, intermediate=20, linear=((10, 30),))


def settings(**model) -> Config:
    return Config.model_validate({"model": model, "optim": {"tokens": 100}})


def test_training_all_weights_in_bfloat16():
    need = training_need(SIZE, settings(), slots=3, context=64, width=2)
    # master 4 + float32 gradient 4 + moments 8 + gradient 2; reference 2
    assert (need.weights, need.state) == (2000, 1000 * (18 + 2))
    assert need.cache == 4 * 64 * 8 * 2


def shared_by(processes: int, **options) -> ModelNeed:
    config = Config.model_validate({"run": {"shard": True}, "optim": {"tokens": 100}})
    size = replace(SIZE, in_layers=800, largest=100)
    return training_need(size, config, slots=3, context=64, processes=processes, **options)


@pytest.mark.parametrize("width", [2, 4])
def test_a_share_of_the_training_state(width):
    need = shared_by(4, width=width)
    # a quarter of 16 bytes; the reference has 800 parameters in its layers and 200 elsewhere
    assert (need.weights, need.state) == (1000 * width, 4000 + width * (200 + 200))
    assert "(shared by 4 processes)" in need.text


def test_a_reference_that_roles_sample_is_not_shared():
    need = shared_by(4, width=2, sampled_reference=True)
    assert need.state == 4000 + 2000


def test_two_buckets_of_float32_gradients_are_on_their_way():
    whole = training_need(SIZE, settings(), slots=3, context=64, width=2)
    # all 1000 parameters are one bucket
    assert shared_by(2, width=2).activations == whole.activations + 2 * 4 * 1000


def test_a_share_that_does_not_fit_is_refused_with_more_gpus():
    need = replace(POLICY, shards=4)
    with pytest.raises(InputError, match=r"Use more GPUs \(run\.processes\).*--engine verl, which also"):
        plan_memory([need], 4 * GIB, "GPU")


def test_training_adapters():
    need = training_need(SIZE, settings(lora={"rank": 4}), slots=3, context=64, width=2)
    adapters = 4 * (10 + 30)
    assert (need.weights, need.state) == (2000 + 4 * adapters, adapters * (12 + 4))


def test_training_that_continues_adapters_trains_only_them():
    need = training_need(SIZE, settings(), slots=3, context=64, width=2, adapters=50)
    assert (need.weights, need.state) == (2000 + 4 * 50, 50 * (12 + 4))


def test_checkpointing_keeps_one_layer_and_the_inputs_of_all():
    plain = training_need(SIZE, settings(), slots=1, context=64, width=2).activations
    less = training_need(SIZE, settings(checkpointing=True), slots=1, context=64, width=2).activations
    one = 2 * (7 * 10 + 4 * 20)
    assert (plain, less) == (100 * 2 * one, 100 * (one + 2 * 2 * 10))
