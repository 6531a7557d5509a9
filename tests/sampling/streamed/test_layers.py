"""StreamedLayers layers say what a model's own layers say, and stand in for them only where they are known
to."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import GemmaConfig, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from mapo.sampling.decoder import Decoder
from mapo.sampling.kv_cache import View, slot_attention
from mapo.sampling.streamed import layers as layers_module
from mapo.sampling.streamed.layers import streamed_layers_for
from support.streamed_models import STREAMS, attend, model_of, streamed_of

KINDS = [
    (Qwen2Config, {}),
    (LlamaConfig, {"tie_word_embeddings": True}),
    (MistralConfig, {"sliding_window": 4}),
]
KINDS += [(Qwen2Config, {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1})]

# Rotary positions of some models are made with a function that torch.jit warns about.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


@pytest.mark.parametrize("wide_head", [False, True])
@pytest.mark.parametrize(("kind", "more"), KINDS)
def test_layers_say_what_the_model_says(kind, more, wide_head, monkeypatch):
    if wide_head:
        monkeypatch.setattr(layers_module, "head_tile", lambda _: SimpleNamespace(splits=1))
    model = model_of(kind, **more)
    decoder = Decoder(model, slots=4, context=32, end_ids=frozenset())
    ids = torch.randint(0, 96, (3, 8))
    plain = model(input_ids=ids, use_cache=False).logits
    slots, at = torch.tensor([2, 0, 3]), torch.arange(8)[None].repeat(3, 1)
    swaps = streamed_of(model).swaps()
    assert (model.lm_head in [module for module, _ in swaps]) == wide_head
    with torch.no_grad(), slot_attention(decoder.configs):
        decoder.forward(ids[:, :6], View(slots, at[:, :6], 6, scratch=4))
        with decoder.fuser.on(swaps):
            for n in (6, 7):
                view = View(slots, at[:, n : n + 1].contiguous(), 32, scratch=4)
                found = decoder.forward(ids[:, n : n + 1], view)
                torch.testing.assert_close(found, plain[:, n], atol=1e-5, rtol=1e-4)
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_norm_that_is_not_ready_is_made():
    """If something comes between two layers, what was made ready is of no use."""
    streamed = streamed_of(model_of())
    norm = streamed.model.model.norm
    streamed._ready = (torch.zeros(2, 1, 64), torch.zeros(2, 64))
    hidden = torch.randn(2, 1, 64)
    torch.testing.assert_close(streamed._normed(hidden, norm), norm(hidden)[:, 0])


def test_it_takes_few_rows_of_16_bits_of_models_it_knows():
    half = {"dtype": torch.bfloat16}
    for kind, more in KINDS:
        assert streamed_of(model_of(kind, **half, **more)).accepts(64)
    model = model_of(dtype=torch.float16)
    assert streamed_of(model).accepts(1) and not streamed_of(model).accepts(65)
    assert not streamed_of(torch.nn.Linear(64, 64)).accepts(8)
    assert not streamed_of(model_of()).accepts(8)  # float32
    for more in ({"hidden_act": "gelu"}, {"mlp_bias": True}, {"attention_bias": True}, {"head_dim": 48}):
        assert not streamed_of(model_of(**half, **more)).accepts(8)
    assert not streamed_of(model_of(**half, intermediate_size=96)).accepts(8)
    for kind in (GemmaConfig, Qwen3Config):
        assert not streamed_of(model_of(kind, **half, head_dim=32)).accepts(8)


def put(linear, weight):
    linear.weight.data = weight


def changed(how):
    model = model_of(dtype=torch.bfloat16)
    how(model.model, model.model.layers[1])
    return model


@pytest.mark.parametrize(
    "how",
    [
        lambda _, layer: setattr(layer.mlp, "up_proj", torch.nn.Sequential(layer.mlp.up_proj)),
        lambda _, layer: setattr(layer.self_attn, "q_norm", torch.nn.RMSNorm(32, dtype=torch.bfloat16)),
        lambda _, layer: setattr(layer, "input_layernorm", torch.nn.RMSNorm(64, dtype=torch.bfloat16)),
        lambda base, _: setattr(base, "norm", torch.nn.RMSNorm(64, dtype=torch.bfloat16)),
        lambda base, _: base.norm.float(),
        lambda _, layer: layer.mlp.register_forward_hook(lambda *_: None),
        lambda _, layer: put(layer.mlp.up_proj, torch.zeros(64, 128, dtype=torch.bfloat16).T),
        lambda _, layer: put(layer.mlp.up_proj, torch.zeros(8193, dtype=torch.bfloat16)[1:].view(128, 64)),
    ],
)
def test_a_model_that_was_changed_is_left_alone(how):
    assert streamed_of(changed(lambda *_: None)).accepts(8)
    assert not streamed_of(changed(how)).accepts(8)


def of_another_class(module):
    """As a change of behaviour is often made: a class of one's own, with the old name or a new one."""
    kind = type(module)
    module.__class__ = type(kind.__name__, (kind,), {"forward": lambda *a, **k: kind.forward(*a, **k)})


