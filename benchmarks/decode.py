"""Measure decoding speed against `generate` and against the limit set by memory bandwidth.

    .venv/bin/python benchmarks/decode.py [--shapes 135M:64,135M:256,7B:64] [--variants ...] [--json FILE]

Times a decode step of N dialogues with about 540 tokens each and random weights: `model.generate` (time for
many tokens minus time for one), transformers' continuous batching, and mapo's decoder in each variant. The
floor is the size of weights and KV cache divided by the measured copy bandwidth. benchmarks/talks.py measures
whole dialogues.

Uses bfloat16 on a GPU, and small shapes in float32 on a CPU, where only ratios are meaningful. A variant that
fails is reported, and the others are still measured.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from shapes import (
    CUDA,
    DEVICE,
    DTYPE,
    VARIANTS,
    add_decoding_options,
    device_name,
    guarded,
    measure_shapes,
    parse_variants,
    peak_gb,
    shape_parser,
    wait,
)
from transformers import GenerationConfig

from mapo.sampling.decoder import Decoder
from mapo.sampling.draw import PendingReply, noise_of

PROMPT = 512 if CUDA else 128
STEPS = 64 if CUDA else 16


def seconds(work, times: int) -> float:
    work()
    wait()
    began = time.perf_counter()
    for _ in range(times):
        work()
    wait()
    return (time.perf_counter() - began) / times


def bandwidth() -> float:
    """Return the bytes per second that a copy reads and writes."""
    a = torch.empty(2**30 if CUDA else 2**26, dtype=torch.bfloat16, device=DEVICE)
    b = torch.empty_like(a)
    return 2 * a.nbytes / seconds(lambda: b.copy_(a), 5)


def floor_ms(model, rows: int, rate: float) -> float:
    c = model.config
    weights = sum(p.nbytes for p in model.parameters())
    head = c.hidden_size // c.num_attention_heads
    size = torch.empty(0, dtype=DTYPE).element_size()
    cache = 2 * c.num_hidden_layers * c.num_key_value_heads * head * size * rows * (PROMPT + STEPS // 2)
    return (weights + cache) / rate * 1e3


def plain_step(model, rows: int) -> float:
    ids = torch.randint(10, 2000, (rows, PROMPT), device=DEVICE)

    def run(n: int):
        with torch.no_grad():
            model.generate(ids, max_new_tokens=n, min_new_tokens=n, do_sample=True, pad_token_id=0)

    return (seconds(lambda: run(STEPS), 2) - seconds(lambda: run(1), 2)) / (STEPS - 1) * 1e3


def continuous_step(model, rows: int) -> float:
    """Time a step of transformers' continuous batching, which keeps no cache between calls.

    Its start-up is long and varies; the difference of two runs removes it approximately.
    """
    prompts = torch.randint(10, 2000, (rows, PROMPT)).tolist()

    def run(n: int) -> float:
        config = GenerationConfig(max_new_tokens=n, do_sample=True, eos_token_id=-1, pad_token_id=0)
        began = time.perf_counter()
        outputs = model.generate_batch(inputs=prompts, generation_config=config)
        wait()
        elapsed = time.perf_counter() - began
        lengths = {len(out.generated_tokens) for out in outputs.values()}
        if len(outputs) != rows or lengths != {n}:
            raise RuntimeError(f"expected {rows} replies of {n} tokens, got {len(outputs)} of {lengths}")
        return elapsed

    few, many = STEPS // 4, STEPS * 4
    run(few)
    step = (min(run(many) for _ in range(2)) - min(run(few) for _ in range(2))) / (many - few)
    if step <= 0:
        raise RuntimeError("the start-up time varies by more than the steps take, so there is no result")
    return step * 1e3


def our_step(model, rows: int, variant: dict, chunk: int) -> dict:
    decoder = Decoder(
        model, slots=rows, context=1024 if CUDA else 256, end_ids=frozenset(), chunk=chunk, **variant
    )
    rng = np.random.default_rng(0)
    fresh = [
        PendingReply(i, 0, rng.integers(10, 2000, PROMPT).tolist(), noise_of(i, STEPS + 64))
        for i in range(rows)
    ]
    began = time.perf_counter()
    replies = decoder.round(fresh, [])  # compiles kernels and records graphs
    ready = time.perf_counter() - began
    decoder.stats.clear()
    for _ in range(STEPS // chunk):
        for row, more in decoder.round([], range(rows)).items():
            replies[row].ids.extend(more.ids)
            replies[row].logprobs.extend(more.logprobs)
    return {
        "off": max(deviation(model, fresh[row].ids, replies[row]) for row in (0, rows - 1)),
        "ms": decoder.stats.decode_seconds / decoder.stats.steps * 1e3,
        "ready_s": ready,
        "triton": decoder.kernels is not None,
        "recorded": decoder.graphs is not None and len(decoder.graphs),
        "compiled": decoder.fuser.wanted,
        "streamed": decoder.stats.streamed == decoder.stats.steps,
        "cache_gb": decoder.cache.bytes() / 1e9,
    }


def deviation(model, prompt: list[int], reply) -> float:
    """Return the mean difference between the decoder's log-probs and those of one plain forward pass."""
    ids = torch.tensor([prompt + reply.ids], device=DEVICE)
    with torch.no_grad():
        scores = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    expected = scores.gather(1, ids[0, len(prompt) :, None])[:, 0].cpu()
    return float((expected - torch.tensor(reply.logprobs)).abs().mean())


def steps(model, shape: str, rows: int, rate: float, args) -> list[dict]:
    floor = floor_ms(model, rows, rate)
    print(f"{shape}, {rows} dialogues: floor {floor:.2f} ms per step", flush=True)
    results = []

    def add(name: str, result: dict | None, plain: float | None) -> None:
        if result is None:
            return
        ms = result["ms"]
        row = {"what": "step", "shape": shape, "rows": rows, "way": name, "floor_ms": floor, **result}
        row |= {"of_floor": ms / floor, "times_plain": plain and plain / ms, "peak_gb": peak_gb()}
        results.append(row)
        speedup = f", {plain / ms:5.1f} x generate" if plain else ""
        more = " ".join(f"{k}={v:.2g}" if isinstance(v, float) else f"{k}={v}" for k, v in result.items())
        print(
            f"  {name:12} {ms:8.2f} ms  {ms / floor:5.2f} of the floor{speedup}  peak {peak_gb()} GB  {more}",
            flush=True,
        )

    plain = None if args.no_plain else guarded("generate", lambda: plain_step(model, rows))
    add("generate", plain and {"ms": plain}, plain)
    if args.continuous:
        ms = guarded("continuous", lambda: continuous_step(model, rows))
        add("continuous", ms and {"ms": ms}, plain)
    for name in args.variants:
        add(name, guarded(name, lambda name=name: our_step(model, rows, VARIANTS[name], args.chunk)), plain)
    return results


def main() -> None:
    parser = shape_parser(__doc__)
    parser.add_argument(
        "--variants",
        type=parse_variants,
        default="streamed,fused,graph,fused-sdpa,graph-sdpa,eager" if CUDA else "eager",
        help="decoder variants, comma-separated (default: %(default)s)",
    )
    add_decoding_options(parser)
    parser.add_argument("--continuous", action="store_true", help="include transformers' continuous batching")
    args = parser.parse_args()
    rate = bandwidth()
    print(f"{device_name()}, torch {torch.__version__}: copies {rate / 1e12:.3f} TB/s", flush=True)
    measure_shapes(args, lambda model, shape, rows: steps(model, shape, rows, rate, args), bandwidth=rate)


if __name__ == "__main__":
    main()
