"""Lean layers say what a model's own layers say, and stand in for them only where they are known to."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from mapo.train import decode, door
from mapo.train import lean as lean_module
from mapo.train.decode import Decoder
from mapo.train.door import check
from mapo.train.draw import Fresh, noise_of
from mapo.train.graphs import Fuser
from mapo.train.kv import View, attending
from mapo.train.lean import Lean, lean_for
from mapo.train.tiles import lean_cut
from talks import Recordings

SMALL = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
KINDS = [
    (Qwen2Config, {}),
    (LlamaConfig, {"tie_word_embeddings": True}),
    (MistralConfig, {"sliding_window": 4}),
]
KINDS += [(Qwen2Config, {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1})]

# Rotary positions of some models are made with a function that torch.jit warns about.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


def model_of(kind=LlamaConfig, dtype=torch.float32, **more):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(kind(**SMALL | more), dtype=dtype).eval()
    for name, weight in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            weight.data.add_(torch.randn_like(weight) * 0.3)
    return model


# The kernels, said in torch.


def product(x, weights, tile):
    return functional.linear(x, torch.cat(list(weights)))[None].expand(tile.splits, -1, -1) / tile.splits


def add_norm(parts, residual, weight, eps):
    total = residual if parts is None else residual + parts.sum(0)
    return total, functional.rms_norm(total, (total.shape[1],), weight, eps)


def turn(states, biases, cos, sin, keys, values, slots, positions):
    whole = [s.sum(0) if b is None else s.sum(0) + b for s, b in zip(states, biases, strict=True)]
    q, k, v = (x.view(len(x), -1, keys.shape[3]) for x in whole)

    def turned(x):
        low, high = x.chunk(2, -1)
        return x * cos[:, None] + torch.cat([-high, low], -1) * sin[:, None]

    keys[slots, :, positions[:, 0]], values[slots, :, positions[:, 0]] = turned(k), v
    return turned(q)[:, :, None]


def attend(query, keys, values, slots, positions, *, scale, window, cut):
    assert cut == lean_cut(len(slots) * keys.shape[1], keys.shape[2], keys.shape[3], 132)
    out = []
    for row, (slot, at) in enumerate(zip(slots.tolist(), positions[:, 0].tolist(), strict=True)):
        first = max(0, at + 1 - window) if window else 0
        k, v = (
            x[slot, :, first : at + 1].repeat_interleave(query.shape[1] // x.shape[1], 0)
            for x in (keys, values)
        )
        out.append(((query[row] @ k.transpose(1, 2)) * scale).softmax(-1) @ v)
    return torch.stack(out).transpose(1, 2).contiguous()


STREAMS = SimpleNamespace(
    product=product,
    add_norm=add_norm,
    turn=turn,
    gated=lambda x, gate, up, tile: functional.silu(x @ gate.T) * (x @ up.T),
)


def lean_of(model, streams=STREAMS):
    return Lean(model, streams, attend, processors=132)


@pytest.mark.parametrize("wide_head", [False, True])
@pytest.mark.parametrize(("kind", "more"), KINDS)
def test_layers_say_what_the_model_says(kind, more, wide_head, monkeypatch):
    if wide_head:
        monkeypatch.setattr(lean_module, "head_tile", lambda _: SimpleNamespace(splits=1))
    model = model_of(kind, **more)
    decoder = Decoder(model, slots=4, context=32, end_ids=frozenset())
    ids = torch.randint(0, 96, (3, 8))
    plain = model(input_ids=ids, use_cache=False).logits
    slots, at = torch.tensor([2, 0, 3]), torch.arange(8)[None].repeat(3, 1)
    swaps = lean_of(model).swaps()
    assert (model.lm_head in [module for module, _ in swaps]) == wide_head
    with torch.no_grad(), attending(decoder.configs):
        decoder.forward(ids[:, :6], View(slots, at[:, :6], 6, scratch=4))
        with decoder.fuser.on(swaps):
            for n in (6, 7):
                view = View(slots, at[:, n : n + 1].contiguous(), 32, scratch=4)
                found = decoder.forward(ids[:, n : n + 1], view)
                torch.testing.assert_close(found, plain[:, n], atol=1e-5, rtol=1e-4)
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_norm_that_is_not_ready_is_made():
    """If something comes between two layers, what was made ready is of no use."""
    lean = lean_of(model_of())
    norm = lean.model.model.norm
    lean._ready = (torch.zeros(2, 1, 64), torch.zeros(2, 64))
    hidden = torch.randn(2, 1, 64)
    torch.testing.assert_close(lean._normed(hidden, norm), norm(hidden)[:, 0])


def test_it_takes_few_rows_of_16_bits_of_models_it_knows():
    half = {"dtype": torch.bfloat16}
    for kind, more in KINDS:
        assert lean_of(model_of(kind, **half, **more)).takes(64)
    model = model_of(dtype=torch.float16)
    assert lean_of(model).takes(1) and not lean_of(model).takes(65)
    assert not lean_of(torch.nn.Linear(64, 64)).takes(8)
    assert not lean_of(model_of()).takes(8)  # float32
    for more in ({"hidden_act": "gelu"}, {"mlp_bias": True}, {"attention_bias": True}, {"head_dim": 48}):
        assert not lean_of(model_of(**half, **more)).takes(8)
    assert not lean_of(model_of(**half, intermediate_size=96)).takes(8)
    for kind in (GemmaConfig, Qwen3Config):
        assert not lean_of(model_of(kind, **half, head_dim=32)).takes(8)


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
    assert lean_of(changed(lambda *_: None)).takes(8)
    assert not lean_of(changed(how)).takes(8)


def of_another_class(module):
    """As a change of behaviour is often made: a class of one's own, with the old name or a new one."""
    kind = type(module)
    module.__class__ = type(kind.__name__, (kind,), {"forward": lambda *a, **k: kind.forward(*a, **k)})


