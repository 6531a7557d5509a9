"""Streamed weights as they are used: bfloat16, recorded steps, a real card. Beside one plain forward pass.

    make test-gpu, or without pytest: python tests/support/streamed_checks.py

Models are tiny and made here; one is wide enough for a head of its own kernel. Each decoder is asked twice,
and its weights change in place between: the recordings must follow. In some, rows of thousands of ids stand
beside rows of twenty.
"""

from __future__ import annotations

import time

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config

from mapo.sampling.decoder import Decoder
from mapo.sampling.draw import PendingReply, noise_of
from mapo.sampling.streamed.tiling import head_tile

ROWS = (1, 8, 33, 64)
SHORT = tuple(range(60, 67))  # ids of prompts, row after row
UNEQUAL = (2600, 20, 3900, 33, 20, 2049, 130, 20, 3333)
LONG = (("qwen2", 3), ("qwen2", 33), ("mistral", 8), ("wide", 8))  # with prompts of UNEQUAL lengths
SIZES = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 4096}
WIDE = {"hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4}
MODELS = {
    "qwen2": (Qwen2Config, {}),
    "llama": (LlamaConfig, {"tie_word_embeddings": True}),
    "mistral": (MistralConfig, {"sliding_window": 16}),
    "wide": (Qwen2Config, WIDE),
}
OFF = 0.05  # of a log-prob, in the mean of the worst row: bfloat16 alone comes to 0.014 on a CPU


def why_not() -> str:
    """Why nothing can be tried here; empty if it can."""
    if not torch.cuda.is_available() or torch.version.hip is not None:
        return "no NVIDIA card"
    return "" if torch.cuda.get_device_capability()[0] == 9 else "streamed weights are for Hopper cards"


def model_of(name: str, device: str = "cuda"):
    kind, more = MODELS[name]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(kind(**SIZES | more), dtype=torch.bfloat16).eval()
    for weight in model.parameters():
        weight.data.add_(
            torch.randn_like(weight) * (0.3 if weight.dim() == 1 else 0.7 * weight.shape[1] ** -0.5)
        )
    return model.to(device)


@torch.no_grad()
def sharpen(model) -> None:
    """Make attention look at few keys: 64 that are lost among thousands are then 0.09 of a log-prob."""
    for layer in model.model.layers:
        for weight in layer.self_attn.q_proj.parameters():
            weight.mul_(6)


@torch.no_grad()
def off(model, decoder: Decoder, rows: int, lengths: tuple[int, ...]) -> tuple[float, list[float]]:
    """Two rounds of talk: the mean difference to a plain pass's log-probs, and what the first row told."""
    torch.manual_seed(1)
    prompts = [torch.randint(100, 400, (lengths[slot % len(lengths)],)).tolist() for slot in range(rows)]
    fresh = [PendingReply(slot, 0, prompts[slot], noise_of(slot, 32)) for slot in range(rows)]
    rounds = [decoder.round(fresh, []), decoder.round([], range(rows))]
    differences = []
    for slot in range(rows):
        said = [token for drawn in rounds for token in drawn[slot].ids]
        told = torch.tensor([x for drawn in rounds for x in drawn[slot].logprobs])
        ids = torch.tensor([prompts[slot] + said], device=decoder.device)
        scores = model(input_ids=ids, use_cache=False).logits[0, len(prompts[slot]) - 1 : -1].float()
        own = scores.log_softmax(-1).gather(1, ids[0, len(prompts[slot]) :, None])[:, 0].cpu()
        differences.append((own - told).abs().mean())
    return float(max(differences)), [x for drawn in rounds for x in drawn[0].logprobs]


def check(name: str, rows: int, *, context: int = 256, lengths: tuple[int, ...] = SHORT) -> None:
    model = model_of(name)
    if lengths is UNEQUAL:
        sharpen(model)
    assert (head_tile(model.config.hidden_size) is not None) == (name == "wide")
    # Without the compiler: it draws tokens only, and takes longer than all the rest.
    decoder = Decoder(model, slots=rows, context=context, end_ids=frozenset(), chunk=8, fuse=False)
    assert decoder.streamed is not None, "left out at the door"
    wrong, told = off(model, decoder, rows, lengths)
    assert decoder.streamed is not None and decoder.stats.streamed == decoder.stats.steps > 0, "not streamed"
    graphs = decoder.graphs
    assert graphs is not None and len(graphs) and wrong < OFF, wrong
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.flip(0))  # another model, no sharper than this one
    decoder.forget()
    wrong, after = off(model, decoder, rows, lengths)
    assert decoder.graphs is graphs, "recorded anew"
    assert wrong < OFF and after != told, wrong


def check_long(name: str, rows: int) -> None:
    check(name, rows, context=4096, lengths=UNEQUAL)


def main() -> None:
    why = why_not()
    tries = [(check, name, rows) for name in MODELS for rows in ROWS]
    for way, name, rows in [] if why else [*tries, *((check_long, *each) for each in LONG)]:
        began = time.perf_counter()
        way(name, rows)
        told = f"{way.__name__} {name}, {rows} rows: fine ({time.perf_counter() - began:.1f} s)"
        print(told, flush=True)  # noqa: T201
    print(f"skipped: {why}" if why else "streamed weights say what the models say", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
