"""Measure the speed of a training step against plain transformers and the matrix-multiplication rate.

    .venv/bin/python benchmarks/train_step.py [--shape 135M|7B|tiny] [--only WORDS] [--json FILE] [--profile]

Times the forward and backward pass of the policy loss on random rows in which every token except the first
is trained (nothing is saved by masking), with random weights, in bfloat16 on a GPU:

- 135M: SmolLM2's shape, 32 rows of 1024 tokens; 7B: Qwen2.5-7B's shape, 4 rows of 2048; tiny: for a CPU.
- plain: the model's own forward pass, log_softmax over all logits in float32, with and without checkpointing.
- ours: mapo's `policy_loss` on a model prepared by `tune_for_training`, with each optimisation on and off.
  "mixed" rotates through micro-batches of different shapes, as training does; the others repeat one.
  "cudnn" and "flash" prefer that attention kernel.

Columns: tokens per second; `of rate`: 6 * parameters * tokens / time, divided by the measured rate of a
matrix product (8192^3); speed relative to plain with checkpointing; peak memory. On a CPU, only ratios are
meaningful.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from mapo.local_model.layers import tune_for_training
from mapo.train.batch import MicroBatch
from mapo.train.loss import policy_loss, surrogate, token_logprobs

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
SMALL = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}
LARGE = {
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}
TINY = {
    "vocab_size": 16384,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class Shape:
    config: Any
    sizes: dict[str, Any]
    rows: int
    length: int

    def mixed(self) -> list[tuple[int, int]]:
        """Micro-batches of about the same number of tokens and four different shapes."""
        tokens = self.rows * self.length
        lengths = [self.length, self.length * 7 // 8, self.length * 3 // 4, self.length // 2]
        return [(tokens // n, n) for n in lengths]


SHAPES = {
    "135M": Shape(LlamaConfig, SMALL, 32, 1024),
    "7B": Shape(Qwen2Config, LARGE, 4, 2048),
    "tiny": Shape(LlamaConfig, TINY, 4, 256),
}


@dataclass(frozen=True)
class Variant:
    name: str
    ours: bool = True
    checkpointing: bool = False
    compile: bool = False
    fused_head: bool = False
    attention: str = ""
    mixed: bool = False


VARIANTS = [
    Variant("plain, checkpointed", ours=False, checkpointing=True),
    Variant("plain", ours=False),
    Variant("ours, checkpointed", checkpointing=True),
    Variant("ours"),
    Variant("ours, fused head", fused_head=True),
    Variant("ours, compiled", compile=True, fused_head=True),
    Variant("ours, compiled, checkpointed", compile=True, fused_head=True, checkpointing=True),
    Variant("ours, compiled, cudnn", compile=True, fused_head=True, attention="cudnn"),
    Variant("ours, compiled, flash", compile=True, fused_head=True, attention="flash"),
    Variant("ours, compiled, mixed", compile=True, fused_head=True, mixed=True),
]
FIRST = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def sync() -> None:
    if CUDA:
        torch.cuda.synchronize()


def free() -> None:
    gc.collect()
    if CUDA:
        torch.cuda.empty_cache()


def seconds(step: Callable[[], object], repeats: int) -> float:
    """Return the mean time of a call. Calls are queued without synchronising in between."""
    sync()
    began = time.perf_counter()
    for _ in range(repeats):
        step()
    sync()
    return (time.perf_counter() - began) / repeats


def matrix_rate() -> float:
    """Measure the FLOP/s of a large matrix product in the dtype of the models."""
    n = 8192 if CUDA else 1024
    a = torch.randn(n, n, device=DEVICE, dtype=torch.bfloat16 if CUDA else torch.float32)
    out = torch.empty_like(a)
    for _ in range(3):
        torch.mm(a, a, out=out)
    return 2 * n**3 / seconds(lambda: torch.mm(a, a, out=out), 20)


def random_rows(model: nn.Module, rows: int, length: int, vocabulary: int) -> MicroBatch:
    """Return random rows that train all tokens but the first; old log-probabilities are the model's."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(10, vocabulary, (rows, length), generator=generator)
    mask = torch.ones(rows, length, dtype=torch.bool)
    mask[:, 0] = False
    advantages = torch.randn(rows, length, generator=generator)
    at = mask.flatten().nonzero().squeeze(-1)
    micro = MicroBatch(ids, mask, advantages, torch.zeros(rows, length), at, tuple(range(rows))).to(DEVICE)
    with torch.no_grad():
        old = token_logprobs(model, micro.ids, micro.mask, at=micro.at).logprobs
    micro.logprobs.view(-1)[micro.at] = old
    return micro


def plain_loss(model: nn.Module, micro: MicroBatch) -> Tensor:
    logits = model(input_ids=micro.ids, use_cache=False).logits[:, :-1]
    logp = torch.log_softmax(logits.float(), -1).gather(-1, micro.ids[:, 1:, None]).squeeze(-1)
    return surrogate(logp, micro.logprobs[:, 1:], micro.advantages[:, 1:]).loss.mean()