@pytest.mark.parametrize("name", ["model.layers.1.self_attn", "model.layers.1.mlp", "model.rotary_emb"])
def test_classes_are_held_to_their_names_and_their_forward(name, monkeypatch):
    model = model_of(dtype=torch.bfloat16)
    of_another_class(model.get_submodule(name))
    assert not lean_of(model).takes(8) and lean_of(model).unfit()
    model = model_of(dtype=torch.bfloat16)
    assert lean_of(model).takes(8)
    kind = type(model.get_submodule(name))
    monkeypatch.setattr(kind, "forward", lambda *a, **k: None)  # a patch for all models of the kind
    assert not lean_of(model).takes(8)


def test_why_a_model_is_left_alone_is_said():
    half = {"dtype": torch.bfloat16}
    assert lean_of(model_of(**half)).unfit() == ""
    model = model_of(**half)
    model(input_ids=torch.tensor([[1, 2]]), output_hidden_states=True)  # leaves its hooks behind
    assert lean_of(model).unfit() == "layer 0: somebody has hooked in"
    for more, why in (
        ({"hidden_act": "gelu"}, "layer 0: its activation is GELU"),
        ({"head_dim": 16, "num_attention_heads": 4}, "layer 0: its heads are 16 wide"),
        ({"intermediate_size": 96}, "layer 0: a linear layer of it is not plain"),
        ({"mlp_bias": True}, "layer 0: a LlamaDecoderLayer of this kind is not known"),
        ({"dtype": torch.float32}, "its weights are not all of the same 16 bits"),
    ):
        assert lean_of(model_of(**half | more)).unfit().startswith(why)
    assert lean_of(torch.nn.Linear(64, 64)).unfit() == "a Linear has no layers that it knows"


def test_adapters_are_left_alone():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(
        model_of(dtype=torch.bfloat16), peft.LoraConfig(r=4, target_modules=["v_proj"])
    )
    assert not lean_of(model).takes(8)


def test_it_is_made_for_hopper_cards(monkeypatch):
    card = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(device=torch.device("cuda"))]))
    kernels, here = SimpleNamespace(attend=attend), (9, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: here)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=78)
    )
    monkeypatch.setattr(lean_module.importlib, "import_module", lambda _: STREAMS)
    assert lean_for(card, kernels).processors == 78
    assert lean_for(card, None) is None and lean_for(model_of(), kernels) is None
    here = (8, 0)
    assert lean_for(card, kernels) is None
    here = (9, 0)
    monkeypatch.setattr(torch.version, "hip", "6.0")  # where other cards have these numbers
    assert lean_for(card, kernels) is None


