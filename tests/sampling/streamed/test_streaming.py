"""Steps are recorded with streamed weights where they can be; a run says so, and goes on without them."""

from __future__ import annotations

import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from transformers import Qwen2Config

from mapo.sampling import decoder as decode
from mapo.sampling.decoder import Decoder
from mapo.sampling.draw import PendingReply, noise_of
from mapo.sampling.local import local_sampler
from mapo.train.callbacks import Callbacks
from mapo.train.setup import note_decoding
from support import small_run as small
from support import tiny
from support.sampled import job, sampler, talk, together
from support.streamed_models import (
    SMALL,
    STREAMS,
    add_norm,
    as_on_a_card,
    counted,
    decoder_of,
    model_of,
    said,
    streamed_of,
    turn,
)

# Rotary positions of some models are made with a function that torch.jit warns about.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


def test_they_are_used_without_being_asked(monkeypatch):
    model, calls = model_of(dtype=torch.bfloat16), []
    as_on_a_card(monkeypatch, counted(calls), model)
    for asked, streamed in (({}, True), ({"stream": False}, False)):
        calls.clear()
        decoder = Decoder(model, slots=4, context=32, end_ids=frozenset(), chunk=3, **asked)
        assert bool(calls) == streamed  # at the door
        calls.clear()
        assert len(said(decoder)[0]) == 14 and bool(calls) == streamed
        assert decoder.stats.streamed == (decoder.stats.steps if streamed else 0) and decoder.stats.steps


def test_a_sampler_uses_them_without_being_asked(monkeypatch):
    model = model_of(dtype=torch.bfloat16, vocab_size=448, max_position_embeddings=512)
    as_on_a_card(monkeypatch, model=model)
    for asked, streamed in (({}, True), ({"stream": False}, False)):
        made = sampler(model=model, **asked)
        together(made, lambda s: talk(s.policy(job()), 2))
        assert made.stats.streamed == (made.stats.steps if streamed else 0) and made.stats.steps
        assert made.decoding.startswith("streamed weights" if streamed else "the model's own layers")


def test_a_local_model_may_do_without_them(monkeypatch, tmp_path):
    as_on_a_card(monkeypatch)
    folder = folder_of(tmp_path)
    assert "(no streamed weights: its weights are not" in local_sampler(folder, slots=2, context=64).decoding
    made = local_sampler(folder, slots=2, context=64, stream=False)
    assert made.decoding.endswith("(no streamed weights: turned off)")


def folder_of(place):
    """A model that streamed weights are made for, with a tokenizer."""
    words = tiny.tokenizer()
    model_of(dtype=torch.bfloat16, vocab_size=len(words), max_position_embeddings=4096).save_pretrained(place)
    words.save_pretrained(place)
    return str(place)


class Begun(Callbacks):
    """Hears how a run begins, and stops it there."""

    def message(self, text):
        raise EOFError(text)


def test_a_run_says_and_keeps_with_what_it_decodes(monkeypatch, tmp_path):
    folder, out = folder_of(tmp_path / "model"), tmp_path / "run"

    def begins(*asked, resume=True):
        with pytest.raises(EOFError) as told:
            small.trained(folder, out, "model.dtype=bfloat16", *asked, callbacks=Begun(), resume=resume)
        return str(told.value), json.loads((out / "manifest.json").read_text()).get("decoding")

    told, kept = begins(resume=False)  # on a CPU
    assert "Decoder" not in told and kept is None
    as_on_a_card(monkeypatch)
    streamed = "streamed weights, up to 64 rows"
    own = "the model's own layers (no streamed weights: turned off)"
    for _ in range(2):
        told, kept = begins()
        assert told.endswith(f" Decoder: {streamed}.") and kept == [streamed]
    told, kept = begins("model.stream=false")  # makes it slower, and no other run
    assert told.endswith(f" Decoder: {own}.") and kept == [streamed, own]


