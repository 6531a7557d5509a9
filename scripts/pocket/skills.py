"""Tests of the pretrained pocket model: copying unknown words, and naming feelings from their signs."""

from __future__ import annotations

import torch
from grammar import ASSISTANT, END, USER, Rng, Speaker, feelings, pseudo, toml
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM


@torch.no_grad()
def _greedy(model: LlamaForCausalLM, tokenizer: Tokenizer, prompt: str, count: int) -> str:
    ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False).ids], device=model.device)
    start = ids.shape[1]
    for _ in range(count):
        ids = torch.cat([ids, model(input_ids=ids, use_cache=False).logits[:, -1:].argmax(-1)], 1)
    return str(tokenizer.decode(ids[0, start:].tolist()))


def copies(model: LlamaForCausalLM, tokenizer: Tokenizer, count: int = 100) -> float:
    """Return the share of made-up words that are repeated correctly, in messages with only one thing."""
    rng = Rng("copies")
    lines = (
        "The {} is gone.",
        "They took my {} today.",
        "I can't find the {} and nobody helps.",
        "It was about a {} again.",
    )
    right = 0
    for _ in range(count):
        word = pseudo(rng)
        line = rng.pick(lines).format(word)
        prompt = f"{USER}{line}{END}{ASSISTANT}You could have left {'your' if 'my' in line else 'the'}"
        right += _greedy(model, tokenizer, prompt, 6).strip().startswith(f"{word} ")
    return right / count


def names(model: LlamaForCausalLM, tokenizer: Tokenizer, count: int = 100) -> float:
    """Return the share of signs after which the right feeling is named."""
    rng = Rng("names")
    right = 0
    for _ in range(count):
        feeling = rng.pick(tuple(feelings()))
        line = Speaker(rng).line(rng.pick(toml("lines.toml")["tell"]), rng.pick(toml("signs.toml")[feeling]))
        reply = _greedy(model, tokenizer, f"{USER}{line.text}{END}{ASSISTANT}You have every right to be", 4)
        right += any(reply.strip().startswith(name) for name in feelings()[feeling]["names"])
    return right / count