@contextmanager
def prepared(model: nn.Module, variant: Variant) -> Iterator[None]:
    torch._dynamo.reset()
    tune_for_training(model, checkpointing=variant.checkpointing, compile=variant.compile)
    order = [FIRST[variant.attention]] if variant.attention else []
    order += [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    with sdpa_kernel(list(dict.fromkeys(order)), set_priority=True) if variant.attention else nullcontext():
        try:
            yield
        finally:
            tune_for_training(model, checkpointing=False, compile=False)


def make_step(model: nn.Module, variant: Variant, micros: list[MicroBatch]) -> Callable[[], None]:
    turn = iter(range(1 << 30))

    def step() -> None:
        micro = micros[next(turn) % len(micros)]
        if variant.ours:
            loss, _ = policy_loss(model, micro, total=micro.trained, compiled=variant.fused_head)
        else:
            loss = plain_loss(model, micro)
        loss.backward()
        model.zero_grad(set_to_none=True)

    return step


def measure(
    model: nn.Module, shape: Shape, variant: Variant, rate: float, repeats: int, profile: bool
) -> dict[str, Any]:
    sizes = shape.mixed() if variant.mixed else [(shape.rows, shape.length)]
    micros = [random_rows(model, *size, shape.sizes["vocab_size"]) for size in sizes]
    tokens = sum(m.ids.numel() for m in micros) / len(micros)
    parameters = sum(p.numel() for p in model.parameters())
    with prepared(model, variant):
        step = make_step(model, variant, micros)
        began = time.perf_counter()
        for _ in range(3 * len(micros)):
            step()
        sync()
        warm = time.perf_counter() - began
        if CUDA:
            torch.cuda.reset_peak_memory_stats()
        took = seconds(step, repeats * len(micros))
        if profile:
            show_profile(step)
    return {
        "variant": asdict(variant),
        "tokens_per_second": tokens / took,
        "of_rate": 6 * parameters * tokens / took / rate,
        "seconds": took,
        "warm_up_seconds": warm,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if CUDA else None,
    }


def show_profile(step: Callable[[], None]) -> None:
    """Print the time of one step by kernel."""
    kinds = [torch.profiler.ProfilerActivity.CPU] + [torch.profiler.ProfilerActivity.CUDA] * CUDA
    with torch.profiler.profile(activities=kinds) as profile:
        step()
        sync()
    by = "self_cuda_time_total" if CUDA else "self_cpu_time_total"
    print(profile.key_averages().table(sort_by=by, row_limit=25, max_name_column_width=70))


def bench(name: str, only: str, repeats: int, profile: bool, rate: float) -> list[dict[str, Any]]:
    shape = SHAPES[name]
    torch.manual_seed(0)
    with torch.device(DEVICE):
        config = shape.config(**shape.sizes, max_position_embeddings=8192)
        dtype = torch.bfloat16 if CUDA else torch.float32
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.train()
    parameters = sum(p.numel() for p in model.parameters()) / 1e6
    print(f"\n{name}: {parameters:,.0f} million parameters, {shape.rows} x {shape.length} tokens\n")
    print("| variant | tokens/s | of rate | vs plain, checkpointed | peak GiB | warm-up s |")
    print("|---|---|---|---|---|---|")
    results: list[dict[str, Any]] = []
    for variant in VARIANTS:
        if not all(word in variant.name for word in only.split()) or (variant.attention and not CUDA):
            continue
        if variant.compile and not CUDA and "compiled" not in only:
            continue  # takes a minute of g++ on a CPU: only on request
        try:
            result = measure(model, shape, variant, rate, repeats, profile)
        except Exception as error:  # noqa: BLE001 (other variants are still measured)
            reason = f"{type(error).__name__}: {str(error)[:300]!r}"
            print(f"| {variant.name} | failed: {reason} |", flush=True)
            model.zero_grad(set_to_none=True)
        else:
            results.append({"shape": name, **result})
            show(variant, result, results)
        free()
    return results


def show(variant: Variant, result: dict[str, Any], results: list[dict[str, Any]]) -> None:
    base = next((r for r in results if not r["variant"]["ours"] and r["variant"]["checkpointing"]), None)
    ratio = f"{result['tokens_per_second'] / base['tokens_per_second']:.2f}" if base else ""
    peak = "" if result["peak_gib"] is None else f"{result['peak_gib']:.1f}"
    cells = [f"{result['tokens_per_second']:,.0f}", f"{result['of_rate']:.3f}", ratio, peak]
    print(f"| {variant.name} | {' | '.join(cells)} | {result['warm_up_seconds']:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=[*SHAPES, "all"], default="all")
    parser.add_argument("--only", default="", help="only variants whose names contain all these words")
    parser.add_argument("--repeats", type=int, default=5 if CUDA else 3)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("--profile", action="store_true", help="print the kernel times of each variant")
    args = parser.parse_args()
    rate = matrix_rate()
    device = torch.cuda.get_device_name() if CUDA else "CPU"
    print(f"{device}, torch {torch.__version__}, transformers {transformers.__version__}")
    print(f"matrix product: {rate / 1e12:.2f} TFLOP/s")
    all_shapes = ["135M", "7B"] if CUDA else ["tiny"]
    results = []
    for name in all_shapes if args.shape == "all" else [args.shape]:
        results += bench(name, args.only, args.repeats, args.profile, rate)
        free()
    if args.json:
        summary = {"device": device, "torch": torch.__version__, "matrix_flops": rate, "results": results}
        args.json.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
