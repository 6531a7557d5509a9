"""Small Llamas: tokenizer, shapes, batches, training loop and files, shared by the policy and the judges."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, END, SYSTEM, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"
MARKS = (PAD, END, SYSTEM, USER, ASSISTANT)
CONTEXT = 4096
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
Ids = NDArray[np.uint16]


def train_tokenizer(texts: Sequence[str], size: int) -> Tokenizer:
    """Return a byte-level tokenizer; every digit is a token of its own."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(MARKS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def fast(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """Return the tokenizer as transformers sees it."""
    result = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, model_max_length=CONTEXT
    )
    result.chat_template = TEMPLATE
    return result


def new_model(vocabulary: int, width: int, layers: int, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    heads = width // 32
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=width * 8 // 3 // 32 * 32,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.03,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def batches(lengths: Sequence[int], budget: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Yield indices of rows for padded batches of about `budget` tokens without end; rows of similar length
    share a batch."""
    while True:
        order = rng.permutation(len(lengths))
        groups: list[list[int]] = []
        for start in range(0, len(order), 8192):
            group: list[int] = []
            for i in sorted(order[start : start + 8192], key=lambda i: lengths[i]):
                if group and (len(group) + 1) * lengths[i] > budget:
                    groups.append(group)
                    group = []
                group.append(int(i))
            groups.append(group)
        for k in rng.permutation(len(groups)):
            yield groups[k]


def padded(rows: Sequence[Ids], multiple: int = 64) -> torch.Tensor:
    """Pad on the right with id 0. Causal attention makes a mask unnecessary."""
    width = -(-max(map(len, rows)) // multiple) * multiple
    out = np.zeros((len(rows), width), dtype=np.int64)
    for row, ids in zip(out, rows, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(out)


def train(
    model: LlamaForCausalLM,
    extra: Sequence[torch.nn.Module],
    batch_of: Callable[[], Any],
    loss_of: Callable[[Any], tuple[torch.Tensor, dict[str, torch.Tensor]]],
    *,
    tokens: float,
    minutes: float,
    lr: float,
    device: str,
    check: Callable[[], str] | None = None,
) -> dict[str, Any]:
    """Train on `tokens` tokens including padding, for at most `minutes`.

    The first item of each batch of `batch_of` are the ids; `check` returns what is printed with the progress.
    """
    cuda = device == "cuda"
    parameters = [p for module in (model, *extra) for p in module.parameters()]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.05},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=cuda)
    model.train()
    began, seen, step, done = time.monotonic(), 0, 0, 0.0
    parts: dict[str, torch.Tensor] = {}
    while done < 1.0:
        batch = batch_of()
        rate = min(1.0, (step + 1) / 100) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * done)))
        for group in optimizer.param_groups:
            group["lr"] = lr * rate
        with torch.autocast(device, torch.bfloat16, enabled=cuda):
            loss, parts = loss_of(batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        seen += batch[0].numel()
        step += 1
        done = max(seen / tokens, (time.monotonic() - began) / 60 / minutes)
        if step % 100 == 0 or done >= 1.0:
            shown = " ".join(f"{name} {value.item():.3f}" for name, value in parts.items())
            took = time.monotonic() - began
            if check and (step % 500 == 0 or done >= 1.0):
                shown += f" {check()}"
            print(
                f"step {step} {min(done, 1):.1%} loss {loss.item():.3f} {shown} {seen / took / 1e3:.0f}k tokens/s",
                flush=True,
            )
    model.eval()
    return {
        "steps": step,
        "tokens_seen": seen,
        **{name: round(value.item(), 4) for name, value in parts.items()},
    }


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, out: Path, made: dict[str, Any]) -> None:
    """Write a Hugging Face folder in half precision: to a temporary folder first, which is then renamed."""
    new, old = out.with_name(out.name + ".new"), out.with_name(out.name + ".old")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    model.to("cpu", torch.float16).save_pretrained(new)
    fast(tokenizer).save_pretrained(new)
    config = json.loads((new / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"  # a name that all versions of transformers know
    (new / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    (new / "made.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    for file in new.iterdir():
        file.chmod(0o644)
    if out.exists():
        os.replace(out, old)
    os.replace(new, out)
    shutil.rmtree(old, ignore_errors=True)
