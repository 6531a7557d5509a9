"""How fast does the sampler decode? Beside plain `generate`, and beside what memory bandwidth allows.

    .venv/bin/python benchmarks/decode.py [--shapes 135M:64,135M:256,7B:64] [--variants ...] [--json FILE]

1. A decode step of N dialogues at about 540 ids each, random weights: `model.generate` (its time for many
   tokens less its time for one), transformers' continuous batching, our decoder in each variant. The floor
   is the bytes of weights and cache over the measured copy bandwidth.
2. Dialogues of 15 turns through the whole sampler, replies of unequal length: the cache kept from turn to
   turn, against the same with every turn prefilled again, against `generate` on the whole history.

On a GPU in bfloat16; on a CPU small shapes in float32, where the ratios are what counts. A variant that fails
says so, and the rest goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time
import traceback
from types import SimpleNamespace

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, Qwen2Config

from mapo.sandbox.chat import Request
from mapo.train.decode import Decoder
from mapo.train.draw import Fresh, noise_of
from mapo.train.sampler import Sampler
from mapo.types import Message

CUDA = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if CUDA else ("cpu", torch.float32)
PROMPT = 512 if CUDA else 128
STEPS = 64 if CUDA else 16
SHAPES = {
    "135M": lambda: LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True, max_position_embeddings=8192,
    ),
    "7B": lambda: Qwen2Config(
        vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28,
        num_attention_heads=28, num_key_value_heads=4, max_position_embeddings=32768,
    ),
    "2M": lambda: LlamaConfig(
        vocab_size=2048, hidden_size=192, intermediate_size=512, num_hidden_layers=4,
        num_attention_heads=6, num_key_value_heads=2, tie_word_embeddings=True, max_position_embeddings=4096,
    ),
}  # fmt: skip
VARIANTS = {
    "fused": {},
    "graph": {"fuse": False},
    "fused-sdpa": {"attention": "sdpa"},
    "graph-sdpa": {"attention": "sdpa", "fuse": False},
    "eager": {"graphs": False},
}


def wait() -> None:
    if CUDA:
        torch.cuda.synchronize()


def seconds(work, times: int) -> float:
    work()
    wait()
    began = time.perf_counter()
    for _ in range(times):
        work()
    wait()
    return (time.perf_counter() - began) / times


def bandwidth() -> float:
    """Bytes a second that a copy moves, read and written counted."""
    a = torch.empty(2**30 if CUDA else 2**26, dtype=torch.bfloat16, device=DEVICE)
    b = torch.empty_like(a)
    return 2 * a.nbytes / seconds(lambda: b.copy_(a), 5)


def build(shape: str):
    config = SHAPES[shape]()
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(config, dtype=DTYPE, attn_implementation="sdpa").eval()
    model.generation_config.eos_token_id = None  # replies are as long as they may be
    return model


def floor_ms(model, rows: int, rate: float) -> float:
    c = model.config
    weights = sum(p.nbytes for p in model.parameters())
    head = c.hidden_size // c.num_attention_heads
    size = torch.empty(0, dtype=DTYPE).element_size()
    cache = 2 * c.num_hidden_layers * c.num_key_value_heads * head * size * rows * (PROMPT + STEPS // 2)
    return (weights + cache) / rate * 1e3


# ---- one step


def plain_step(model, rows: int) -> float:
    ids = torch.randint(10, 2000, (rows, PROMPT), device=DEVICE)

    def run(n: int):
        with torch.no_grad():
            model.generate(ids, max_new_tokens=n, min_new_tokens=n, do_sample=True, pad_token_id=0)

    return (seconds(lambda: run(STEPS), 2) - seconds(lambda: run(1), 2)) / (STEPS - 1) * 1e3


def continuous_step(model, rows: int) -> float:
    """transformers' continuous batching, which keeps no cache between calls; its start-up, which is long and
    varies, is taken off as well as the difference of two runs can."""
    prompts = torch.randint(10, 2000, (rows, PROMPT)).tolist()

    def run(n: int) -> float:
        config = GenerationConfig(max_new_tokens=n, do_sample=True, eos_token_id=-1, pad_token_id=0)
        began = time.perf_counter()
        outputs = model.generate_batch(inputs=prompts, generation_config=config)
        wait()
        taken = time.perf_counter() - began
        lengths = {len(out.generated_tokens) for out in outputs.values()}
        if len(outputs) != rows or lengths != {n}:
            raise RuntimeError(f"{len(outputs)} of {rows} replies, {lengths} tokens of {n}")
        return taken

    few, many = STEPS // 4, STEPS * 4
    run(few)
    step = (min(run(many) for _ in range(2)) - min(run(few) for _ in range(2))) / (many - few)
    if step <= 0:
        raise RuntimeError("its start-up varies by more than its steps take: no figure")
    return step * 1e3


def our_step(model, rows: int, variant: dict, chunk: int) -> dict:
    decoder = Decoder(
        model, slots=rows, context=1024 if CUDA else 256, end_ids=frozenset(), chunk=chunk, **variant
    )
    rng = np.random.default_rng(0)
    fresh = [
        Fresh(i, 0, rng.integers(10, 2000, PROMPT).tolist(), noise_of(i, STEPS + 64)) for i in range(rows)
    ]
    began = time.perf_counter()
    said = decoder.round(fresh, [])  # compiles and records
    ready = time.perf_counter() - began
    decoder.stats.clear()
    for _ in range(STEPS // chunk):
        for row, more in decoder.round([], range(rows)).items():
            said[row].ids.extend(more.ids)
            said[row].logprobs.extend(more.logprobs)
    return {
        "off": max(deviation(model, fresh[row].ids, said[row]) for row in (0, rows - 1)),
        "ms": decoder.stats.decode_seconds / decoder.stats.steps * 1e3,
        "ready_s": ready,
        "triton": decoder.kernels is not None,
        "recorded": decoder.graphs is not None and len(decoder.graphs),
        "compiled": decoder.fuser.wanted,
        "cache_gb": decoder.cache.bytes() / 1e9,
    }


def deviation(model, prompt: list[int], said) -> float:
    """Mean difference between the log-probs that were told and those of one plain forward pass."""
    ids = torch.tensor([prompt + said.ids], device=DEVICE)
    with torch.no_grad():
        scores = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    own = scores.gather(1, ids[0, len(prompt) :, None])[:, 0].cpu()
    return float((own - torch.tensor(said.logprobs)).abs().mean())


# ---- whole dialogues


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
        seat.close()

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


# ---- the table


def guarded(name: str, work):
    """`work()`, or None with its error told."""
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
    try:
        return work()
    except Exception as error:  # noqa: BLE001 (a variant that fails is a result too)
        print(f"    {name} failed: {type(error).__name__}: {str(error)[:300]}", flush=True)
        traceback.print_exc(limit=-4, file=sys.stdout)
        return None
    finally:
        gc.collect()
        if CUDA:
            torch.cuda.empty_cache()


def peak_gb() -> float | None:
    return round(torch.cuda.max_memory_allocated() / 1e9, 2) if CUDA else None


def steps(model, shape: str, rows: int, rate: float, args) -> list[dict]:
    floor = floor_ms(model, rows, rate)
    print(f"{shape}, {rows} dialogues: floor {floor:.2f} ms a step", flush=True)
    found = []

    def note(name: str, result: dict | None, plain: float | None) -> None:
        if result is None:
            return
        ms = result["ms"]
        row = {"what": "step", "shape": shape, "rows": rows, "way": name, "floor_ms": floor, **result}
        row |= {"of_floor": ms / floor, "times_plain": plain and plain / ms, "peak_gb": peak_gb()}
        found.append(row)
        beside = f", {plain / ms:5.1f} x generate" if plain else ""
        more = " ".join(f"{k}={v:.2g}" if isinstance(v, float) else f"{k}={v}" for k, v in result.items())
        print(
            f"  {name:12} {ms:8.2f} ms  {ms / floor:5.2f} of the floor{beside}  peak {peak_gb()} GB  {more}",
            flush=True,
        )

    plain = None if args.no_plain else guarded("generate", lambda: plain_step(model, rows))
    note("generate", plain and {"ms": plain}, plain)
    if args.continuous:
        ms = guarded("continuous", lambda: continuous_step(model, rows))
        note("continuous", ms and {"ms": ms}, plain)
    for name in args.variants.split(","):
        note(name, guarded(name, lambda name=name: our_step(model, rows, VARIANTS[name], args.chunk)), plain)
    return found


def talks(model, shape: str, rows: int, args) -> list[dict]:
    print(
        f"{shape}, {rows} dialogues of {args.turns} turns, replies of {args.length} ids on average",
        flush=True,
    )
    first = {**VARIANTS[args.variants.split(",")[0]], "chunk": args.chunk}
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
    parser.add_argument("--variants", default="fused,graph,fused-sdpa,graph-sdpa,eager" if CUDA else "eager")
    parser.add_argument("--turns", type=int, default=15 if CUDA else 4)
    parser.add_argument("--length", type=int, default=60 if CUDA else 24, help="mean reply of the dialogues")
    parser.add_argument("--chunk", type=int, default=8, help="decode steps between two looks of the host")
    parser.add_argument("--no-talks", action="store_true", help="only single steps")
    parser.add_argument("--no-plain", action="store_true", help="without plain transformers")
    parser.add_argument("--continuous", action="store_true", help="with transformers' continuous batching")
    parser.add_argument("--json", help="write the figures to this file")
    args = parser.parse_args()
    rate = bandwidth()
    name = torch.cuda.get_device_name() if CUDA else f"CPU, {torch.get_num_threads()} threads"
    print(f"{name}, torch {torch.__version__}: copies {rate / 1e12:.3f} TB/s", flush=True)
    results: list[dict] = []
    models: dict[str, object] = {}
    for spec in args.shapes.split(","):
        shape, rows = spec.split(":")
        if shape not in models:
            models.clear()
            gc.collect()
            models[shape] = build(shape)
        results += steps(models[shape], shape, int(rows), rate, args)
        if not args.no_talks:
            results += talks(models[shape], shape, int(rows), args)
        if args.json:
            with open(args.json, "w") as file:
                json.dump({"device": name, "bandwidth": rate, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