def test_a_run_that_is_over_keeps_its_manifest(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    note_decoding(tmp_path, "streamed weights")
    kept = (tmp_path / "manifest.json").read_text()
    assert json.loads(kept) == {"decoding": ["streamed weights"]}
    (tmp_path / "summary.json").write_text("{}")
    note_decoding(tmp_path, "something else")
    assert (tmp_path / "manifest.json").read_text() == kept


def test_steps_are_recorded_with_them(monkeypatch):
    model, calls = model_of(Qwen2Config), []
    decoder = decoder_of(model, counted(calls))
    monkeypatch.setattr(decoder.streamed, "accepts", lambda rows: rows == 8)
    ids, logprobs = said(Decoder(model, slots=4, context=32, end_ids=frozenset(), chunk=3))
    found, told = said(decoder)
    assert found == ids and len(ids) == 14
    torch.testing.assert_close(told, logprobs, atol=1e-5, rtol=1e-4)
    steps = 3 + 3 + 3  # to warm up, and of two rounds
    assert sum(name == "turn" for name, _ in calls) == 3 * steps  # layers
    decoder.graphs.clear()
    monkeypatch.setattr(decoder.streamed, "accepts", lambda _: False)
    calls.clear()
    assert said(decoder)[0] == ids and not calls


def test_recordings_see_weights_that_change_in_place(monkeypatch):
    """Kernels get the parameters' own addresses, all of them; if those change, recordings are dropped."""
    model, calls = model_of(Qwen2Config), []
    decoder = decoder_of(model, counted(calls))
    monkeypatch.setattr(decoder.streamed, "accepts", lambda _: True)
    as_on_a_card(monkeypatch, model=model)
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
    assert len(ids) == 14 and decoder.streamed is None and decoder.fuser.wanted and decoder.graphs
    assert "decoding without streamed weights: division" in caplog.text
    assert "without torch.compile" not in caplog.text


def test_what_was_recorded_with_them_goes_with_them(monkeypatch, caplog):
    """Nine rows are recorded with them, in a step of 16; then a step of 8 fails."""
    model, calls = model_of(Qwen2Config), []
    streams = counted(calls)
    whole = streams.product
    streams.product = lambda x, *more: 1 / 0 if len(x) == 8 else whole(x, *more)
    decoder = decoder_of(model, streams, slots=16)
    monkeypatch.setattr(decoder.streamed, "accepts", lambda _: True)
    fresh = [PendingReply(slot, 0, [5 + slot, 6, 7], noise_of(slot, 20)) for slot in range(9)]
    ways = [(fresh, []), ([], range(2)), ([], range(9))]
    found = [decoder.round(*way) for way in ways[:1]]
    assert calls and decoder.stats.streamed == 3 and decoder.description.startswith("the model's own layers")
    calls.clear()
    found += [decoder.round(*way) for way in ways[1:]]
    assert {name for name, _ in calls} <= {"add_norm"}  # what comes before the product that fails
    assert decoder.streamed is None and decoder.stats.streamed == 3 and decoder.stats.steps == 9
    assert "they failed: division by zero" in decoder.description
    assert "decoding without streamed weights: division" in caplog.text
    plain = Decoder(model, slots=16, context=32, end_ids=frozenset(), chunk=3)
    assert [{s: d.ids for s, d in drawn.items()} for drawn in found] == [
        {s: d.ids for s, d in plain.round(*way).items()} for way in ways
    ]


def test_a_model_that_cannot_be_read_is_decoded_with_its_own_layers():
    model = model_of(dtype=torch.bfloat16)
    model.get_decoder = lambda: 1 / 0
    decoder = decoder_of(model)
    decoder._check()
    assert len(said(decoder)[0]) == 14 and decoder.stats.streamed == 0 < decoder.stats.steps
    assert "(no streamed weights: the model cannot be inspected: ZeroDivisionError" in decoder.description


def test_they_need_no_compiler(caplog):
    """What draws is compiled beside them: if that fails it is drawn plainly, and they stay."""
    calls = []
    decoder = decoder_of(model_of(dtype=torch.bfloat16), counted(calls))
    decoder.fuser.compiled = lambda _: lambda *_, **__: 1 / 0
    ids, _ = said(decoder)
    assert len(ids) == 14 and decoder.graphs and decoder.streamed is not None and not decoder.fuser.wanted
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
    assert len(ids) == 14 and len(tried) == 1 and caplog.text.count("no CUDA graph for") == 1
    assert decoder.streamed is not None and decoder.fuser.wanted and decoder.graphs is not None
    monkeypatch.setattr(decoder.graphs, "record", record)
    decoder._too_large.clear()
    assert said(decoder)[0] == ids and any(key[0] == "step" for key in decoder.graphs)


def test_with_what_steps_are_decoded_is_said_once(caplog):
    caplog.set_level("INFO")
    model = model_of(dtype=torch.bfloat16)
    plain = Decoder(model, slots=2, context=32, end_ids=frozenset())
    assert not caplog.text and plain.description == ""  # nobody expects them without a card
    plain.cpu = False
    assert plain.description == "the model's own layers, without CUDA graphs"
    decoder = decoder_of(model)
    for stream, streamed, told in (
        (True, streamed_of(model), "streamed weights, up to 64 rows"),
        (False, None, "the model's own layers (no streamed weights: turned off)"),
        (True, None, "the model's own layers (no streamed weights: they need Triton and a Hopper GPU)"),
        (
            True,
            streamed_of(model_of()),
            "the model's own layers (no streamed weights: its weights are not all",
        ),
    ):
        caplog.clear()
        decoder.stream, decoder.streamed = stream, streamed
        decoder._check()
        assert decoder.description.startswith(told)
        assert caplog.messages == [f"decoding with {decoder.description}"]
    caplog.clear()
    decoder.streamed = streamed_of(model, SimpleNamespace(add_norm=lambda *_: 1 / 0))
    decoder._check()
    assert caplog.messages == ["decoding without streamed weights: division by zero"]
    assert "streamed weights: they failed: division by zero)" in decoder.description


def test_what_a_compiler_tells_is_cut_to_a_line():
    decoder = decoder_of(model_of())
    decoder.streamed, decoder.disabled_reason = None, "they failed: error\n\n  in line 3 " + "of many " * 99
    told = decoder.description
    assert "they failed: error in line 3 of many" in told and "\n" not in told and len(told) < 260


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
    monkeypatch.setattr(decode.Decoder, "_check", lambda _: checked.append(list(inside)))
    model = model_of()
    Decoder(model, slots=1, context=8, end_ids=frozenset())
    assert checked[0][0] is next(model.parameters())


def test_at_the_door_they_make_their_largest_step_with_every_slot():
    """20 slots are decoded in steps of 32 rows; each has a sequence of ordinary ids, none begins the list."""
    model, sizes, seen = model_of(dtype=torch.bfloat16), [], []
    decoder = decoder_of(model, slots=20)
    decoder.streamed = streamed_of(
        model,
        SimpleNamespace(**vars(STREAMS) | {"turn": lambda *a: (sizes.append(a[6].tolist()), turn(*a))[1]}),
    )
    model.register_forward_pre_hook(
        lambda _, __, given: seen.append(given["input_ids"].clone()), with_kwargs=True
    )
    decoder._check()
    assert sizes == [[*range(20), *[20] * 12]] * 2 * SMALL["num_hidden_layers"]
    assert seen[0].shape == (20, 8) and len({tuple(row) for row in seen[0].tolist()}) == 6  # 48 ids / 8
    assert seen[0].min() >= 24 and seen[0].max() < 72 and len(seen[0].unique()) == 48


def test_at_the_door_sequences_are_longer_where_that_is_cheap():
    decoder = decoder_of(model_of())
    assert decoder._check_ids(3).shape == (3, 8)
    decoder.cpu = False
    assert decoder._check_ids(3).shape == (3, 32)  # no more than fits
    decoder.context = 600
    assert decoder._check_ids(3).shape == (3, 72)  # more than a block of keys


def test_at_the_door_they_may_be_off_by_rounding_alone(caplog):
    """4 % would pass for 16 bits alone, but not beside layers that are off by less on the same ids."""
    model = model_of(dtype=torch.bfloat16)

    def larger(*given):
        total, normed = add_norm(*given)
        return total, normed * 1.05

    decoder = decoder_of(model, SimpleNamespace(**vars(STREAMS) | {"add_norm": larger}))
    decoder._check()
    assert decoder.streamed is None and "(relative error 0.0" in caplog.text


def test_at_the_door_they_must_say_the_same(caplog):
    model = model_of(dtype=torch.bfloat16)
    decoder = decoder_of(model)
    decoder._check()
    assert decoder.streamed is not None and not caplog.text
    wrong = {
        "gated": lambda x, gate, *_: x @ gate.T,
        **{k: v for k, v in vars(STREAMS).items() if k != "gated"},
    }
    model.lm_head.weight.data.copy_(model.model.layers[-1].mlp.down_proj.weight.data.T[:96] * 50)
    model.model.layers[-1].mlp.down_proj.weight.data.mul_(50)
    decoder.streamed = streamed_of(model, SimpleNamespace(**wrong))
    decoder._check()
    assert decoder.streamed is None and "without streamed weights: their logits differ" in caplog.text
    decoder.streamed = streamed_of(model, SimpleNamespace())
    decoder._check()
    assert decoder.streamed is None and "has no attribute" in caplog.text
    decoder.streamed = streamed_of(model_of(), SimpleNamespace())  # a model it does not take is not tried
    decoder._check()
    assert decoder.streamed is not None
