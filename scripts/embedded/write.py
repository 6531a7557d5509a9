"""Let a language model write stories and replies, after it has learned to from the repository's texts. Needs a GPU.

    export PYTHONPATH=.
    python scripts/embedded/write.py train --model qwen --out writer
    python scripts/embedded/write.py stories --model qwen --writer writer --out stories.jsonl.gz --minutes 4
    python scripts/embedded/write.py replies --model qwen --writer writer --out replies.jsonl.gz --minutes 4
    python scripts/embedded/write.py short --model qwen --writer writer --stories stories.jsonl.gz --out short.jsonl.gz
    python scripts/embedded/write.py kinds --model qwen --writer writer --said said.jsonl.gz --out kinds.jsonl.gz

`qwen` is the folder of Qwen2.5-Coder-1.5B-Instruct (`mapo fetch qwen2.5-coder-1.5b`). `train` trains a LoRA adapter on the
tasks of `tasks.py` and measures how well it names the kinds of replies to held-out people. `stories` writes stories of
new people, `replies` further replies to known people, `short` short replies to new people, and `kinds` names the kinds of what `say.py` has collected.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import math
import os
import random
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import count as numbers
from pathlib import Path
from typing import Any

import torch
from corpus import generated_people
from documents import (
    BEFORE,
    NONSENSE,
    is_short,
    kinds_request,
    new_headers,
    new_rows,
    read_kinds,
    read_replies,
)
from peft import LoraConfig, PeftModel, get_peft_model
from tasks import Pair, in_context, kinds_pair, reply_jobs, short_jobs, training_pairs
from texts import GOOD, held_out_people
from transformers import AutoModelForCausalLM, AutoTokenizer

from mapo.local_model.template import Template, read_template
from mapo.models.chat import Request
from mapo.sampling.sampler import LocalChat, Sampler
from mapo.types import Message

LONGEST = 3072
"""Tokens of a story with its header."""
IGNORED = -100

Example = tuple[list[int], list[int]]
"""Ids and targets."""


def encode(template: Template, pair: Pair) -> Example:
    """Return ids and targets: only the answer is learned."""
    prompt = template.full_prompt((Message("user", pair[0]),))
    body = [*template.tokenizer.encode(pair[1], add_special_tokens=False), min(template.end_ids)]
    return (prompt + body)[:LONGEST], ([IGNORED] * len(prompt) + body)[:LONGEST]


def batches(examples: Iterable[Example], budget: int) -> list[list[Example]]:
    """Group examples of similar length into padded batches of at most `budget` tokens."""
    groups: list[list[Example]] = [[]]
    for example in sorted(examples, key=lambda pair: len(pair[0])):
        if groups[-1] and (len(groups[-1]) + 1) * len(example[0]) > budget:
            groups.append([])
        groups[-1].append(example)
    return groups


def padded(rows: list[list[int]], value: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [value] * (width - len(row)) for row in rows])


def loss_of(model: Any, group: list[Example], device: str) -> torch.Tensor:
    """Return the mean loss of the answers' tokens; only their logits are computed."""
    ids = padded([ids for ids, _ in group], 0).to(device)
    targets = padded([targets for _, targets in group], IGNORED).to(device)[:, 1:]
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        learned = targets != IGNORED
        logits = model.lm_head(hidden[learned])
        return torch.nn.functional.cross_entropy(logits.float(), targets[learned])


