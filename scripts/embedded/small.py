"""Small Llamas: tokenizer, shapes, rows, training loop and files, shared by the policy and the judges.

Tokenizer and word embeddings are cut out of those of SmolLM2-135M-Instruct (`mapo fetch smollm2`): a model that meets a word
for the first time then already knows which words it resembles.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, END, SYSTEM, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"
MARKS = (PAD, END, SYSTEM, USER, ASSISTANT)
CONTEXT = 3072
HEAD = 64
EMBEDDING_STD = 0.03
COMPILED_ROW = 512
"""Longest row of a compiled step on a CPU: from 768 tokens on, torch 2.13 computes gradients that are not numbers."""
CPU_INFO = Path("/proc/cpuinfo")
NOTICE = """\
Made by scripts/embedded of mapo from the texts there (Apache-2.0). Tokenizer and word embeddings were cut out of
SmolLM2-135M-Instruct by Hugging Face (Apache-2.0) and changed: fewer tokens and dimensions, then trained further.
"""
PRINT_EVERY = 50
"""Steps between two lines of progress."""
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def cut_tokenizer(source: Path, texts: Sequence[str], size: int) -> Tokenizer:
    """Return the tokenizer of the folder `source` with only those of its tokens that are most frequent in `texts`."""
    file = source / "tokenizer.json"
    full = Tokenizer.from_file(str(file))
    count = Counter(
        token for row in full.encode_batch(texts, add_special_tokens=False) for token in row.tokens
    )
    data = json.loads(file.read_text(encoding="utf-8"))
    merges = [tuple(pair) for pair in data["model"]["merges"]]
    made_from = {a + b: (a, b) for a, b in reversed(merges)}
    kept = dict.fromkeys(token for token in data["model"]["vocab"] if len(token) == 1)

    def keep(token: str) -> None:
        if token not in kept:
            for part in made_from.get(token, ()):
                keep(part)
            kept[token] = None

    for token, _ in count.most_common():
        if len(kept) >= size - len(MARKS):
            break
        keep(token)
    data["model"]["vocab"] = {token: number for number, token in enumerate((*MARKS, *kept))}
    data["model"]["merges"] = [list(m) for m in merges if {*m, "".join(m)} <= kept.keys()]
    special = data["added_tokens"][0]
    data["added_tokens"] = [special | {"id": number, "content": mark} for number, mark in enumerate(MARKS)]
    return Tokenizer.from_str(json.dumps(data))


def _source_ids(source: Path, tokenizer: Tokenizer) -> list[int]:
    """Return the ids that the tokens of a cut tokenizer, without the marks, have in `source`."""
    vocabulary = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return [vocabulary[token] for token, _ in tokens if token not in MARKS]


def cut_embeddings(source: Path, tokenizer: Tokenizer, width: int) -> torch.Tensor:
    """Return the embeddings of `source` for the tokens of a cut tokenizer, reduced to their `width` main directions. Those
    of the marks are random."""
    kept = _source_ids(source, tokenizer)
    with safe_open(source / "model.safetensors", "pt") as file:  # type: ignore[no-untyped-call]
        full = file.get_tensor("model.embed_tokens.weight").float()[kept]
    u, s, _ = torch.linalg.svd(full - full.mean(0), full_matrices=False)
    turned = (u * s)[:, :width] @ torch.linalg.qr(torch.randn(width, width))[
        0
    ]  # no direction larger than others
    return torch.cat([torch.randn(len(MARKS), width), turned / turned.std()]) * EMBEDDING_STD


def fast(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """Return the tokenizer as transformers sees it."""
    result = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, model_max_length=CONTEXT
    )
    result.chat_template = TEMPLATE
    return result


def new_model(vocabulary: int, width: int, layers: int, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=width * 8 // 3 // 32 * 32,
        num_hidden_layers=layers,
        num_attention_heads=width // HEAD,
        num_key_value_heads=1,
        head_dim=HEAD,
        max_position_embeddings=CONTEXT,
        rope_theta=100000.0,
        tie_word_embeddings=True,
        initializer_range=EMBEDDING_STD,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def whole_model(source: Path, tokenizer: Tokenizer) -> LlamaForCausalLM:
    """Return all layers of the model in the folder `source`, for the tokens of a cut tokenizer."""
    model = LlamaForCausalLM.from_pretrained(source, dtype=torch.float32)
    full = model.get_input_embeddings().weight.detach()
    marks = torch.randn(len(MARKS), full.shape[1]) * full.std()
    kept = torch.cat([marks, full[_source_ids(source, tokenizer)]])
    model.resize_token_embeddings(len(kept), mean_resizing=False)
    model.get_input_embeddings().weight.data.copy_(kept)
    model.tie_weights()
    ids = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    model.config.update({**ids, "max_position_embeddings": CONTEXT})
    model.generation_config.update(**ids)
    return model


def load_teacher(folder: Path, tokenizer: Tokenizer, device: str) -> LlamaForCausalLM:
    """Return the model of a teacher. If it has another tokenizer than its student, the program ends."""
    if Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab() != tokenizer.get_vocab():
        raise SystemExit(
            f"{folder} has another tokenizer. Make a teacher first and its student with --teacher."
        )
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return LlamaForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()


def add_dropout(model: LlamaForCausalLM, share: float) -> None:
    """Skip each attention and each MLP for a share of the tokens while the model is trained. Llamas have no such setting,
    and small models that read the same text several times need it. Whole tokens, because random numbers for each value
    would take a third of the time on a CPU."""

    def drop(module: torch.nn.Module, _: Any, output: torch.Tensor) -> torch.Tensor:
        if not module.training:
            return output
        kept = torch.rand(*output.shape[:-1], 1, device=output.device) >= share
        return output * (kept / (1 - share)).to(output.dtype)

    if share:
        for layer in model.model.layers:
            for part in (layer.self_attn.o_proj, layer.mlp.down_proj):
                part.register_forward_hook(drop)


def has_matrix_units() -> bool:
    """Return whether this CPU has matrix units for bfloat16 (AMX)."""
    return "amx_bf16" in CPU_INFO.read_text()


def mixed_precision(device: str) -> torch.autocast:
    """Return a context that computes in bfloat16 on GPUs and on CPUs with matrix units for it; on others it is slower."""
    return torch.autocast(device, torch.bfloat16, enabled=device != "cpu" or has_matrix_units())


def attention(device: str) -> str:
    """Return the fastest attention of transformers in a compiled step."""
    return "eager" if device == "cpu" and has_matrix_units() else "sdpa"


Batch = tuple[torch.Tensor, ...]
Loss = Callable[..., tuple[torch.Tensor, dict[str, torch.Tensor]]]


def train(
    model: LlamaForCausalLM,
    extra: Sequence[torch.nn.Module],
    batch_of: Callable[[float], Batch],
    loss_of: Loss,
    *,
    tokens: float,
    minutes: float,
    lr: float,
    check: Callable[[], str],
    extend_batch: Callable[[Batch], Batch] = lambda batch: batch,
) -> dict[str, Any]:
    """Train on `tokens` tokens including padding, for at most `minutes`.

    `batch_of` gets the part of the training that is done; the first tensor of a batch holds the ids. `extend_batch` may add to
    a batch on the device. `loss_of` is compiled, once for each shape of batch; `check` returns what is printed at each tenth of
    the training.
    """
    device = model.device.type
    parameters = [p for module in (model, *extra) for p in module.parameters()]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.05},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)
    compiled = torch.compile(loss_of, dynamic=False)
    model.train()
    began, seen, step, done, tenth = time.monotonic(), 0, 0, 0.0, 0
    mean: dict[str, float] = {}
    while done < 1.0:
        batch = extend_batch(tuple(tensor.to(device) for tensor in batch_of(done)))
        rate = min(1.0, (step + 1) / 100) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * done)))
        for group in optimizer.param_groups:
            group["lr"] = lr * rate
        run = compiled if device != "cpu" or batch[0].shape[1] <= COMPILED_ROW else loss_of
        with mixed_precision(device):
            loss, parts = run(*batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seen += batch[0].numel()
        step += 1
        done = max(seen / tokens, (time.monotonic() - began) / 60 / minutes)
        mean = {name: 0.95 * mean.get(name, part.item()) + 0.05 * part.item() for name, part in parts.items()}
        if step % PRINT_EVERY == 0 or done >= 1.0:
            shown = " ".join(f"{name} {value:.3f}" for name, value in mean.items())
            if done * 10 >= tenth + 1:
                tenth = int(done * 10)
                model.eval()
                shown += f" {check()}"
                model.train()
            speed = seen / (time.monotonic() - began) / 1e3
            print(f"step {step} {min(done, 1):.1%} {shown} {speed:.1f}k tokens/s", flush=True)
    model.eval()
    return {"steps": step, "tokens_seen": seen, **{name: round(value, 4) for name, value in mean.items()}}


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of a training, for its record; of paths the last part."""

    def shown(value: Any) -> Any:
        if isinstance(value, list):
            return [shown(item) for item in value]
        return value.name if isinstance(value, Path) else value

    return {name: shown(value) for name, value in vars(args).items()}


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Write a folder: a temporary one first, which then gets the name `out` in place of any before."""
    new, old = out.with_name(out.name + ".new"), out.with_name(out.name + ".old")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    yield new
    if out.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.replace(out, old)
    os.replace(new, out)
    shutil.rmtree(old, ignore_errors=True)


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, out: Path, made: dict[str, Any]) -> None:
    """Write a Hugging Face folder in half precision."""
    with new_folder(out) as new:
        model.to("cpu", torch.float16).save_pretrained(new)
        fast(tokenizer).save_pretrained(new)
        config = json.loads((new / "tokenizer_config.json").read_text(encoding="utf-8"))
        config["tokenizer_class"] = "PreTrainedTokenizerFast"  # a name that all versions of transformers know
        (new / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        (new / "made.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
        (new / "NOTICE").write_text(NOTICE, encoding="utf-8")
        for file in new.iterdir():
            file.chmod(0o644)
