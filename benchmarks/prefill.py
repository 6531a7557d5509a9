"""Measure how fast prompts are prefilled, against the card's rate of matrix products.

    .venv/bin/python benchmarks/prefill.py [--shapes 7B:64] [--tokens 512] [--json FILE]

Prefills N new prompts of --tokens ids at once, with random weights and ids:

- plain: the model's own forward pass without a cache, with the logits of the last ids only. One pass over
  all prompts, without padding: what transformers gives.
- replies: mapo's decoder as it begins replies: prompts into the slots of the KV cache, and the first token of
  each sampled.
- reads: the same prompts as those of a judge whose answers are read out: packed into rows without padding.

Columns: seconds; tokens per second; model FLOP/s (2 per weight and token, attention included, the head only
where logits are needed); their share of the measured rate of a matrix product (8192^3) and of the data
sheet's peak. vLLM 0.24 takes 0.70 s for 64 prompts of 512 tokens of the 7B shape on an H200.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from shapes import CUDA, DEVICE, device_name, guarded, measure_shapes, peak_gb, shape_parser, wait
from train_step import matrix_rate

from mapo.sampling.decoder import Decoder
from mapo.sampling.draw import PendingRead, PendingReply, noise_of

VLLM_SECONDS = {("7B", 64, 512): 0.70}
SHEET_FLOPS = {"H100": 989e12, "H200": 989e12}
"""Dense bfloat16 by the data sheet, by a word in the name of the card."""


def model_flops(model: Any, rows: int, tokens: int) -> float:
    """Return the floating-point operations of the prefill of `rows` prompts."""
    config = model.config
    head_dim = config.hidden_size // config.num_attention_heads
    layers = sum(p.numel() for p in model.model.layers.parameters())
    # Scores and values, 2 * 2 operations per pair of positions and dimension, for half of the square.
    attention = 2 * config.num_hidden_layers * config.num_attention_heads * head_dim * tokens**2
    return rows * (2 * layers * tokens + attention + 2 * config.vocab_size * config.hidden_size)


def timed(work: Callable[[], object], repeats: int) -> float:
    """Return the median seconds of a call, after two to warm up."""
    times = []
    for _ in range(2 + repeats):
        wait()
        began = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - began)
    return median(times[2:])


def plain(model: Any, ids: np.ndarray, repeats: int) -> float:
    batch = torch.from_numpy(ids).to(DEVICE)

    @torch.no_grad()
    def work() -> None:
        model(input_ids=batch, use_cache=False, logits_to_keep=1)

    return timed(work, repeats)


def replies(decoder: Decoder, ids: np.ndarray, repeats: int) -> float:
    fresh = [PendingReply(slot, 0, row, noise_of(slot, 1)) for slot, row in enumerate(ids.tolist())]
    return timed(lambda: decoder.round(fresh, []), repeats)


def reads(decoder: Decoder, ids: np.ndarray, repeats: int) -> float:
    last = ids.shape[1] - 1
    pending = [PendingRead(slot, 0, row, [last], [[1, 2]]) for slot, row in enumerate(ids.tolist())]
    return timed(lambda: decoder.read(pending), repeats)


def measure(model: Any, shape: str, rows: int, rate: float, args: argparse.Namespace) -> list[dict[str, Any]]:
    ids = np.random.default_rng(0).integers(10, 2000, (rows, args.tokens))
    flops = model_flops(model, rows, args.tokens)
    sheet = next((peak for word, peak in SHEET_FLOPS.items() if word in device_name()), None)
    decoder = guarded(
        "decoder", lambda: Decoder(model, slots=rows, context=args.tokens + 64, end_ids=frozenset())
    )
    ways = {"plain": lambda: plain(model, ids, args.repeats)}
    if decoder:
        ways["replies"] = lambda: replies(decoder, ids, args.repeats)
        ways["reads"] = lambda: reads(decoder, ids, args.repeats)
        kernel = "yes" if decoder.reads_with_kernel else "no"
        print(f"attention kernel: {kernel}; packed layers: {'yes' if decoder.packed_layers else 'no'}")
    print(f"{shape}: {rows} prompts of {args.tokens} tokens, {flops / 1e12:.2f} TFLOP\n")
    print("| way | seconds | tokens/s | TFLOP/s | of matrix product | of data sheet | peak GB |")
    print("|---|---|---|---|---|---|---|")
    results = []
    for name, way in ways.items():
        seconds = guarded(name, way)
        if seconds is not None:
            row = {"shape": shape, "prompts": rows, "tokens": args.tokens, "way": name, "seconds": seconds}
            row |= {"flops": flops / seconds, "of_product": flops / seconds / rate, "peak_gb": peak_gb()}
            results.append(row | {"of_sheet": flops / seconds / sheet if sheet else None})
            show(results[-1])
    if vllm := VLLM_SECONDS.get((shape, rows, args.tokens)):
        print(
            f"| vLLM 0.24, H200 | {vllm:.3f} | {rows * args.tokens / vllm:,.0f} | {flops / vllm / 1e12:.1f} |"
        )
    return results


def show(row: dict[str, Any]) -> None:
    cells = [
        row["way"],
        f"{row['seconds']:.3f}",
        f"{row['prompts'] * row['tokens'] / row['seconds']:,.0f}",
        f"{row['flops'] / 1e12:.2f}",
        f"{row['of_product']:.2f}",
        "" if row["of_sheet"] is None else f"{row['of_sheet']:.2f}",
        "" if row["peak_gb"] is None else f"{row['peak_gb']}",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = shape_parser(__doc__, "1.5B:64,7B:64" if CUDA else "2M:4", rows="PROMPTS")
    parser.add_argument("--tokens", type=int, default=512 if CUDA else 64, help="ids of each prompt")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    rate = matrix_rate()
    print(f"{device_name()}, torch {torch.__version__}: matrix product {rate / 1e12:.2f} TFLOP/s", flush=True)
    measure_shapes(
        args, lambda model, shape, rows: measure(model, shape, rows, rate, args), matrix_flops=rate
    )


if __name__ == "__main__":
    main()
