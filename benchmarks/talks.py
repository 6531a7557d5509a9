"""Whole dialogues through the sampler: what does keeping the cache from turn to turn save?

    .venv/bin/python benchmarks/talks.py [--shapes 135M:64] [--variant streamed] [--turns 15] [--json FILE]

Random weights, random ids, replies of unequal length: the cache kept, against the same with every turn
prefilled again, against `generate` on the whole history, all dialogues in step. `streamed` is the share of
decode steps that had streamed weights.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from types import SimpleNamespace

import numpy as np
import torch
from shapes import CUDA, DEVICE, VARIANTS, device_name, each_shape, guarded, peak_gb, wait

from mapo.models.chat import Request
from mapo.sampling.sampler import Sampler
from mapo.types import Message


class Numbers:
    """A template of random ids in place of words: a prompt of 300, then turns of 40."""

    append_only, end_ids = True, frozenset()
    tokenizer = SimpleNamespace(decode=lambda *_, **__: "")

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def opening(self, _):
        return self.rng.integers(10, 2000, 300 if CUDA else 100).tolist()

    def following(self, *_):
        return self.rng.integers(10, 2000, 40 if CUDA else 20).tolist()


def talk_all(model, rows: int, turns: int, length: int, *, keep: bool, variant: dict) -> dict:
    context = (300 if CUDA else 100) + turns * (40 if CUDA else 20) + turns * 2 * length
    sampler = Sampler(model, Numbers(), name="x", slots=rows, context=context, **variant)
    lengths = np.random.default_rng(1).integers(length // 2, length * 3 // 2, (rows, turns))

    async def one(at: int, turns: int) -> None:
        seat = sampler.policy(SimpleNamespace(id=str(at)))
        messages: tuple[Message, ...] = ()
        for turn in range(turns):
            messages += (Message("user", "x"),)
            if not keep:
                seat.cached = 0
            await seat.reply(Request(messages, max_tokens=int(lengths[at, turn]), seed=at * 100 + turn))
            messages += (Message("assistant", ""),)
        seat.end_dialogue()

    async def go(turns: int) -> None:
        async with sampler:
            await asyncio.gather(*(one(at, turns) for at in range(rows)))

    if CUDA:
        asyncio.run(go(turns))  # compiles and records
    sampler.stats.clear()
    began = time.perf_counter()
    asyncio.run(go(turns))
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


def plain_talk(model, rows: int, turns: int, length: int) -> dict:
    """Turn by turn, all dialogues in step, `generate` on the whole history, as long as the longest reply."""
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


def talks(model, shape: str, rows: int, args) -> list[dict]:
    print(
        f"{shape}, {rows} dialogues of {args.turns} turns, replies of {args.length} ids on average",
        flush=True,
    )
    first = {**VARIANTS[args.variant], "chunk": args.chunk}
    ways = {
        "kept": lambda: talk_all(model, rows, args.turns, args.length, keep=True, variant=first),
        "again": lambda: talk_all(model, rows, args.turns, args.length, keep=False, variant=first),
    }
    if not args.no_plain:
        ways["generate"] = lambda: plain_talk(model, rows, args.turns, args.length)
    found = []
    for name, way in ways.items():
        result = guarded(name, way)
        if result:
            found.append(
                {"what": "talk", "shape": shape, "rows": rows, "way": name, "peak_gb": peak_gb(), **result}
            )
            told = " ".join(f"{k}={v:.2f}" for k, v in result.items())
            print(f"  {name:12} {told} peak {peak_gb()} GB", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default="135M:64,135M:256,7B:64" if CUDA else "2M:32,135M:8")
    parser.add_argument("--variant", default="streamed" if CUDA else "eager", choices=VARIANTS)
    parser.add_argument("--turns", type=int, default=15 if CUDA else 4)
    parser.add_argument("--length", type=int, default=60 if CUDA else 24, help="mean reply of the dialogues")
    parser.add_argument("--chunk", type=int, default=8, help="decode steps between two looks of the host")
    parser.add_argument("--no-plain", action="store_true", help="without plain transformers")
    parser.add_argument("--json", help="write the figures to this file")
    args = parser.parse_args()
    print(f"{device_name()}, torch {torch.__version__}", flush=True)
    results: list[dict] = []
    for model, shape, rows in each_shape(args.shapes):
        results += talks(model, shape, rows, args)
        if args.json:
            with open(args.json, "w") as file:
                json.dump({"device": device_name(), "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
