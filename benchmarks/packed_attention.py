"""Measure the attention kernel for packed prompts on a GPU, in several tilings and beside torch's attention.

    .venv/bin/python benchmarks/packed_attention.py [--prompts 32] [--new 215] [--past 2500]

Prints milliseconds per call, teraflops and the relative difference to torch's result, in the shape of a 1.5B
model (12 heads, 2 of keys, 128 wide).
"""

from __future__ import annotations

import argparse
import itertools

import torch
from torch.nn import functional

from mapo.sampling.kv_cache import tiles_of

HEADS, KV_HEADS, DIM, CONTEXT = 12, 2, 128, 8192


def milliseconds(work, times: int = 20) -> float:
    for _ in range(3):
        work()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(times):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--new", type=int, default=215)
    parser.add_argument("--past", type=int, default=2500)
    options = parser.parse_args()
    from mapo.sampling import kernels  # needs Triton

    torch.manual_seed(0)
    count, new, past = options.prompts, options.new, options.past
    like = {"device": "cuda", "dtype": torch.bfloat16}
    keys, values = torch.randn(2, count + 1, KV_HEADS, CONTEXT, DIM, **like)
    query = torch.randn(1, count * new, HEADS, DIM, **like).transpose(1, 2)
    pieces = [(slot, past, new) for slot in range(count)]
    flops = 4 * HEADS * DIM * count * (new * past + new * (new + 1) / 2)

    mask = torch.ones(new, past + new, dtype=torch.bool, device="cuda").tril(past)
    q = query.view(HEADS, count, new, DIM).transpose(0, 1)

    def plain() -> torch.Tensor:
        k, v = keys[:count, :, : past + new], values[:count, :, : past + new]
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.1, enable_gqa=True)
        return out.transpose(1, 2).reshape(1, count * new, HEADS, DIM)

    expected = plain().float()

    def show(name: str, work) -> None:
        try:
            time = milliseconds(work)
            off = float((work().float() - expected).norm() / expected.norm())
            print(f"{name}: {time:.3f} ms, {flops / time / 1e9:.0f} TFLOP/s, off {off:.1e}", flush=True)
        except Exception as problem:  # noqa: BLE001 (a tiling that does not fit)
            print(f"{name}: {str(problem).splitlines()[0][:100]}", flush=True)

    for rows, block, warps, stages in itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4)):
        if rows // warps < 16:
            continue
        kernels.PACKED_ROWS = rows
        tiles = torch.tensor(tiles_of(pieces, rows), dtype=torch.int32, device="cuda")
        cut = {"block": block, "warps": warps, "stages": stages}
        name = f"rows {rows}, block {block}, warps {warps}, stages {stages}"
        show(name, lambda t=tiles, c=cut: kernels.attend_packed(query, keys, values, t, scale=0.1, **c))
    show("torch", plain)


if __name__ == "__main__":
    main()
