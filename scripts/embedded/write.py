"""Write stories and replies with a language model that has learned to write them from the repository's texts.

    PYTHONPATH=. python scripts/embedded/write.py --model DIR --out stories.jsonl.gz --minutes 8

DIR is Qwen2.5-Coder-1.5B-Instruct (`mapo fetch qwen2.5-coder-1.5b`). All its weights are trained for a few passes over
the documents (`documents.py`), with the replies of each line drawn anew in every pass; then it writes documents about
things of different people, as many as it can in the given time. Needs a GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import math
import random
import time
from pathlib import Path
from typing import Any

import torch
from documents import new_headers, training_documents
from transformers import AutoModelForCausalLM, AutoTokenizer

from mapo.local_model.template import Template, read_template
from mapo.models.chat import Request
from mapo.sampling.sampler import LocalChat, Sampler
from mapo.types import Message

LONGEST = 3072
"""Tokens of a document with its header."""
IGNORED = -100


def encode(template: Template, header: str, text: str) -> tuple[list[int], list[int]]:
    """Return ids and targets: only the document is learned, not its header."""
    prompt = template.full_prompt((Message("user", header),))
    body = [*template.tokenizer.encode(text, add_special_tokens=False), min(template.end_ids)]
    ids = (prompt + body)[:LONGEST]
    return ids, ([IGNORED] * len(prompt) + body)[:LONGEST]


def batches(
    examples: list[tuple[list[int], list[int]]], budget: int
) -> list[list[tuple[list[int], list[int]]]]:
    """Group examples of similar length into padded batches of at most `budget` tokens."""
    groups: list[list[tuple[list[int], list[int]]]] = [[]]
    for example in sorted(examples, key=lambda pair: len(pair[0])):
        if groups[-1] and (len(groups[-1]) + 1) * len(example[0]) > budget:
            groups.append([])
        groups[-1].append(example)
    return groups


def padded(rows: list[list[int]], value: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])


def finetune(model: Any, template: Template, args: argparse.Namespace) -> list[float]:
    """Train all weights on the documents; return the mean loss of each pass."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.01, fused=args.device == "cuda"
    )
    rng, losses = random.Random(args.seed), []
    model.train()
    passes = [training_documents(rng) for _ in range(args.epochs)]
    plan = [batches([encode(template, *pair) for pair in pairs], args.batch) for pairs in passes]
    total, step = sum(map(len, plan)), 0
    for number, groups in enumerate(plan, 1):
        rng.shuffle(groups)
        began, summed, count = time.monotonic(), 0.0, 0
        for group in groups:
            ids = padded([ids for ids, _ in group], 0).to(args.device)
            targets = padded([targets for _, targets in group], IGNORED).to(args.device)
            rate = min(1.0, (step + 1) / 20) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / total)))
            for part in optimizer.param_groups:
                part["lr"] = args.lr * rate
            with torch.autocast(args.device, torch.bfloat16):
                logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
                loss = torch.nn.functional.cross_entropy(
                    logits.flatten(0, 1).float(), targets[:, 1:].flatten()
                )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            summed, count = summed + loss.item(), count + 1
        losses.append(summed / count)
        print(
            f"pass {number}: {count} steps, loss {losses[-1]:.3f}, {time.monotonic() - began:.0f} s",
            flush=True,
        )
    return losses


async def write(model: Any, template: Template, args: argparse.Namespace) -> None:
    """Write documents until the time is over; each is one line of the file."""
    sampler = Sampler(model, template, name="writer", slots=args.slots, context=LONGEST, chunk=32)
    headers = iter(enumerate(new_headers(200_000, args.seed)))
    end, count = time.monotonic() + 60 * args.minutes, 0
    with gzip.open(args.out, "wt", encoding="utf-8", compresslevel=3) as file:

        async def work() -> None:
            nonlocal count
            while time.monotonic() < end:
                number, header = next(headers)
                chat = LocalChat(sampler, f"{number}")
                request = Request(
                    (Message("user", header),), args.temperature, 1.0, LONGEST - 128, seed=number
                )
                answer = await chat.reply(request)
                chat.end_dialogue()
                file.write(json.dumps({"id": number, "text": answer.reply.text + "\n"}) + "\n")
                count += 1
                if count % 200 == 0:
                    stats = sampler.stats
                    print(
                        f"{count} documents, {stats.sampled / 1e6:.1f}M tokens, {stats.sampled / max(stats.seconds, 1e-9):.0f}/s",
                        flush=True,
                    )

        async with sampler:
            await asyncio.gather(*(work() for _ in range(args.slots)))
    print(f"{count} documents, {sampler.stats.sampled} tokens", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="folder of the language model")
    parser.add_argument("--out", type=Path, required=True, help="file to write (.jsonl.gz)")
    parser.add_argument("--minutes", type=float, default=8.0, help="time for writing")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--batch", type=int, default=8192, help="tokens per step")
    parser.add_argument("--slots", type=int, default=768, help="documents written at once")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).to(args.device)
    template = read_template(AutoTokenizer.from_pretrained(args.model))
    finetune(model, template, args)
    model = model.to(torch.bfloat16 if args.device == "cuda" else torch.float32).eval().requires_grad_(False)
    if args.device == "cuda":
        torch.cuda.empty_cache()
    asyncio.run(write(model, template, args))


if __name__ == "__main__":
    main()
