"""Adapters of verl's checkpoints: shards of all ranks become one folder, or an error says what is missing."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from mapo.config import Lora, Model
from mapo.engines.verl import records
from mapo.engines.verl.adapter import read_adapter, write_adapter
from mapo.errors import StoreError
from mapo.store import RunDir

LAYER = "base_model.model.model.layers.0.self_attn.q_proj"


def checkpoint(actor, ranks=1, tensors=None):
    """As verl writes it; plain tensors, as in a run of one rank."""
    (actor / "huggingface").mkdir(parents=True)
    (actor / "huggingface" / "config.json").write_text("{}")
    tensors = tensors or {
        f"{LAYER}.lora_A.default.weight": torch.ones(2, 4),
        f"{LAYER}.lora_B.default.weight": torch.zeros(4, 2),
    }
    torch.save(tensors, actor / f"model_world_size_{ranks}_rank_0.pt")
    return actor


def test_an_adapter_is_written_as_peft_does(tmp_path):
    out = write_adapter(checkpoint(tmp_path / "actor"), Lora(rank=2, alpha=4), "someone/model")
    tensors = load_file(out / "adapter_model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        f"{LAYER}.lora_A.weight": (2, 4),
        f"{LAYER}.lora_B.weight": (4, 2),
    }
    config = json.loads((out / "adapter_config.json").read_bytes())
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (2, 4, ["q_proj"])
    assert config["base_model_name_or_path"] == "someone/model"
    assert write_adapter(tmp_path / "actor", Lora(), "other") == out  # written once


def test_a_checkpoint_that_cannot_be_joined_says_why(tmp_path):
    with pytest.raises(StoreError, match="the weights of 1 of 2 ranks.*shared file system"):
        read_adapter(checkpoint(tmp_path / "half", ranks=2))
    with pytest.raises(StoreError, match="holds no adapter"):
        read_adapter(checkpoint(tmp_path / "full", tensors={"model.norm.weight": torch.ones(2)}))
    damaged = checkpoint(tmp_path / "damaged")
    (damaged / "model_world_size_1_rank_0.pt").write_bytes(b"nothing")
    with pytest.raises(StoreError, match="cannot be read"):
        read_adapter(damaged)
    with pytest.raises(StoreError, match="the weights of 0 of 1 ranks"):
        read_adapter(tmp_path)


def test_only_complete_checkpoints_are_linked(tmp_path):
    run, folder = RunDir(tmp_path), tmp_path / "verl" / "checkpoints"
    for step in (1, 2):
        checkpoint(folder / f"global_step_{step}" / "actor")
    model = Model(lora=Lora(rank=2, alpha=4), source="someone/model")
    records.link_checkpoints(run, folder, model)
    assert not list(run.checkpoints.iterdir())
    (folder / "latest_checkpointed_iteration.txt").write_text("1")  # verl writes this last
    records.link_checkpoints(run, folder, model)
    assert [link.name for link in run.checkpoints.iterdir()] == ["step_00001"]
    assert (run.checkpoint(1) / "adapter_model.safetensors").is_file()
