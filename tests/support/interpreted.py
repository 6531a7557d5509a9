"""The Triton kernels beside torch, in Triton's interpreter: test_kernels.py runs it as a process of its own.

The interpreter multiplies bfloat16 as if it were whole numbers, so 16 bits are float16 here.
"""

from __future__ import annotations

import torch
from torch.nn import functional
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config

from mapo.sampling import kernels
from mapo.sampling.decoder import Decoder
from mapo.sampling.draw import PendingRead
from mapo.sampling.kv_cache import PackedRows, View, _attend_pieces, slot_attention, tiles_of
from mapo.sampling.streamed import kernels as streams
from mapo.sampling.streamed.layers import StreamedLayers
from mapo.sampling.streamed.tiling import AttentionCut, MatmulTile, head_tile


def check_products() -> None:
    x, up = torch.randn(5, 192), torch.randn(96, 192)
    weights = [torch.randn(n, 192) for n in (96, 40, 72)]
    for splits in (1, 2, 3):
        tile = MatmulTile(32, 64, 2, splits)
        for some in (weights, weights[:2], weights[:1]):
            parts = streams.product(x, some, tile)
            assert parts.shape[0] == splits
            assert_close(parts.sum(0), x @ torch.cat(some).T, atol=1e-3, rtol=1e-4)
    assert streams.product(x, weights, MatmulTile(32, 64, 2, 16)).shape[0] == 3  # blocks of depth there are
    expected = functional.silu(x @ weights[0].T) * (x @ up.T)
    assert_close(streams.gated(x, weights[0], up, MatmulTile(32, 64, 2)), expected, atol=1e-3, rtol=1e-4)


def check_add_norm() -> None:
    x, parts, weight = torch.randn(5, 192), torch.randn(3, 5, 192), torch.randn(192)
    for some, expected in ((parts, x + parts.sum(0)), (None, x)):
        total, normed = streams.add_norm(some, x, weight, 1e-6)
        assert_close(total, expected)
        assert_close(normed, functional.rms_norm(expected, (192,), weight, 1e-6))


def check_attention() -> None:
    """Of dimensions and rows that are cut in different ways, beside torch's."""
    shapes = [(3, 4, 2, 32, None, cut) for cut in (None, AttentionCut(1), AttentionCut(4, 32, 4))]
    shapes += [
        (2, 2, 1, 128, None, None),
        (2, 2, 1, 128, 40, AttentionCut(1, 32, 4)),
        (140, 2, 1, 16, 9, None),
    ]
    for rows, heads, kv_heads, dim, window, cut in shapes:
        keys, values = torch.randn(2, rows + 1, kv_heads, 192, dim)
        query, slots = torch.randn(rows, heads, 1, dim), torch.randperm(rows)
        positions = torch.randint(0, 192, (rows, 1))
        found = kernels.attend(query, keys, values, slots, positions, scale=dim**-0.5, window=window, cut=cut)
        at = torch.arange(192)
        seen = (at <= positions) & (at > positions - (window or 192))
        expected = functional.scaled_dot_product_attention(
            query, keys[slots], values[slots], attn_mask=seen[:, None, None], enable_gqa=True
        )
        assert_close(found, expected.transpose(1, 2), atol=1e-4, rtol=1e-4)


def check_packed_attention() -> None:
    """Of pieces of different lengths and pasts, beside torch's. What was never written is not read."""
    pieces = [(2, 0, 5), (0, 60, 140), (4, 63, 1), (1, 64, 129)]
    shapes = [(4, 2, 32, None, None), (6, 1, 16, 7, None), (2, 2, 24, 100, 3.0), (2, 1, 64, None, 3.0)]
    for heads, kv_heads, dim, window, cap in shapes:
        keys, values = torch.randn(2, 6, kv_heads, 224, dim)
        keys[:, :, 200:] = values[:, :, 200:] = float("nan")
        query = torch.randn(1, sum(count for *_, count in pieces), heads, dim).transpose(1, 2)
        tiles = torch.tensor(tiles_of(pieces, kernels.PACKED_ROWS), dtype=torch.int32)
        options = {"scale": dim**-0.5, "window": window, "softcap": cap}
        actual = kernels.attend_packed(query, keys, values, tiles, **options)
        expected = _attend_pieces(PackedRows(pieces), query, keys, values, dim**-0.5, window, cap)
        assert_close(actual, expected, atol=1e-4, rtol=1e-4)


