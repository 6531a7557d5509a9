"""The engine room: recorded steps, adapters, models that are refused, training left alone."""

from __future__ import annotations

import pytest
import torch

from mapo.errors import InputError
from mapo.sampling.decoder import Decoder
from mapo.sampling.draw import PendingRead
from mapo.sampling.kv_cache import PackedRows, slot_attention, tiles_of
from support import tiny
from support.sampled import Recordings, check_against, job, sampler, talk, together
from support.streamed_models import PackedKernel


def test_recorded_steps_say_the_same():
    """On a GPU rows are padded with scratch, steps run past a reply's end, inputs are static: same tokens."""
    talks = [lambda s, i=i: talk(s.policy(job(str(i))), 4, seed=i, max_tokens=1 + 3 * i) for i in range(7)]
    plain = together(sampler(slots=5, context=600), *talks)
    made = sampler(slots=5, context=600)
    made.decoder.graphs = Recordings()
    recorded = together(made, *talks)
    assert {key[0] for key in made.decoder.graphs} == {"enter", "step"}
    for a, b in zip(plain, recorded, strict=True):
        assert [r.token_ids for r in a] == [r.token_ids for r in b]
        check_against(made.decoder.model, b)


@pytest.mark.parametrize(
    ("family", "kind"), [("gemma", "gemma2"), ("gemma", "gemma3"), ("chatml", "mistral"), ("qwen3", "qwen3")]
)
def test_padded_prefills_say_the_same(family, kind):
    """On a CPU prompts enter in one line, without padding; on a GPU in padded rows, whose shapes recur."""
    made = sampler(family, kind, slots=3, context=900)
    made.decoder.graphs = Recordings()
    talks = [lambda s, i=i: talk(s.policy(job(str(i))), 3, seed=i, max_tokens=4 + i) for i in range(4)]
    for replies in together(made, *talks):
        check_against(made.decoder.model, replies)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["llama", "gemma2", "gemma3", "mistral"])
def test_long_and_short_pieces_in_one_line_say_what_whole_rows_say(kind):
    """Past 64 ids keys are repeated; windows and soft caps hold there too, and for what was in the slot."""
    model = tiny.model(kind).eval()
    decoder = Decoder(model, slots=5, context=400, end_ids=frozenset())
    torch.manual_seed(0)
    rows = [torch.randint(0, 400, (n,)) for n in (200, 130, 66, 3, 80)]
    cuts = [70, 64, 65, 2, 1]
    with slot_attention(decoder.configs):
        first = [(slot, 0, cut) for slot, cut in enumerate(cuts)]
        decoder.forward(
            torch.cat([row[:cut] for row, cut in zip(rows, cuts, strict=True)])[None], PackedRows(first)
        )
        then = [(slot, cut, len(rows[slot]) - cut) for slot, cut in enumerate(cuts)]
        rest = torch.cat([row[cut:] for row, cut in zip(rows, cuts, strict=True)])
        told = decoder.forward(rest[None], PackedRows(then))
    for said, row in zip(told, rows, strict=True):
        plain = model(input_ids=row[None], use_cache=False).logits[0, -1]
        torch.testing.assert_close(said, plain, rtol=1e-4, atol=1e-5)


def test_a_model_that_cannot_be_recorded_is_decoded_plainly(caplog):
    made = sampler()
    made.decoder.graphs = Recordings()
    made.decoder.graphs.record = lambda *_, **__: 1 / 0
    (replies,) = together(made, lambda s: talk(s.policy(job()), 2))
    assert made.decoder.graphs is None and "without CUDA graphs" in caplog.text
    check_against(made.decoder.model, replies)