class Tape(Recordings):
    """Replays with the forwards that the modules had when it was recorded, as a graph does."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def record(self, key, work, *, warm):
        held = [(m, vars(m)["forward"]) for m in self.model.modules() if "forward" in vars(m)]
        super().record(key, work, warm=warm)

        def again():
            with Fuser(torch.nn.Identity(), wanted=True).on(held):
                work()

        self[key] = again


def decoder_of(model, streams=STREAMS, slots=4):
    """One that records, as on a GPU; the compiler stays out of it."""
    made = Decoder(model, slots=slots, context=32, end_ids=frozenset(), chunk=3)
    made.graphs, made.fuser.wanted, made.lean = Tape(model), True, lean_of(model, streams)
    made.fuser.compiled = lambda function: function
    return made


def said(decoder):
    fresh = [Fresh(slot, 0, [5 + slot, 6, 7], noise_of(slot, 8)) for slot in (0, 2)]
    rounds = [decoder.round(fresh, []), decoder.round([], [0, 2])]
    ids = [token for drawn in rounds for slot in (0, 2) for token in drawn[slot].ids]
    return ids, torch.tensor([x for drawn in rounds for slot in (0, 2) for x in drawn[slot].logprobs])


def counted(calls):
    """The kernels, with the addresses of the weights that each is given put into `calls`."""

    def noting(name, places):
        def call(*given):
            for place in places:
                weights = given[place] if isinstance(given[place], list) else [given[place]]
                calls.append((name, [w.data_ptr() for w in weights if w is not None]))
            return getattr(STREAMS, name)(*given)

        return call

    places = {"product": [1], "gated": [1, 2], "add_norm": [2], "turn": [1]}
    return SimpleNamespace(**{name: noting(name, where) for name, where in places.items()})


def test_steps_are_recorded_with_them(monkeypatch):
    model, calls = model_of(Qwen2Config), []
    decoder = decoder_of(model, counted(calls))
    monkeypatch.setattr(decoder.lean, "takes", lambda rows: rows == 8)
    ids, logprobs = said(Decoder(model, slots=4, context=32, end_ids=frozenset(), chunk=3))
    found, told = said(decoder)
    assert found == ids and len(ids) == 14
    torch.testing.assert_close(told, logprobs, atol=1e-5, rtol=1e-4)
    steps = 3 + 3 + 3  # to warm up, and of two rounds
    assert sum(name == "turn" for name, _ in calls) == 3 * steps  # layers
    decoder.graphs.clear()
    monkeypatch.setattr(decoder.lean, "takes", lambda _: False)
    calls.clear()
    assert said(decoder)[0] == ids and not calls


def test_recordings_see_weights_that_change_in_place(monkeypatch):
    """Kernels get the parameters' own addresses, all of them; if those change, recordings are dropped."""
    model, calls = model_of(Qwen2Config), []
    decoder = decoder_of(model, counted(calls))
    monkeypatch.setattr(decoder.lean, "takes", lambda _: True)
    monkeypatch.setattr(decode, "Graphs", lambda: Tape(model))
    before = said(decoder)
    given = {at for _, addresses in calls for at in addresses}
    read_by_torch = {model.model.embed_tokens.weight.data_ptr(), model.lm_head.weight.data_ptr()}
    assert given == set(decoder._weights) - read_by_torch
    recorded = decoder.graphs
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
    decoder.forget()
    assert decoder.graphs is recorded
    after = said(decoder)
    plain = said(Decoder(model, slots=4, context=32, end_ids=frozenset(), chunk=3))
    assert after[0] == plain[0] and after[0] != before[0]
    model.model.norm.weight.data = model.model.norm.weight.data.clone()
    decoder.forget()
    assert decoder.graphs is not recorded


def test_without_them_if_they_fail_when_recorded(caplog):
    model = model_of(dtype=torch.bfloat16)
    decoder = decoder_of(model, SimpleNamespace(add_norm=lambda *_: 1 / 0))
    ids, _ = said(decoder)
    assert len(ids) == 14 and decoder.lean is None and decoder.fuser.wanted and decoder.graphs
    assert "decoding without streamed weights: division" in caplog.text
    assert "without torch.compile" not in caplog.text


def test_they_need_no_compiler(caplog):
    """What draws is compiled beside them: if that fails it is drawn plainly, and they stay."""
    calls = []
    decoder = decoder_of(model_of(dtype=torch.bfloat16), counted(calls))
    decoder.fuser.compiled = lambda _: lambda *_, **__: 1 / 0
    ids, _ = said(decoder)
    assert len(ids) == 14 and decoder.graphs and decoder.lean is not None and not decoder.fuser.wanted
    assert caplog.text.count("decoding without") == 1
    assert "decoding without streamed weights with torch.compile: division" in caplog.text
    decoder.graphs.clear()
    calls.clear()
    assert len(said(decoder)[0]) == 14 and calls and caplog.text.count("decoding without") == 1


@pytest.mark.parametrize("inside", [False, True])
def test_memory_that_is_short_ends_the_recordings_of_one_size_alone(caplog, monkeypatch, inside):
    decoder = decoder_of(model_of(dtype=torch.bfloat16))
    record, tried = decoder.graphs.record, []

    def short(key, work, *, warm):
        if key[0] == "step":
            tried.append(key)
            try:
                raise torch.OutOfMemoryError("too much")
            except torch.OutOfMemoryError:
                if inside:  # as a recording that is broken off tells of it
                    raise RuntimeError("capture failed") from None
                raise
        record(key, work, warm=warm)

    monkeypatch.setattr(decoder.graphs, "record", short)
    ids, _ = said(decoder)
    assert len(ids) == 14 and len(tried) == 1 and caplog.text.count("not recorded") == 1
    assert decoder.lean is not None and decoder.fuser.wanted and decoder.graphs is not None
    monkeypatch.setattr(decoder.graphs, "record", record)
    decoder._too_large.clear()
    assert said(decoder)[0] == ids and any(key[0] == "step" for key in decoder.graphs)


