"""Measure what keeping the KV cache across turns saves, on whole dialogues.

    .venv/bin/python benchmarks/talks.py [--shapes 135M:64] [--variant streamed] [--turns 15] [--json FILE]

Uses random weights, random ids and replies of different lengths. Compares the sampler with its cache kept,
the sampler with every turn prefilled again, and `generate` on the full history of all dialogues in lockstep.
`streamed` is the share of decode steps with streamed weights.
"""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import numpy as np
import torch
from shapes import (
    CUDA,
    DEVICE,
    VARIANTS,
    add_decoding_options,
    device_name,
    guarded,
    measure_shapes,
    peak_gb,
    shape_parser,
    wait,
)

from mapo.models.chat import Request
from mapo.sampling.sampler import Sampler
from mapo.types import Message


class RandomIdTemplate:
    """A chat template that returns random ids: 300 in the first prompt, 40 per turn (fewer on a CPU)."""

    append_only, end_ids = True, frozenset()
    tokenizer = SimpleNamespace(decode=lambda *_, **__: "")

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def full_prompt(self, _):
        return self.rng.integers(10, 2000, 300 if CUDA else 100).tolist()

    def next_turn(self, *_):
        return self.rng.integers(10, 2000, 40 if CUDA else 20).tolist()


def play_sampler(model, rows: int, turns: int, length: int, *, keep: bool, variant: dict) -> dict:
    context = (300 if CUDA else 100) + turns * (40 if CUDA else 20) + turns * 2 * length
    sampler = Sampler(model, RandomIdTemplate(), name="x", slots=rows, context=context, **variant)
    lengths = np.random.default_rng(1).integers(length // 2, length * 3 // 2, (rows, turns))

    async def play_one(number: int, turns: int) -> None:
        policy = sampler.policy(SimpleNamespace(id=str(number)))
        messages: tuple[Message, ...] = ()
        for turn in range(turns):
            messages += (Message("user", "x"),)
            if not keep:
                policy.cached = 0
            length = int(lengths[number, turn])
            await policy.reply(Request(messages, max_tokens=length, seed=number * 100 + turn))
            messages += (Message("assistant", ""),)
        policy.end_dialogue()

    async def play(turns: int) -> None:
        async with sampler:
            await asyncio.gather(*(play_one(number, turns) for number in range(rows)))

    if CUDA:
        asyncio.run(play(turns))  # compiles kernels and records graphs
    sampler.stats.clear()
    began = time.perf_counter()
    asyncio.run(play(turns))
    wall, stats = time.perf_counter() - began, sampler.stats
    return {
        "s": wall,
        "tokens_per_s": stats.sampled / wall,
        "prefill_s": stats.prefill_seconds,
        "decode_s": stats.decode_seconds,
        "prefilled": stats.prefilled,
        "rows_per_step": stats.rows / max(stats.steps, 1),
        "streamed": stats.streamed / max(stats.steps, 1),
    }


def play_generate(model, rows: int, turns: int, length: int) -> dict:
    """Call `generate` on the full history turn by turn; all replies are as long as the longest one."""
    longest = np.random.default_rng(1).integers(length // 2, length * 3 // 2, (rows, turns)).max(0)
    useful = np.random.default_rng(1).integers(length // 2, length * 3 // 2, (rows, turns)).sum()
    ids = torch.randint(10, 2000, (rows, 300 if CUDA else 100), device=DEVICE)
    began = time.perf_counter()
    with torch.no_grad():
        for n in longest.tolist():
            ids = model.generate(ids, max_new_tokens=n, min_new_tokens=n, do_sample=True, pad_token_id=0)
            ids = torch.cat([ids, torch.randint(10, 2000, (rows, 40 if CUDA else 20), device=DEVICE)], 1)
    wait()
    wall = time.perf_counter() - began
    return {"s": wall, "tokens_per_s": float(useful) / wall}


def compare(model, shape: str, rows: int, args) -> list[dict]:
    print(
        f"{shape}, {rows} dialogues of {args.turns} turns, mean reply length {args.length}",
        flush=True,
    )
    variant = {**VARIANTS[args.variant], "chunk": args.chunk}
    ways = {
        "kept": lambda: play_sampler(model, rows, args.turns, args.length, keep=True, variant=variant),
        "again": lambda: play_sampler(model, rows, args.turns, args.length, keep=False, variant=variant),
    }
    if not args.no_plain:
        ways["generate"] = lambda: play_generate(model, rows, args.turns, args.length)
    results = []
    for name, way in ways.items():
        result = guarded(name, way)
        if result:
            results.append(
                {"what": "talk", "shape": shape, "rows": rows, "way": name, "peak_gb": peak_gb(), **result}
            )
            figures = " ".join(f"{k}={v:.2f}" for k, v in result.items())
            print(f"  {name:12} {figures} peak {peak_gb()} GB", flush=True)
    return results


def main() -> None:
    parser = shape_parser(__doc__)
    parser.add_argument("--variant", default="streamed" if CUDA else "eager", choices=VARIANTS)
    parser.add_argument("--turns", type=int, default=15 if CUDA else 4)
    parser.add_argument("--length", type=int, default=60 if CUDA else 24, help="mean reply length in tokens")
    add_decoding_options(parser)
    args = parser.parse_args()
    print(f"{device_name()}, torch {torch.__version__}", flush=True)
    measure_shapes(args, lambda model, shape, rows: compare(model, shape, rows, args))


if __name__ == "__main__":
    main()