def test_adapters_are_sampled_through():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(tiny.model(), peft.LoraConfig(r=4, target_modules="all-linear"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.2)
    made = sampler(model=model, context=600)
    found = together(made, *(lambda s, i=i: talk(s.policy(job(str(i))), 2, seed=i) for i in range(3)))
    for replies in found:
        check_against(model, replies)


def test_training_goes_on_with_the_models_own_attention():
    model = tiny.model().train()
    made = sampler(model=model)
    assert model.training
    together(made, lambda s: talk(s.policy(job()), 1))
    assert model.config._attn_implementation == "sdpa"
    model.train()(input_ids=torch.tensor([[5, 6, 7]])).logits.sum().backward()
    assert model.lm_head.weight.grad is not None


class Odd(torch.nn.Module):
    """A model that makes nothing of `dropped`, an argument of its forward pass."""

    def __init__(self, dropped):
        super().__init__()
        self.inner, self.dropped = tiny.model(), dropped

    def get_output_embeddings(self):
        return self.inner.lm_head

    def forward(self, **given):
        return self.inner(**{name: value for name, value in given.items() if name != self.dropped})


def test_a_model_that_cannot_run_on_slots_is_refused():
    with pytest.raises(InputError, match="other logits with the slot cache"):
        sampler(model=Odd("position_ids"))
    with pytest.raises(InputError, match="cannot run with the slot cache"):
        sampler(model=Odd("past_key_values"))
    with pytest.raises(InputError, match="too small"):
        sampler(slots=0)


def test_a_model_with_layers_of_another_kind_is_refused():
    model = tiny.model()
    model.config.layer_types = ["full_attention", "linear_attention", "full_attention"]
    with pytest.raises(InputError, match="layers of type full_attention, linear_attention"):
        sampler(model=model)


def test_kernels_that_fail_at_the_door_are_left_out(caplog):
    decoder = sampler().decoder
    decoder.kernels = object()
    decoder._check()
    assert decoder.kernels is None and "decoding without Triton" in caplog.text
    decoder.graphs = Recordings()
    assert "(no streamed weights: Triton failed: " in decoder.description


def padding_decoder(kernels=None):
    """Return a decoder that reads in padded rows, as on a GPU, unless it has a kernel."""
    decoder = Decoder(tiny.model().eval(), slots=3, context=128, end_ids=frozenset())
    decoder.graphs = Recordings()
    if kernels:
        decoder.kernels = kernels
        ids = decoder._check_ids(3)
        with torch.no_grad():
            decoder._check_packed(ids, decoder.model(input_ids=ids).logits, 1e-3)
    return decoder


def reads_of(start, ids):
    return [
        PendingRead(
            slot, start, row[start:], [len(row) - start - 9, len(row) - start - 2], [[1, 2], [3, 4, 5]]
        )
        for slot, row in enumerate(ids)
    ]


def test_answers_are_the_same_however_prompts_are_batched():
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(0, 300, (n,), generator=generator).tolist() for n in (40, 55, 120)]
    kernel = PackedKernel()
    decoders = [padding_decoder(), padding_decoder(kernel)]
    decoders.append(Decoder(tiny.model().eval(), slots=3, context=128, end_ids=frozenset()))
    checked = kernel.calls
    padded, with_kernel, packed = (
        [answers for cut in (0, 20) for _, answers in sorted(decoder.read(reads_of(cut, ids)).items())]
        for decoder in decoders
    )
    assert kernel.calls > checked > 0
    for a, b, c in zip(padded, with_kernel, packed, strict=True):
        for place, other, third in zip(a, b, c, strict=True):
            assert place == pytest.approx(other, abs=1e-4) == third


@pytest.mark.parametrize(
    ("kernel", "message"), [(PackedKernel(wrong=0.5), "their logits differ"), (object(), "no attribute")]
)
def test_a_wrong_kernel_for_packed_prompts_is_left_out(kernel, message, caplog):
    decoder = padding_decoder(kernel)
    assert not decoder.reads_with_kernel and not decoder.packs_reads
    assert "reading without the attention kernel" in caplog.text and message in caplog.text


def test_tiles_cover_all_pieces_and_start_with_the_longest():
    assert tiles_of([(7, 0, 5), (3, 100, 33)], 16) == [
        (3, 132, 37, 1),
        (3, 116, 21, 16),
        (3, 100, 5, 16),
        (7, 0, 0, 5),
    ]