@pytest.mark.parametrize("name", ["model.layers.1.self_attn", "model.layers.1.mlp", "model.rotary_emb"])
def test_classes_are_held_to_their_names_and_their_forward(name, monkeypatch):
    model = model_of(dtype=torch.bfloat16)
    of_another_class(model.get_submodule(name))
    assert not streamed_of(model).accepts(8) and streamed_of(model).incompatibility()
    model = model_of(dtype=torch.bfloat16)
    assert streamed_of(model).accepts(8)
    kind = type(model.get_submodule(name))
    monkeypatch.setattr(kind, "forward", lambda *a, **k: None)  # a patch for all models of the kind
    assert not streamed_of(model).accepts(8)


def test_why_a_model_is_left_alone_is_said():
    half = {"dtype": torch.bfloat16}
    assert streamed_of(model_of(**half)).incompatibility() == ""
    model = model_of(**half)
    model(input_ids=torch.tensor([[1, 2]]), output_hidden_states=True)  # leaves its hooks behind
    assert streamed_of(model).incompatibility() == "layer 0: a module has forward hooks or a replaced forward"
    for more, why in (
        ({"hidden_act": "gelu"}, "layer 0: its activation is GELU"),
        ({"head_dim": 16, "num_attention_heads": 4}, "layer 0: its head dimension is 16"),
        ({"intermediate_size": 96}, "layer 0: a linear layer is not a plain one"),
        ({"mlp_bias": True}, "layer 0: this kind of LlamaDecoderLayer is not supported"),
        ({"dtype": torch.float32}, "its weights are not all aligned 16-bit"),
    ):
        assert streamed_of(model_of(**half | more)).incompatibility().startswith(why)
    assert streamed_of(torch.nn.Linear(64, 64)).incompatibility() == "a Linear has no supported layers"


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (lambda model: setattr(model, "get_decoder", lambda: 1 / 0), "ZeroDivisionError: division by zero"),
        (lambda model: delattr(model.model.layers[1].self_attn, "head_dim"), "AttributeError: "),
        (lambda model: setattr(model.model.layers[2].self_attn, "config", None), "AttributeError: "),
        (lambda model: delattr(model.model.layers[0].mlp, "act_fn"), "AttributeError: "),
    ],
)
def test_a_model_that_cannot_be_read_is_left_alone(broken, told):
    model = model_of(MistralConfig, dtype=torch.bfloat16, sliding_window=4)
    assert streamed_of(model).accepts(8)
    broken(model)
    assert not streamed_of(model).accepts(8)
    assert streamed_of(model).incompatibility().startswith(f"the model cannot be inspected: {told}")


def test_adapters_are_left_alone():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(
        model_of(dtype=torch.bfloat16), peft.LoraConfig(r=4, target_modules=["v_proj"])
    )
    assert not streamed_of(model).accepts(8)


def test_it_is_made_for_hopper_cards(monkeypatch):
    card = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(device=torch.device("cuda"))]))
    kernels, here = SimpleNamespace(attend=attend), (9, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: here)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=78)
    )
    monkeypatch.setattr(layers_module.importlib, "import_module", lambda _: STREAMS)
    assert streamed_layers_for(card, kernels).processors == 78
    assert streamed_layers_for(card, None) is None and streamed_layers_for(model_of(), kernels) is None
    here = (8, 0)
    assert streamed_layers_for(card, kernels) is None
    here = (9, 0)
    monkeypatch.setattr(torch.version, "hip", "6.0")  # where other cards have these numbers
    assert streamed_layers_for(card, kernels) is None
