"""Models from folders and names: whole, through LoRA, with a reference; what cannot be used is refused."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from mapo.config import Lora
from mapo.errors import InputError
from mapo.local_model import shipped
from mapo.local_model.policy import load_policy, max_context, reference
from support.tiny_policy import tiny_folder, tiny_loss, trainable

IDS = torch.tensor([[0, 5, 6, 7, 1]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("models") / "tiny")


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS).logits


def count(parameters):
    return sum(p.numel() for p in parameters)


def nudge(policy):
    """One plain gradient step, large enough to see."""
    tiny_loss(policy).backward()
    with torch.no_grad():
        for parameter in trainable(policy.model).values():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None


def test_a_folder_loads_whole_in_float32_on_cpu(folder):
    policy = load_policy(str(folder), device="cpu")
    assert (policy.name, policy.source, policy.lora) == ("tiny", str(folder), False)
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
    assert policy.device.type == "cpu" and not policy.model.training
    # embeddings 258*16, per layer q 256 k 128 v 128 o 256, mlp 3*16*32, two norms of 16; a last norm
    assert count(policy.model.parameters()) == 258 * 16 + 2 * (768 + 1536 + 32) + 16
    assert all(p.requires_grad for p in policy.model.parameters())


def test_bfloat16_on_request(folder):
    policy = load_policy(str(folder), device="cpu", dtype="bfloat16")
    assert {p.dtype for p in policy.model.parameters()} == {torch.bfloat16} == {policy.dtype}


def test_pocket_is_a_folder_of_the_package(folder, monkeypatch):
    monkeypatch.setitem(shipped.SHIPPED, "pocket", folder)
    policy = load_policy("pocket", device="cpu")
    assert (policy.name, policy.source) == ("pocket", "pocket")


def test_weights_stored_in_half_are_raised(tmp_path):
    half = tiny_folder(tmp_path / "half", dtype=torch.float16)
    assert load_policy(str(half), device="cpu").model.lm_head.weight.dtype == torch.float32


def test_lora_trains_only_adapters_and_starts_as_the_base(folder):
    base = load_policy(str(folder), device="cpu")
    policy = load_policy(str(folder), device="cpu", lora=Lora(rank=2, alpha=4))
    assert policy.lora and torch.equal(logits(policy.model), logits(base.model))
    assert all("lora_" in name for name in trainable(policy.model))
    # rank 2 on q k v o gate up down of two layers: 2 * (inputs + outputs) each
    pairs = [(16, 16), (16, 8), (16, 8), (16, 16), (16, 32), (16, 32), (32, 16)]
    assert count(trainable(policy.model).values()) == 2 * sum(2 * (i + o) for i, o in pairs)


def test_adapters_of_a_bfloat16_model_are_float32(folder):
    policy = load_policy(str(folder), device="cpu", dtype="bfloat16", lora=Lora(rank=2))
    assert {p.dtype for p in trainable(policy.model).values()} == {torch.float32}


@pytest.mark.parametrize("lora", [None, Lora(rank=2)])
def test_the_reference_stays_where_training_began(folder, lora):
    policy = load_policy(str(folder), device="cpu", lora=lora, keep_reference=True)
    start = logits(policy.model)
    nudge(policy)
    if lora:
        nudge(policy)  # B is zero at first, so A moves only from the second step on
    assert not torch.equal(logits(policy.model), start)
    moved, free = logits(policy.model), set(trainable(policy.model))
    with reference(policy) as model:
        now = model(input_ids=IDS).logits
    assert torch.equal(now, start) and not now.requires_grad
    assert torch.equal(logits(policy.model), moved) and set(trainable(policy.model)) == free


def test_the_reference_of_an_adapter_folder_is_the_adapter_not_the_base(folder, tmp_path):
    first = load_policy(str(folder), device="cpu", lora=Lora(rank=2, dropout=0.5))
    nudge(first)
    first.model.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    policy = load_policy(str(tmp_path / "adapter"), device="cpu", keep_reference=True)
    start = logits(policy.model)
    assert not torch.equal(start, logits(load_policy(str(folder), device="cpu").model))
    policy.model.train()
    for _ in range(2):
        nudge(policy)
    before = {n: (p, p.data_ptr(), p.detach().clone()) for n, p in trainable(policy.model).items()}
    noise = torch.get_rng_state()
    with reference(policy) as model:  # in eval mode: dropout would make the distance to it noise
        assert torch.equal(model(input_ids=IDS).logits, start)
    assert torch.equal(torch.get_rng_state(), noise)
    assert policy.model.training
    for name, p in trainable(policy.model).items():
        same, place, value = before[name]
        assert p is same and p.data_ptr() == place and torch.equal(p, value)


def test_a_reference_between_forward_and_backward_disturbs_nothing(folder):
    """Nor does one whose block fails."""
    torch.manual_seed(0)
    policy = load_policy(str(folder), device="cpu", lora=Lora(rank=2), keep_reference=True)
    nudge(policy)
    tiny_loss(policy).backward()
    plain = {n: p.grad.clone() for n, p in trainable(policy.model).items()}
    policy.model.zero_grad()
    loss = tiny_loss(policy)
    with pytest.raises(ZeroDivisionError), reference(policy):
        _ = 1 / 0
    with reference(policy) as model:
        logits(model)
    loss.backward()
    assert all(torch.equal(p.grad, plain[n]) for n, p in trainable(policy.model).items())


@pytest.mark.parametrize("lora", [None, Lora(rank=2)])
def test_no_reference_was_kept(folder, lora):
    with (
        pytest.raises(InputError, match="keep_reference"),
        reference(load_policy(str(folder), device="cpu", lora=lora)),
    ):
        pass


def test_an_adapter_folder_brings_its_base(folder, tmp_path):
    policy = load_policy(str(folder), device="cpu", lora=Lora(rank=2, alpha=4))
    nudge(policy)
    policy.model.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    again = load_policy(str(tmp_path / "adapter"), device="cpu")
    assert again.lora and again.source == str(folder) and again.name == "adapter"
    assert torch.equal(logits(again.model), logits(policy.model))
    assert set(trainable(again.model)) == set(trainable(policy.model))
    with pytest.raises(InputError, match="rank 2 and alpha 4, not 8 and 4"):
        load_policy(str(tmp_path / "adapter"), device="cpu", lora=Lora(rank=8, alpha=4))


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"base_model_name_or_path": null}'])
def test_an_adapter_without_a_base_is_refused(tmp_path, text):
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(InputError, match="names no base model"):
        load_policy(str(tmp_path), device="cpu")


def test_an_adapter_in_another_format_is_refused(folder, tmp_path):
    config = {"base_model_name_or_path": str(folder), "peft_type": "LORA"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "adapter_model.bin").write_bytes(b"never unpickled")
    with pytest.raises(InputError, match="adapter_model.safetensors"):
        load_policy(str(tmp_path), device="cpu")


def test_a_missing_folder_is_refused():
    for source in ("./nowhere", "/nowhere/at/all", "runs/none/checkpoints/step_00001"):
        with pytest.raises(InputError, match="there is no such folder"):
            load_policy(source, device="cpu")


def test_a_name_no_hub_answers_for_is_refused(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=r"nobody/nothing-7b.*give its folder"):
        load_policy("nobody/nothing-7b", device="cpu")


def test_pickled_weights_are_refused(folder, tmp_path):
    bad = tiny_folder(tmp_path / "bad")
    (bad / "model.safetensors").rename(bad / "pytorch_model.bin")
    with pytest.raises(InputError, match="safetensors"):
        load_policy(str(bad), device="cpu")


def test_damaged_weights_and_tokenizers_are_refused(tmp_path):
    bad = tiny_folder(tmp_path / "bad")
    (bad / "model.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(InputError, match="its weights cannot be loaded"):
        load_policy(str(bad), device="cpu")
    (bad / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="its tokenizer cannot be loaded"):
        load_policy(str(bad), device="cpu")


def test_weights_under_other_names_are_refused(folder, tmp_path):
    """As some tools save a model with adapters on it: loaded as it is, it would be a random one."""
    adapted = load_policy(str(folder), device="cpu", lora=Lora(rank=2)).model
    bad = tiny_folder(tmp_path / "bad")
    weights = {name: p.detach().clone() for name, p in adapted.named_parameters()}
    assert "base_model.model.model.embed_tokens.weight" in weights
    save_file(weights, bad / "model.safetensors", metadata={"format": "pt"})
    # nine in each of two layers, embeddings, the last norm, the head
    with pytest.raises(InputError, match=r"21 weights are missing, .*adapters merged"):
        load_policy(str(bad), device="cpu")


def test_one_missing_weight_is_enough_to_be_refused(tmp_path):
    bad = tiny_folder(tmp_path / "bad", tied=False)
    weights = load_file(bad / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, bad / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"1 weights are missing, including model\.norm\.weight"):
        load_policy(str(bad), device="cpu")


def test_how_much_a_model_reads_is_in_its_config(folder, tmp_path):
    assert max_context(str(folder)) == 128
    with pytest.raises(InputError, match="its config cannot be loaded"):
        max_context(str(tmp_path))


def test_a_tokenizer_without_a_template_is_refused(tmp_path):
    bad = tiny_folder(tmp_path / "bad")
    (bad / "chat_template.jinja").unlink()
    with pytest.raises(InputError, match="no chat template"):
        load_policy(str(bad), device="cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_asked_for_but_absent(folder):
    with pytest.raises(InputError, match="no CUDA device"):
        load_policy(str(folder), device="cuda")
