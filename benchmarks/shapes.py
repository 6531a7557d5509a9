"""Model shapes with random weights, decoder variants and options of decode.py, prefill.py and talks.py."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

CUDA = torch.cuda.is_available()
DEVICE, DTYPE = ("cuda", torch.bfloat16) if CUDA else ("cpu", torch.float32)
SHAPES = {
    "135M": lambda: LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, tie_word_embeddings=True, max_position_embeddings=8192,
    ),
    "1.5B": lambda: Qwen2Config(
        vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28,
        num_attention_heads=12, num_key_value_heads=2, tie_word_embeddings=True,
        max_position_embeddings=32768,
    ),
    "7B": lambda: Qwen2Config(
        vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28,
        num_attention_heads=28, num_key_value_heads=4, max_position_embeddings=32768,
    ),
    "20M": lambda: LlamaConfig(
        vocab_size=8192, hidden_size=384, intermediate_size=1024, num_hidden_layers=10,
        num_attention_heads=6, num_key_value_heads=2, tie_word_embeddings=True, max_position_embeddings=8192,
    ),
    "2M": lambda: LlamaConfig(
        vocab_size=2048, hidden_size=192, intermediate_size=512, num_hidden_layers=4,
        num_attention_heads=6, num_key_value_heads=2, tie_word_embeddings=True, max_position_embeddings=4096,
    ),
}  # fmt: skip
VARIANTS = {
    "streamed": {},
    "fused": {"stream": False},
    "graph": {"stream": False, "fuse": False},
    "fused-sdpa": {"stream": False, "attention": "sdpa"},
    "graph-sdpa": {"stream": False, "attention": "sdpa", "fuse": False},
    "eager": {"stream": False, "graphs": False},
}


def parse_shapes(text: str) -> list[tuple[str, int]]:
    """Parse "135M:64,7B:64" into (shape, dialogues); an argparse type."""
    shapes = []
    for item in text.split(","):
        name, _, count = item.partition(":")
        if name not in SHAPES or not count.isdecimal() or int(count) < 1:
            raise argparse.ArgumentTypeError(
                f"'{item}' is not a shape; write SHAPE:DIALOGUES, where SHAPE is one of {', '.join(SHAPES)}"
            )
        shapes.append((name, int(count)))
    return shapes


def parse_variants(text: str) -> list[str]:
    """Parse a comma-separated list of decoder variants; an argparse type."""
    names = text.split(",")
    if unknown := [name for name in names if name not in VARIANTS]:
        raise argparse.ArgumentTypeError(
            f"'{unknown[0]}' is not a variant; use one or more of {', '.join(VARIANTS)}"
        )
    return names


def shape_parser(
    description: str | None,
    default: str = "135M:64,135M:256,7B:64" if CUDA else "2M:32,135M:8",
    rows: str = "DIALOGUES",
) -> argparse.ArgumentParser:
    """Return a parser with the options of `measure_shapes`; `rows` says in the help what is counted."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shapes",
        type=parse_shapes,
        default=default,
        help=f"SHAPE:{rows}, comma-separated (default: %(default)s)",
    )
    parser.add_argument("--json", help="write the results to this file")
    return parser


def add_decoding_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--chunk", type=int, default=8, help="decode steps between synchronisations with the host"
    )
    parser.add_argument("--no-plain", action="store_true", help="skip plain transformers")


def wait() -> None:
    if CUDA:
        torch.cuda.synchronize()


def build(shape: str):
    config = SHAPES[shape]()
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(config, dtype=DTYPE, attn_implementation="sdpa").eval()
    model.generation_config.eos_token_id = None  # replies always have the full length
    return model


def guarded(name: str, work):
    """Return `work()`, or print its error and return None."""
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
    try:
        return work()
    except Exception as error:  # noqa: BLE001 (other variants are still measured)
        print(f"    {name} failed: {type(error).__name__}: {str(error)[:300]}", flush=True)
        traceback.print_exc(limit=-4, file=sys.stdout)
        return None
    finally:
        gc.collect()
        if CUDA:
            torch.cuda.empty_cache()


def peak_gb() -> float | None:
    return round(torch.cuda.max_memory_allocated() / 1e9, 2) if CUDA else None


def device_name() -> str:
    return torch.cuda.get_device_name() if CUDA else f"CPU, {torch.get_num_threads()} threads"


def measure_shapes(
    args: argparse.Namespace, measure: Callable[[Any, str, int], list[dict[str, Any]]], **summary: object
) -> None:
    """Call `measure` with the model, shape and dialogues of each of --shapes, with one model in memory at a
    time. Write all results so far to the file of --json each time, with the device and `summary`."""
    model, built = None, ""
    results: list[dict[str, Any]] = []
    for shape, rows in args.shapes:
        if shape != built:
            model = None
            gc.collect()
            model, built = build(shape), shape
        results += measure(model, shape, rows)
        if args.json:
            with open(args.json, "w", encoding="utf-8") as file:
                json.dump({"device": device_name(), **summary, "results": results}, file, indent=1)
