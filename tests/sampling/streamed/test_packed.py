"""Layers for packed prompts: the logits of the model itself, and only for models they support."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, MistralConfig, Qwen2Config

from mapo.sampling import decoder as decode
from mapo.sampling.decoder import Decoder
from mapo.sampling.draw import PendingRead
from mapo.sampling.streamed import packed
from mapo.sampling.streamed.packed import PackedLayers, packed_layers_for
from support.streamed_models import STREAMS, PackedKernel, model_of

READS = [[3, 9], [[1, 2], [3, 4, 5]]]


def layers_of(model, streams=STREAMS):
    return PackedLayers(model, streams, PackedKernel().attend_packed, processors=1)


@pytest.fixture
def supported(monkeypatch):
    """Models of 32 bits count as supported: the kernels here are in torch."""
    monkeypatch.setattr(PackedLayers, "incompatibility", lambda _: "")
    monkeypatch.setattr(decode, "packed_layers_for", lambda model, _: layers_of(model))


def decoder_with(kernel, model):
    decoder = Decoder(model, slots=3, context=64, end_ids=frozenset())
    decoder.kernels = kernel
    ids = decoder._check_ids(3)
    with torch.no_grad():
        decoder._check_packed(ids, model(input_ids=ids).logits, 1e-3)
    return decoder


@pytest.mark.parametrize(
    ("kind", "more"), [(LlamaConfig, {}), (Qwen2Config, {}), (MistralConfig, {"sliding_window": 9})]
)
def test_answers_are_those_of_the_models_own_layers(kind, more, supported):
    model = model_of(kind, **more)
    plain = Decoder(model, slots=3, context=64, end_ids=frozenset())
    fast = decoder_with(PackedKernel(), model)
    assert fast.packed_layers is not None and fast.reads_with_kernel
    ids = torch.randint(0, 96, (3, 40), generator=torch.Generator().manual_seed(0)).tolist()
    for start, end in ((0, 12), (12, 40)):
        reads = [PendingRead(slot, start, ids[slot][start : end - slot], *READS) for slot in range(3)]
        ours, expected = fast.read(reads), plain.read(reads)
        for slot in range(3):
            for place, other in zip(ours[slot], expected[slot], strict=True):
                assert place == pytest.approx(other, abs=1e-4)
    assert not any("forward" in vars(module) for module in model.modules())


def test_layers_with_other_logits_are_left_out(monkeypatch, supported, caplog):
    wrong = type("Wrong", (), vars(STREAMS) | {"silu_product": staticmethod(lambda gate, up: gate * up)})
    monkeypatch.setattr(decode, "packed_layers_for", lambda model, _: layers_of(model, wrong))
    decoder = decoder_with(PackedKernel(), model_of())
    assert decoder.packed_layers is None and decoder.reads_with_kernel
    assert "reading with the model's own layers: their logits differ" in caplog.text


def test_a_model_that_was_changed_goes_on_with_its_own_layers(monkeypatch, supported):
    decoder = decoder_with(PackedKernel(), model_of())
    monkeypatch.setattr(PackedLayers, "incompatibility", lambda _: "it has adapters")
    decoder.forget()
    assert decoder.packed_layers is None


def test_they_need_kernels(monkeypatch):
    assert packed_layers_for(model_of(), None) is None
    monkeypatch.setattr(packed.importlib, "import_module", lambda _: STREAMS)
    made = packed_layers_for(model_of(), PackedKernel())
    assert made is not None and made.incompatibility() == (
        "its weights are not all aligned 16-bit parameters of one dtype on one device"
    )


def test_without_triton_there_are_none(monkeypatch):
    def missing(_):
        raise ImportError

    monkeypatch.setattr(packed.importlib, "import_module", missing)
    assert packed_layers_for(model_of(), PackedKernel()) is None
