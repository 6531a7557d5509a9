"""Small Llamas: tokenizer, shapes, batches, training loop and files, shared by the policy and the judges."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from mapo.local_model.attention import CAUSAL_ONLY

PAD, END, SYSTEM, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"
MARKS = (PAD, END, SYSTEM, USER, ASSISTANT)
CONTEXT = 4096
WIDTHS = (*range(64, 513, 64), *range(640, 1025, 128), *range(1280, 2049, 256), *range(2560, 4097, 512))
"""Padded widths of training rows."""
PRINT_EVERY = 200
"""Steps between two lines of progress."""
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
    model = LlamaForCausalLM(config)
    model.set_attn_implementation(CAUSAL_ONLY)
    return model


def add_dropout(model: LlamaForCausalLM, share: float) -> None:
    """Drop a share of what the embedding, each attention and each MLP pass on while the model is trained. Llamas have no
    such setting, and small models that read the same text several times need it."""

    def drop(module: torch.nn.Module, _: Any, output: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(output, share, module.training)

    if share:
        layers = model.model.layers
        outputs = (part for layer in layers for part in (layer.self_attn.o_proj, layer.mlp.down_proj))
        for part in (model.model.embed_tokens, *outputs):
            part.register_forward_hook(drop)


def width_of(length: int) -> int:
    """Return the padded width of a row: one of few, because the GPU's work is recorded once per shape."""
    return next(width for width in WIDTHS if width >= length)


def batches(lengths: Sequence[int], budget: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Yield indices of rows for batches without end: rows of one width, as many as `budget` tokens hold."""
    waiting: dict[int, list[int]] = defaultdict(list)
    while True:
        for i in rng.permutation(len(lengths)).tolist():
            width = width_of(lengths[i])
            waiting[width].append(i)
            if len(waiting[width]) >= budget // width:
                yield waiting.pop(width)


def padded(rows: Sequence[Ids]) -> torch.Tensor:
    """Pad on the right with id 0. Causal attention makes a mask unnecessary."""
    out = np.zeros((len(rows), width_of(max(map(len, rows)))), dtype=np.int64)
    for row, ids in zip(out, rows, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(out)


Batch = tuple[torch.Tensor, ...]
Loss = Callable[[Batch], tuple[torch.Tensor, dict[str, torch.Tensor]]]


class Gradients:
    """Computes clipped gradients. On a GPU the work of each shape of batch is recorded once as a CUDA graph and then
    replayed: launching the many small kernels one by one would take most of the time."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], loss_of: Loss, device: str) -> None:
        self.parameters, self.loss_of, self.device = parameters, loss_of, device
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.recorded: dict[tuple[torch.Size, ...], tuple[torch.cuda.CUDAGraph, Batch, Any]] = {}
        # One stream for all recordings: memory is shared only between those of one stream.
        self.stream = torch.cuda.Stream() if device == "cuda" else None

    def __call__(self, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Set the gradients of the loss on a batch of tensors on the CPU; return the loss and its parts."""
        if self.device != "cuda":
            return self.compute(tuple(tensor.to(self.device) for tensor in batch))
        shape = tuple(tensor.shape for tensor in batch)
        if shape not in self.recorded:
            self.recorded[shape] = self.record(tuple(tensor.cuda() for tensor in batch))
        graph, inputs, result = self.recorded[shape]
        for mine, given in zip(inputs, batch, strict=True):
            mine.copy_(given, non_blocking=True)
        graph.replay()
        return result  # type: ignore[no-any-return]

    def compute(self, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        torch._foreach_zero_([parameter.grad for parameter in self.parameters])
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda", cache_enabled=False):
            loss, parts = self.loss_of(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        return loss.detach(), parts

    def record(self, inputs: Batch) -> tuple[torch.cuda.CUDAGraph, Batch, Any]:
        stream = self.stream
        assert stream is not None
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # lets libraries allocate what they keep
                self.compute(inputs)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self.recorded.values()))[0].pool() if self.recorded else None
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            result = self.compute(inputs)
        return graph, inputs, result


def train(
    model: LlamaForCausalLM,
    extra: Sequence[torch.nn.Module],
    batch_of: Callable[[], Batch],
    loss_of: Loss,
    *,
    tokens: float,
    minutes: float,
    lr: float,
    device: str,
    check: Callable[[], str] | None = None,
) -> dict[str, Any]:
    """Train on `tokens` tokens including padding, for at most `minutes`.

    The first item of each batch of `batch_of` are the ids; `check` returns what is printed with the progress. `loss_of`
    must not wait for the GPU, and its shapes must follow from those of the batch.
    """
    parameters = [p for module in (model, *extra) for p in module.parameters()]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.05},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=device == "cuda")
    gradients = Gradients(parameters, loss_of, device)
    model.train()
    began, seen, step, done = time.monotonic(), 0, 0, 0.0
    parts: dict[str, torch.Tensor] = {}
    while done < 1.0:
        batch = batch_of()
        rate = min(1.0, (step + 1) / 100) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * done)))
        for group in optimizer.param_groups:
            group["lr"] = lr * rate
        loss, parts = gradients(batch)
        optimizer.step()
        seen += batch[0].numel()
        step += 1
        done = max(seen / tokens, (time.monotonic() - began) / 60 / minutes)
        if step % PRINT_EVERY == 0 or done >= 1.0:
            shown = " ".join(f"{name} {value.item():.3f}" for name, value in parts.items())
            took = time.monotonic() - began
            if check and (step % (5 * PRINT_EVERY) == 0 or done >= 1.0):
                model.eval()
                shown += f" {check()}"
                model.train()
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
        shutil.rmtree(old, ignore_errors=True)
        os.replace(out, old)
    os.replace(new, out)
    shutil.rmtree(old, ignore_errors=True)
