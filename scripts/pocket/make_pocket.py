"""Train the pocket model: generate text, train a tokenizer, pretrain a small Llama, write a Hugging Face folder.

    python scripts/pocket/make_pocket.py --out mapo/local_model/pocket --device cuda

makes the shipped model; `--domains empathy,tutoring` makes one that can also tutor. Needs only torch, transformers,
tokenizers and numpy. All cores generate text; training repeats this pool of text until the token budget is used. The
loss covers every token, with a weight of 0.1 on user messages, from which the model learns what things are. Prints the
losses and, at the end, how often made-up words are copied and feelings are named correctly. On a CPU, the same seed
gives the same model.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import re
import shutil
import time
from pathlib import Path

import answers
import numpy as np
import story
import torch
import tutoring
from grammar import ASSISTANT, END, SYSTEM, USER, Rng
from skills import copies, names
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD = "<|pad|>"
CONTEXT = 4096
SHARD = 500
"""Dialogues that one process generates from one seed."""
USER_WEIGHT = 0.1

TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

WRITERS = {"empathy": answers.dialogue, "tutoring": tutoring.dialogue}
"""The function that generates dialogues, by domain."""


def write_text(seed: str, count: int = SHARD, domains: tuple[str, ...] = ("empathy",)) -> list[str]:
    """Generate dialogues that alternate between these domains."""
    rng = Rng(seed)
    return [WRITERS[domains[k % len(domains)]](rng) for k in range(count)]


def source_counts(domains: tuple[str, ...]) -> dict[str, int]:
    """Return how many scenarios and people the text is generated from."""
    counts = {}
    if "empathy" in domains:
        counts["scenarios"] = len(story.train_scenarios())
        counts["people"] = len(story.people()) - counts["scenarios"]
    if "tutoring" in domains:
        counts["lessons"] = len(tutoring.train_scenarios())
    return counts


def train_tokenizer(texts: list[str], size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    marks = [PAD, END, SYSTEM, USER, ASSISTANT]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        (line for text in texts for line in re.split(r"<\|\w+\|>", text)),
        trainers.BpeTrainer(
            vocab_size=size, special_tokens=marks, initial_alphabet=alphabet, show_progress=False
        ),
    )
    return tokenizer


_tokenizer: Tokenizer
_domains: tuple[str, ...]


def _start(path: str, domains: tuple[str, ...]) -> None:
    global _tokenizer, _domains
    _domains = domains
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _tokenizer = Tokenizer.from_file(path)


def _shard(seed: str) -> list[np.ndarray]:
    encodings = _tokenizer.encode_batch(write_text(seed, domains=_domains), add_special_tokens=False)
    return [np.array(e.ids, dtype=np.uint16) for e in encodings]


def make_pool(tokenizer_file: Path, seed: int, tokens: int, domains: tuple[str, ...]) -> list[np.ndarray]:
    """Return dialogues as ids, at least `tokens` in total. The result does not depend on the number of cores."""
    pool: list[np.ndarray] = []
    have = shard = 0
    cores = os.cpu_count() or 1
    with multiprocessing.get_context("fork").Pool(cores, _start, (str(tokenizer_file), domains)) as workers:
        seeds = (f"{seed}/{k}" for k in range(10**9))
        ahead = [workers.apply_async(_shard, (next(seeds),)) for _ in range(2 * cores)]
        while have < tokens:
            made = ahead[shard].get()
            ahead[shard] = None  # type: ignore[call-overload]
            ahead.append(workers.apply_async(_shard, (next(seeds),)))
            shard += 1
            pool += made
            have += sum(map(len, made))
        workers.terminate()
    return pool


def batches(pool: list[np.ndarray], budget: int, rng: np.random.Generator):  # type: ignore[no-untyped-def]
    """Yield padded batches of about `budget` tokens without end; dialogues of similar length share a batch."""
    while True:
        order = rng.permutation(len(pool))
        made = []
        for start in range(0, len(order), 8192):
            chunk = sorted(order[start : start + 8192], key=lambda i: len(pool[i]))
            batch: list[int] = []
            for i in chunk:
                if batch and (len(batch) + 1) * len(pool[i]) > budget:
                    made.append(batch)
                    batch = []
                batch.append(i)
            made.append(batch)
        for k in rng.permutation(len(made)):
            yield padded([pool[i] for i in made[k]])


def padded(docs: list[np.ndarray], multiple: int = 64) -> torch.Tensor:
    """Pad on the right with id 0. Causal attention makes a mask unnecessary."""
    width = -(-max(map(len, docs)) // multiple) * multiple
    out = np.zeros((len(docs), width), dtype=np.int64)
    for row, doc in zip(out, docs, strict=True):
        row[: len(doc)] = doc
    return torch.from_numpy(out)


def weights(ids: torch.Tensor, marks: dict[str, int]) -> torch.Tensor:
    """Return the loss weight of each predicted token: 1 in replies, USER_WEIGHT elsewhere, 0 in padding."""
    place = torch.arange(ids.shape[1], device=ids.device)
    mine = torch.where(ids == marks[ASSISTANT], place, -1).cummax(1).values
    other = torch.where((ids == marks[USER]) | (ids == marks[SYSTEM]), place, -1).cummax(1).values
    inside = mine > other  # the last role mark is the assistant's
    target = ids[:, 1:]
    weight = torch.where(inside[:, :-1], 1.0, USER_WEIGHT)
    return weight * (target != marks[PAD])


def loss_of(
    model: LlamaForCausalLM, ids: torch.Tensor, marks: dict[str, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (weighted mean loss, mean loss on reply tokens)."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    each = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none"
    )
    weight = weights(ids, marks).flatten()
    mine = (weight == 1.0).float()
    return (each * weight).sum() / weight.sum(), (each.detach() * mine).sum() / mine.sum()


def new_model(args: argparse.Namespace) -> LlamaForCausalLM:
    torch.manual_seed(args.seed)
    heads = args.width // 32
    config = LlamaConfig(
        vocab_size=args.vocab,
        hidden_size=args.width,
        intermediate_size=args.width * 8 // 3,
        num_hidden_layers=args.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 3),
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.03,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def pretrain(
    model: LlamaForCausalLM, pool: list[np.ndarray], marks: dict[str, int], args: argparse.Namespace
) -> dict[str, int]:
    """Train on `args.tokens` tokens including padding; return the steps and tokens."""
    device = torch.device(args.device)
    cuda = device.type == "cuda"
    model.to(device).train()
    decay = [p for p in model.parameters() if p.dim() > 1]
    other = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": other, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=cuda)
    stream = batches(pool, args.batch, np.random.default_rng(args.seed))
    began, seen, step, done = time.monotonic(), 0, 0, 0.0
    while done < 1.0:
        ids = next(stream).to(device, non_blocking=True)
        rate = min(1.0, (step + 1) / 100) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * done)))
        for group in optimizer.param_groups:
            group["lr"] = args.lr * rate
        with torch.autocast("cuda", torch.bfloat16, enabled=cuda):
            loss, mine = loss_of(model, ids, marks)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seen += ids.numel()
        step += 1
        done = seen / args.tokens
        if step % 50 == 0 or done >= 1.0:
            took = time.monotonic() - began
            print(f"step {step} {min(done, 1):.1%} loss {loss.item():.3f} replies {mine.item():.3f} "
                  f"{seen / 1e6:.1f}M tokens {seen / took / 1e3:.0f}k/s", flush=True)  # fmt: skip
    return {"steps": step, "tokens_seen": seen}


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, out: Path, made: dict[str, object]) -> None:
    """Write to a temporary folder, then rename it."""
    new = out.with_name(out.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    model.to("cpu", torch.float16).save_pretrained(new)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, model_max_length=CONTEXT
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(new)
    config = json.loads((new / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"  # a name that all versions of transformers know
    (new / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    (new / "pocket.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    for file in new.iterdir():
        file.chmod(0o644)
    old = out.with_name(out.name + ".old")
    if out.exists():
        os.replace(out, old)
    os.replace(new, out)
    shutil.rmtree(old, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tokens", type=float, default=570e6, help="tokens to train on")
    parser.add_argument("--pool", type=float, default=80e6, help="maximum number of distinct tokens")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--domains", default="empathy", help=f"comma-separated, from {','.join(WRITERS)}")
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=0, help="tokens per batch; 0 chooses by device")
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()
    args.batch = args.batch or (131072 if args.device.startswith("cuda") else 16384)
    began = time.monotonic()
    domains = tuple(args.domains.split(","))
    if unknown := set(domains) - set(WRITERS):
        parser.error(f"unknown domain {', '.join(sorted(unknown))}; use one or more of {', '.join(WRITERS)}")
    first = [t for k in range(8) for t in write_text(f"tokenizer/{k}", domains=domains)]
    tokenizer = train_tokenizer(first, args.vocab)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    file = args.out.with_name(args.out.name + ".tokenizer.json")
    tokenizer.save(str(file))
    pool = make_pool(file, args.seed, int(min(args.pool, args.tokens)), domains)
    file.unlink()
    held, pool = pool[:64], pool[64:]
    have = sum(map(len, pool))
    print(f"{len(pool)} dialogues, {have / 1e6:.1f}M tokens, {have / len(pool):.0f} each, longest {max(map(len, pool))}, "
          f"text generated in {time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
    marks = {mark: tokenizer.token_to_id(mark) for mark in (PAD, END, SYSTEM, USER, ASSISTANT)}
    model = new_model(args)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters", flush=True)
    seen = pretrain(model, pool, marks, args)
    model.eval()
    with torch.no_grad():
        loss, mine = loss_of(model, padded(held[:16]).to(args.device), marks)
    results = {
        "loss": round(loss.item(), 4),
        "reply_loss": round(mine.item(), 4),
        "copied_right": copies(model, tokenizer),
        "named_right": names(model, tokenizer),
    }
    print(json.dumps(results))
    settings = {name: value for name, value in vars(args).items() if name != "out"}
    read = {"dialogues": len(pool), "pool_tokens": have, **source_counts(domains)}
    made = {**settings, "torch": torch.__version__, **read, **seen, **results}
    save(model, tokenizer, args.out, made)
    print(
        f"{args.out}: {sum(f.stat().st_size for f in args.out.iterdir()) / 1e6:.1f} MB, {time.monotonic() - began:.0f} s in total"
    )


if __name__ == "__main__":
    main()