def check_reads(kind: type, dtype: torch.dtype, size: int, **more: object) -> None:
    """Of a decoder that packs prompts for the kernels, beside one that does not."""
    config = kind(
        vocab_size=96, hidden_size=128, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, **more,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    for weight in model.parameters():
        weight.data.add_(torch.randn_like(weight) * (0.3 if weight.dim() == 1 else 0.05))
    kernel, plain = (
        Decoder(model, slots=3, context=256, end_ids=frozenset(), attention=attention)
        for attention in ("triton", "sdpa")
    )
    assert kernel.reads_with_kernel and not plain.reads_with_kernel
    assert (kernel.packed_layers is not None) == (dtype == torch.float16)
    off = 1e-4 if dtype == torch.float32 else 2e-2
    ids = torch.randint(0, 96, (3, size)).tolist()
    for start, end in ((0, 14), (14, size)):
        reads = [
            PendingRead(slot, start, ids[slot][start : end - slot], [3, 9], [[1, 2], [3, 4, 5]])
            for slot in range(3)
        ]
        ours, expected = kernel.read(reads), plain.read(reads)
        for slot in range(3):
            for place, other in zip(ours[slot], expected[slot], strict=True):
                assert_close(torch.tensor(place), torch.tensor(other), atol=off, rtol=off)


def check_layers(kind: type, dtype: torch.dtype, **more: object) -> None:
    """Two steps of three dialogues, with biases and norms that are not trivial, beside the model itself."""
    sizes = {"vocab_size": 96, "hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    config = kind(**sizes | more)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    for name, weight in model.named_parameters():
        scale = 0.3 if "norm" in name or name.endswith("bias") else 0.05
        weight.data.add_(torch.randn_like(weight) * scale)
    decoder = Decoder(model, slots=4, context=32, end_ids=frozenset())
    streamed = StreamedLayers(model, streams, kernels.attend, processors=132)
    assert streamed.accepts(3) or dtype == torch.float32
    ids, at = torch.randint(0, 96, (3, 8)), torch.arange(8).repeat(3, 1)
    plain, slots = model(input_ids=ids, use_cache=False).logits, torch.tensor([2, 0, 3])
    with slot_attention(decoder.configs):
        decoder.forward(ids[:, :6], View(slots, at[:, :6], 6, scratch=4))
        with decoder.fuser.on(streamed.swaps()):
            for n in (6, 7):
                view = View(slots, at[:, n : n + 1].contiguous(), 32, scratch=4)
                found = decoder.forward(ids[:, n : n + 1], view)
                off = 1e-4 if dtype == torch.float32 else 2e-2
                assert_close(found.float(), plain[:, n].float(), atol=off, rtol=off)


@torch.no_grad()
def main() -> None:
    torch.manual_seed(0)
    check_products()
    check_add_norm()
    check_attention()
    check_packed_attention()
    check_reads(Qwen2Config, torch.float32, 150)
    check_reads(Qwen2Config, torch.float16, 28)
    check_reads(MistralConfig, torch.float16, 28, sliding_window=9)
    check_layers(Qwen2Config, torch.float32)
    check_layers(Qwen2Config, torch.float16)
    check_layers(MistralConfig, torch.float16, sliding_window=4)
    check_layers(LlamaConfig, torch.float16, tie_word_embeddings=True)
    # Wide enough for a head of its own kernel, which has no other test without a card.
    wide = {"hidden_size": 2048, "intermediate_size": 256, "num_attention_heads": 16}
    assert head_tile(wide["hidden_size"]) is not None
    check_layers(Qwen2Config, torch.float16, **wide)


if __name__ == "__main__":
    main()