def test_whether_they_are_used_is_said_once(caplog):
    caplog.set_level("INFO")
    model = model_of(dtype=torch.bfloat16)
    Decoder(model, slots=2, context=32, end_ids=frozenset())
    assert not caplog.text  # nobody expects them without a card
    decoder = decoder_of(model)
    decoder.stream = False
    check(decoder)
    assert not caplog.text  # nobody asked
    decoder.stream = True
    for lean, told in (
        (lean_of(model), "decoding with streamed weights, up to 64 rows"),
        (None, "decoding without streamed weights: they need Triton and a Hopper card"),
        (
            lean_of(model_of()),
            "decoding without streamed weights: its weights are not all of the same 16 bits",
        ),
        (lean_of(model, SimpleNamespace()), "decoding without streamed weights: "),
    ):
        caplog.clear()
        decoder.lean = lean
        check(decoder)
        assert len(caplog.messages) == 1 and caplog.messages[0].startswith(told)


def test_kernels_are_tried_on_the_models_own_device(monkeypatch):
    """Triton launches where the current device is, whatever the tensors."""
    inside = []

    @contextmanager
    def device_of(weight):
        inside.append(weight)
        yield
        inside.clear()

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    checked = []
    monkeypatch.setattr(decode, "check", lambda _: checked.append(list(inside)))
    model = model_of()
    Decoder(model, slots=1, context=8, end_ids=frozenset())
    assert checked[0][0] is next(model.parameters())


def test_at_the_door_they_make_their_largest_step_with_every_slot():
    """20 slots are decoded in steps of 32 rows; each has a sequence of ordinary ids, none begins the list."""
    model, sizes, seen = model_of(dtype=torch.bfloat16), [], []
    decoder = decoder_of(model, slots=20)
    decoder.lean = lean_of(
        model,
        SimpleNamespace(**vars(STREAMS) | {"turn": lambda *a: (sizes.append(a[6].tolist()), turn(*a))[1]}),
    )
    model.register_forward_pre_hook(
        lambda _, __, given: seen.append(given["input_ids"].clone()), with_kwargs=True
    )
    check(decoder)
    assert sizes == [[*range(20), *[20] * 12]] * 2 * SMALL["num_hidden_layers"]
    assert seen[0].shape == (20, 8) and len({tuple(row) for row in seen[0].tolist()}) == 6  # 48 ids / 8
    assert seen[0].min() >= 24 and seen[0].max() < 72 and len(seen[0].unique()) == 48


def test_at_the_door_sequences_are_longer_where_that_is_cheap():
    decoder = decoder_of(model_of())
    assert door._ordinary(decoder, 3).shape == (3, 8)
    decoder.cpu = False
    assert door._ordinary(decoder, 3).shape == (3, 32)  # no more than fits
    decoder.context = 600
    assert door._ordinary(decoder, 3).shape == (3, 72)  # more than a block of keys


def test_at_the_door_they_may_be_off_by_rounding_alone(caplog):
    """4 % would pass for 16 bits alone, but not beside layers that are off by less on the same ids."""
    model = model_of(dtype=torch.bfloat16)

    def larger(*given):
        total, normed = add_norm(*given)
        return total, normed * 1.05

    decoder = decoder_of(model, SimpleNamespace(**vars(STREAMS) | {"add_norm": larger}))
    check(decoder)
    assert decoder.lean is None and "(off by 0.0" in caplog.text


def test_at_the_door_they_must_say_the_same(caplog):
    model = model_of(dtype=torch.bfloat16)
    decoder = decoder_of(model)
    check(decoder)
    assert decoder.lean is not None and not caplog.text
    wrong = {
        "gated": lambda x, gate, *_: x @ gate.T,
        **{k: v for k, v in vars(STREAMS).items() if k != "gated"},
    }
    model.lm_head.weight.data.copy_(model.model.layers[-1].mlp.down_proj.weight.data.T[:96] * 50)
    model.model.layers[-1].mlp.down_proj.weight.data.mul_(50)
    decoder.lean = lean_of(model, SimpleNamespace(**wrong))
    check(decoder)
    assert decoder.lean is None and "without streamed weights: they say something else" in caplog.text
    decoder.lean = lean_of(model, SimpleNamespace())
    check(decoder)
    assert decoder.lean is None and "has no attribute" in caplog.text
    decoder.lean = lean_of(model_of(), SimpleNamespace())  # a model it does not take is not tried
    check(decoder)
    assert decoder.lean is not None