def train(args: argparse.Namespace) -> None:
    """Train an adapter on the tasks and save it."""
    model, template = load(args)
    if args.start:
        adapted: Any = PeftModel.from_pretrained(model, args.start, is_trainable=True)
    else:
        adapter = LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear")
        adapted = get_peft_model(model, adapter)
    learned = [p for p in adapted.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(
        learned, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.01, fused=args.device == "cuda"
    )
    rng = random.Random(args.seed)
    adapted.train()
    pairs = [pair for _ in range(args.passes) for pair in training_pairs(rng, only_short=args.only_short)]
    groups = batches((encode(template, pair) for pair in pairs), args.batch)
    rng.shuffle(groups)
    print(
        f"{len(pairs)} examples, {sum(len(g) * len(g[-1][0]) for g in groups) / 1e6:.1f}M tokens", flush=True
    )
    began, done, step, recent = time.monotonic(), 0.0, 0, 0.0
    while done < 1.0:
        rate = min(1.0, (step + 1) / 20) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))
        for part in optimizer.param_groups:
            part["lr"] = args.lr * rate
        loss = loss_of(model, groups[step % len(groups)], args.device)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        step += 1
        recent += loss.item() / 50
        done = max(step / len(groups), (time.monotonic() - began) / 60 / args.minutes)
        if step % 50 == 0:
            print(
                f"step {step} of {len(groups)}: loss {recent:.3f}, {time.monotonic() - began:.0f} s",
                flush=True,
            )
            recent = 0.0
    part = args.out.with_name(args.out.name + ".part")
    adapted.save_pretrained(part)
    os.replace(part, args.out)
    merged = adapted.merge_and_unload().eval().requires_grad_(False)
    asyncio.run(measure(merged, template, args))


async def measure(model: Any, template: Template, args: argparse.Namespace) -> None:
    """Print how well the kinds of replies to held-out people are named."""
    rng, people = random.Random("measure"), held_out_people()
    tasks = [
        kinds_pair(person, line, lines, people, rng)
        for person in people
        for line, lines in in_context(person)
    ]
    async with answers(model, template, args, longest=1024) as ask:
        replies = await asyncio.gather(*(ask(request, n, 0.0, 80) for n, (request, _) in enumerate(tasks)))
    total = right = sides = 0
    side = lambda kind: kind if kind == NONSENSE else str(kind in GOOD)  # noqa: E731
    confused: dict[str, int] = {}
    for (_, answer), reply in zip(tasks, replies, strict=True):
        meant = [row.partition(": ")[2] for row in answer.split("\n")]
        for a, b in zip(meant, read_kinds(reply, len(meant)), strict=True):
            total, right, sides = total + 1, right + (a == b), sides + (side(a) == side(b))
            key = f"{side(a)}-{side(b)}"
            confused[key] = confused.get(key, 0) + 1
    print(
        f"held out: {total} replies, kind right {right / total:.3f}, good, poor or nonsense right {sides / total:.3f}"
    )
    print(f"good (True), poor (False) or nonsense, meant-named: {confused}", flush=True)


@asynccontextmanager
async def answers(
    model: Any, template: Template, args: argparse.Namespace, longest: int
) -> AsyncIterator[Any]:
    """Yield a function that answers a request: text, number (the seed), temperature, longest answer."""
    sampler = Sampler(model, template, name="writer", slots=args.slots, context=longest, chunk=32)
    gate = asyncio.Semaphore(args.slots)

    async def ask(request: str, number: int, temperature: float, tokens: int) -> str:
        async with gate:
            chat = LocalChat(sampler, f"{number}")
            answer = await chat.reply(
                Request((Message("user", request),), temperature, 1.0, tokens, seed=number)
            )
            chat.end_dialogue()
        return answer.reply.text

    async with sampler:
        began = time.monotonic()
        yield ask
        print(
            f"{sampler.stats.sampled} tokens, {sampler.stats.sampled / (time.monotonic() - began):.0f}/s",
            flush=True,
        )


async def keep_asking(requests: Iterator[Any], args: argparse.Namespace, answer: Any) -> None:
    """Let all slots answer requests until there are none, or the time is over."""
    end, done = time.monotonic() + 60 * args.minutes, 0

    async def work() -> None:
        nonlocal done
        while time.monotonic() < end and (request := next(requests, None)) is not None:
            await answer(request)
            done += 1
            if done % 2000 == 0:
                print(f"{done} answers", flush=True)

    await asyncio.gather(*(work() for _ in range(args.slots)))
    print(f"{done} answers", flush=True)


