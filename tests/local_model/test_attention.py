"""Forward passes without a mask: the same numbers, where no mask is needed, and nothing read back."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    DogeConfig,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
)

from mapo.local_model import layers
from mapo.local_model.attention import CAUSAL_ONLY, _needs_no_mask, without_mask
from mapo.train import loss as loss_module
from mapo.train.batch import micro_batches
from mapo.train.loss import policy_loss, token_logprobs
from support.loss_inputs import gradients, make, rows
from support.read_backs import NoReadBack

FAMILIES = {
    "llama": (LlamaConfig, {}, True),
    "qwen2": (Qwen2Config, {}, True),
    "granite": (GraniteConfig, {"logits_scaling": 3.0}, True),  # uses its own head
    "mistral": (MistralConfig, {"sliding_window": None}, True),
    "llama, eager": (LlamaConfig, {"attn_implementation": "eager"}, False),
    "mistral, window": (MistralConfig, {"sliding_window": 6}, False),
    "mistral, long window": (MistralConfig, {"sliding_window": 4096}, False),
    "qwen2, window": (
        Qwen2Config,
        {"sliding_window": 6, "use_sliding_window": True, "max_window_layers": 1},
        False,
    ),
    "gemma3, windows": (Gemma3TextConfig, {"sliding_window": 6, "head_dim": 4}, False),
    "doge": (DogeConfig, {"keep_window_size": 6}, False),
}


@pytest.fixture(params=FAMILIES)
def family(request):
    config, more, maskless = FAMILIES[request.param]
    return make(config, **more), maskless


def micro_batch():
    (micro,) = micro_batches(rows(), 1000, multiple=16)
    return micro


def trained(model, micro):
    """Log-probabilities and the gradients of a weighted sum of them."""
    torch.manual_seed(5)  # for dropout
    logp = token_logprobs(model, micro.ids, micro.mask, at=micro.at).logprobs
    return logp.detach(), gradients(model, (torch.linspace(-1, 1, micro.trained) * logp).sum())


def assert_nothing_changes(model, monkeypatch):
    """Compare with a mask as transformers builds it, bit for bit."""
    logp, slopes = trained(model, micro_batch())
    with monkeypatch.context() as patch:
        patch.setattr(loss_module, "without_mask", lambda _: nullcontext())
        expected, expected_slopes = trained(model, micro_batch())
    assert torch.equal(logp, expected)
    assert slopes.keys() == expected_slopes.keys() and slopes
    assert all(torch.equal(slopes[name], expected_slopes[name]) for name in slopes)


def test_only_models_with_plain_causal_attention_need_no_mask(family):
    model, maskless = family
    assert _needs_no_mask(model.model) is maskless


def test_numbers_and_gradients_are_the_same(family, monkeypatch):
    assert_nothing_changes(family[0], monkeypatch)


def test_masks_of_windows_are_kept():
    """Rows of 16 tokens are longer than the window of 6, which therefore counts."""
    micro = micro_batch()
    logp, _ = trained(make(MistralConfig, sliding_window=6), micro)
    assert not torch.allclose(logp, trained(make(MistralConfig, sliding_window=None), micro)[0])


@pytest.mark.parametrize("name", [name for name, (_, _, maskless) in FAMILIES.items() if maskless])
def test_a_pass_reads_nothing_back(name):
    config, more, _ = FAMILIES[name]
    model, micro = make(config, **more), micro_batch()
    token_logprobs(model, micro.ids, micro.mask)  # looks at the model once
    with NoReadBack():
        loss, _ = policy_loss(model, micro, total=micro.trained)
        loss.backward()


def test_other_models_look_for_packed_rows():
    model, micro = make(MistralConfig, sliding_window=6), micro_batch()
    token_logprobs(model, micro.ids, micro.mask)
    with pytest.raises(AssertionError, match="waits for the GPU"), NoReadBack():
        policy_loss(model, micro, total=micro.trained)


def test_adapters_and_their_base(monkeypatch):
    config = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    model, micro = get_peft_model(make(), config), micro_batch()
    assert_nothing_changes(model, monkeypatch)
    with NoReadBack(), torch.no_grad(), model.disable_adapter():
        token_logprobs(model, micro.ids, micro.mask, at=micro.at)


def test_checkpointed_layers(monkeypatch):
    model = make(attention_dropout=0.3)
    layers.tune_for_training(model, checkpointing=True, compile=False)
    assert_nothing_changes(model, monkeypatch)


def test_the_block_changes_the_body_only_and_then_nothing():
    model = make()
    config = model.model.config
    with without_mask(model.model):
        assert model.model.config._attn_implementation == CAUSAL_ONLY
        assert model.model.layers[0].self_attn.config._attn_implementation == "sdpa"
    assert model.model.config is config and config._attn_implementation == "sdpa"
    assert not any(layer._forward_pre_hooks for layer in model.model.layers)


def test_another_implementation_is_looked_at_again(monkeypatch):
    model = make()
    assert _needs_no_mask(model.model)
    model.set_attn_implementation("eager")
    assert not _needs_no_mask(model.model)
    assert_nothing_changes(model, monkeypatch)


def test_looking_at_a_model_draws_no_random_numbers():
    model = make(attention_dropout=0.3)
    model.model.layers[0].eval()
    before = torch.get_rng_state()
    assert _needs_no_mask(model.model)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training and not model.model.layers[0].training
