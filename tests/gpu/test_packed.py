"""Answers read from packed prompts on a real card, beside those of padded rows and torch's attention."""

from __future__ import annotations

import pytest
import torch

from mapo.sampling.decoder import Decoder
from mapo.sampling.draw import PendingRead
from support.streamed_checks import model_of, sharpen, why_not

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # drivers and compilers have their own
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "-"),
]


@pytest.mark.parametrize("name", ["qwen2", "llama", "mistral"])
def test_packed_prompts_give_the_same_answers(name):
    model = model_of(name)
    sharpen(model)
    packed, padded = (
        Decoder(model, slots=12, context=4096, end_ids=frozenset(), attention=attention, graphs=False)
        for attention in ("triton", "sdpa")
    )
    assert packed.packed_layers is not None and packed.reads_with_kernel and not padded.packs_reads
    ids = [
        torch.randint(0, 512, (n,)).tolist()
        for n in (3900, 2049, 130, 64, 65, 20, 3333, 700, 40, 129, 128, 15)
    ]
    for cut in (0, 1, 12):  # as much of every prompt is cached
        reads = [
            PendingRead(slot, cut, row[cut:], [0, 2], [[1, 2, 3], [4, 5]]) for slot, row in enumerate(ids)
        ]
        ours, expected = packed.read(reads), padded.read(reads)
        for slot in range(len(ids)):
            for place, other in zip(ours[slot], expected[slot], strict=True):
                assert place == pytest.approx(other, abs=0.1)
    tail = [PendingRead(slot, len(row) - 10, row[-10:], [9], [[1, 2, 3]]) for slot, row in enumerate(ids)]
    ours, expected = packed.read(tail), padded.read(tail)
    for slot in range(len(ids)):
        assert ours[slot][0] == pytest.approx(expected[slot][0], abs=0.1)