async def stories(args: argparse.Namespace) -> None:
    """Write stories of new people; each is one line of the file."""
    model, template = load(args)
    with new_rows(args.out) as add:
        async with answers(model, template, args, LONGEST) as ask:

            async def story(numbered: tuple[int, str]) -> None:
                number, header = numbered
                text = await ask(header, number, args.temperature, LONGEST - 128)
                add({"id": number, "text": text + "\n"})

            await keep_asking(iter(enumerate(new_headers(200_000, args.seed))), args, story)


async def replies(args: argparse.Namespace) -> None:
    """Write replies to lines of known people."""
    model, template = load(args)
    with new_rows(args.out) as add:
        async with answers(model, template, args, 1024) as ask:
            number = numbers()

            async def reply(job: Any) -> None:
                text = await ask(job.request, next(number), args.temperature, 240)
                row = {"person": job.person, "variant": job.variant, "line": job.line, "text": job.text}
                add(row | {"replies": read_replies(text, job.text)})

            await keep_asking(reply_jobs(args.seed), args, reply)


async def short(args: argparse.Namespace) -> None:
    """Write short replies to lines of the people that `stories` wrote."""
    model, template = load(args)
    jobs = short_jobs(generated_people(args.stories), args.seed)
    with new_rows(args.out) as add:
        async with answers(model, template, args, 768) as ask:

            async def reply(job: tuple[int, tuple[list[str], str]]) -> None:
                number, (lines, request) = job
                pairs = read_replies(await ask(request, number, args.temperature, 120), lines[-1])
                add({"lines": lines[-BEFORE - 1 :], "replies": [pair for pair in pairs if is_short(pair[1])]})

            await keep_asking(iter(enumerate(jobs)), args, reply)


async def kinds(args: argparse.Namespace) -> None:
    """Name the kinds of collected replies."""
    model, template = load(args)
    with gzip.open(args.said, "rt", encoding="utf-8") as file:
        rows = [json.loads(row) for row in file]
    with new_rows(args.out) as add:
        async with answers(model, template, args, 1024) as ask:

            async def name(numbered: tuple[int, dict[str, Any]]) -> None:
                number, row = numbered
                text = await ask(kinds_request(row["lines"], row["replies"]), number, 0.0, 100)
                named = zip(read_kinds(text, len(row["replies"])), row["replies"], strict=True)
                pairs = [(kind, reply) for kind, reply in named if kind]
                add({"line": row["lines"][-1], "replies": pairs})

            await keep_asking(iter(enumerate(rows)), args, name)


def load(args: argparse.Namespace) -> tuple[Any, Template]:
    """Return the model, with the adapter of --writer merged into it."""
    model = load_model(args.model, (args.writer,), args.device, args.seed)
    return model, read_template(AutoTokenizer.from_pretrained(args.model))


def load_model(folder: str, adapters: Iterable[str | None], device: str, seed: int) -> Any:
    """Return a model with adapters merged into it, one after another."""
    torch.manual_seed(seed)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device)
    for adapter in filter(None, adapters):
        model = PeftModel.from_pretrained(model, adapter).merge_and_unload()
    return model.eval().requires_grad_(False)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=("train", "stories", "replies", "short", "kinds"))
    parser.add_argument("--model", required=True, help="folder of the language model")
    parser.add_argument("--writer", help="folder that `train` wrote")
    parser.add_argument("--start", help="folder of an adapter to go on training")
    parser.add_argument("--rank", type=int, default=16, help="rank of the adapter")
    parser.add_argument("--out", type=Path, required=True, help="folder (train) or file (.jsonl.gz) to write")
    parser.add_argument(
        "--only-short", action="store_true", help="train to write short replies alone (train)"
    )
    parser.add_argument("--stories", type=Path, nargs="+", default=[], help="files of `stories` (short)")
    parser.add_argument("--said", type=Path, help="file that say.py made (kinds)")
    parser.add_argument("--minutes", type=float, default=60.0, help="longest time of training or writing")
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--batch", type=int, default=8192, help="tokens per step")
    parser.add_argument("--slots", type=int, default=768, help="texts written at once")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.task == "train":
        train(args)
    else:
        tasks = {"stories": stories, "replies": replies, "short": short, "kinds": kinds}
        asyncio.run(tasks[args.task](args))


if __name__ == "__main__":
    main()
