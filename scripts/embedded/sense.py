"""Let a language model say whether replies make sense, after it has learned to from replies that were read one by one.
Needs a GPU.

    export PYTHONPATH=.
    python scripts/embedded/sense.py train --model qwen --writer writer --out reader
    python scripts/embedded/sense.py read --model qwen --writer writer --reader reader --out sense.jsonl.gz \\
        --stories stories.jsonl.gz --replies replies.jsonl.gz --said said.jsonl.gz

`sense.jsonl` has replies of the writing model and of policies, and whether somebody could have said them there. `train`
trains a further LoRA adapter on them, on written replies and on spoiled ones, and prints how well it tells them apart for
lines it has not learned from. `read` gives each reply of the files of `write.py` and `say.py` a probability of making
sense; `make_policy.py` and `make_judge.py` take its file as --sense.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import random
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from corpus import generated_people, people_with_new_replies
from documents import is_short, new_rows, shown_lines
from peft import LoraConfig, get_peft_model
from tasks import in_context, spoil
from texts import HERE, Person, known_people
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoTokenizer
from write import load_model

LABELS = HERE / "sense.jsonl"
BEFORE = 2
"""Lines of the story that are shown before the line in question."""
HELD_OUT = 8
"""The labelled replies to one line in so many are not learned from."""
WRITTEN = 1.0
"""Written lines per labelled reply in training."""
MASKED = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Attention kernels that take a mask. That of cuDNN gives gradients that are not finite for some lengths of rows on an H200
(pytorch issue 196678)."""


@dataclass(slots=True)
class Item:
    """A line, what was told before it, and replies with what is known about their sense: 1, 0, or -1 for nothing."""

    lines: list[str]
    replies: list[str]
    sense: list[int] = field(default_factory=list)
    source: str = ""


@dataclass(slots=True)
class Rows:
    """Items as padded tensors. All replies of an item stand in one row and do not see each other: each reads as if it
    were the only one. `reads` are the places of the answers in the flattened rows, in the order of the replies."""

    ids: torch.Tensor
    places: torch.Tensor
    mask: torch.Tensor
    reads: torch.Tensor


Parts = tuple[list[int], list[list[int]]]
"""The ids of a story, and of each reply with the question after it."""


class Encoder:
    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.yes, self.no = (ids[0] for ids in self._ids([" yes", " no"]))

    def _ids(self, texts: list[str]) -> list[list[int]]:
        return self.tokenizer(texts, add_special_tokens=False)["input_ids"]

    def parts(self, items: Sequence[Item]) -> list[Parts]:
        stories = self._ids([shown_lines(item.lines[-BEFORE - 1 :]) + "\n" for item in items])
        texts = [f"reply: {reply}\nmakes sense:" for item in items for reply in item.replies]
        replies = iter(self._ids(texts))
        return [
            (story, [next(replies) for _ in item.replies]) for story, item in zip(stories, items, strict=True)
        ]


def rows_of(parts: Sequence[Parts]) -> Rows:
    """Return a batch. What a token sees is given by the part it belongs to: 0 the story, 1 and up the replies."""
    width = max(len(story) + sum(map(len, replies)) for story, replies in parts)
    ids, places = np.zeros((len(parts), width), np.int64), np.zeros((len(parts), width), np.int64)
    part = np.full((len(parts), width), -1)
    reads = []
    for n, (story, replies) in enumerate(parts):
        at = len(story)
        ids[n, :at], places[n, :at], part[n, :at] = story, np.arange(at), 0
        for number, reply in enumerate(replies, 1):
            mine = slice(at, at + len(reply))
            ids[n, mine], part[n, mine] = reply, number
            places[n, mine] = len(story) + np.arange(len(reply))
            at = mine.stop
            reads.append(n * width + at - 1)
    parts_of = torch.from_numpy(part)
    order = torch.arange(width)
    sees = (parts_of[:, :, None] == parts_of[:, None, :]) | (parts_of[:, None, :] == 0)
    sees &= order[:, None] >= order[None, :]
    return Rows(torch.from_numpy(ids), torch.from_numpy(places), sees[:, None], torch.tensor(reads))


def answers(model: Any, encoder: Encoder, rows: Rows, device: str) -> torch.Tensor:
    """Return the log-odds of sense of each reply."""
    with sdpa_kernel(MASKED):
        hidden = model.model(
            input_ids=rows.ids.to(device, non_blocking=True),
            position_ids=rows.places.to(device, non_blocking=True),
            attention_mask=rows.mask.to(device, non_blocking=True),
            use_cache=False,
        ).last_hidden_state
    head = model.lm_head.weight
    read = hidden.flatten(0, 1)[rows.reads.to(device)]
    return (read @ (head[encoder.yes] - head[encoder.no])).float()


def labelled() -> list[Item]:
    with LABELS.open(encoding="utf-8") as file:
        rows = [json.loads(row) for row in file]
    return [Item(row["lines"], [row["reply"]], [row["sense"]], row["by"]) for row in rows]


def is_held_out(item: Item) -> bool:
    return zlib.crc32(item.lines[-1].encode()) % HELD_OUT == 0


def written(people: Sequence[Person], count: int, rng: random.Random) -> list[Item]:
    """Return lines with written replies, some of them spoiled."""
    items = []
    places = [(person, *place) for person in people for place in in_context(person)]
    for person, line, lines in rng.sample(places, min(count, len(places))):
        replies, sense = [], []
        for _, text in rng.sample(line.replies, min(3, len(line.replies))):
            spoiled = spoil(text, person, lines, people, rng) if rng.random() < 0.3 else ""
            replies.append(spoiled or text)
            sense.append(int(not spoiled))
        items.append(Item(lines, replies, sense, "written"))
    return items


def batches(encoded: Sequence[Parts], budget: int) -> list[list[int]]:
    """Group indices of rows of similar length into padded batches of at most `budget` tokens."""
    sizes = [len(story) + sum(map(len, replies)) for story, replies in encoded]
    groups: list[list[int]] = [[]]
    for index in sorted(range(len(sizes)), key=sizes.__getitem__):
        if groups[-1] and (len(groups[-1]) + 1) * sizes[index] > budget:
            groups.append([])
        groups[-1].append(index)
    return groups


def train(args: argparse.Namespace) -> None:
    """Train an adapter on top of the writer's, save it, and print how well it reads."""
    rng = random.Random(args.seed)
    model, encoder = load(args)
    adapter = LoraConfig(
        r=args.rank, lora_alpha=2 * args.rank, lora_dropout=0.05, target_modules="all-linear"
    )
    adapted: Any = get_peft_model(model, adapter)
    items = labelled()
    known = [item for item in items if not is_held_out(item)]
    tests = [item for item in items if is_held_out(item)]
    learned = [
        item
        for _ in range(args.passes)
        for item in (*known, *written(known_people(), round(WRITTEN * len(known)), rng))
    ]
    encoded = encoder.parts(learned)
    groups = batches(encoded, args.batch)
    rng.shuffle(groups)
    weights = [p for p in adapted.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.01)
    print(f"{len(known)} labelled replies, {len(learned)} lines, {len(groups)} steps", flush=True)
    adapted.train()
    began, recent = time.monotonic(), 0.0
    for step, group in enumerate(groups):
        done = max(step / len(groups), (time.monotonic() - began) / 60 / args.minutes)
        if done >= 1:
            break
        for part in optimizer.param_groups:
            part["lr"] = args.lr * min(1.0, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * done))
        truth = torch.tensor([s for k in group for s in learned[k].sense], device=args.device).float()
        with torch.autocast(args.device, torch.bfloat16, enabled=args.device == "cuda"):
            odds = answers(model, encoder, rows_of([encoded[k] for k in group]), args.device)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(odds.float(), truth)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(weights, 1.0)
        if not math.isfinite(norm):
            raise SystemExit(f"step {step + 1}: the gradient is not finite")
        optimizer.step()
        recent += loss.item() / 50
        if step % 50 == 49:
            print(f"step {step + 1}: loss {recent:.3f}, {time.monotonic() - began:.0f} s", flush=True)
            recent = 0.0
    part_of = args.out.with_name(args.out.name + ".part")
    adapted.save_pretrained(part_of)
    os.replace(part_of, args.out)
    adapted.eval()
    measure(model, encoder, tests, args)


def measure(model: Any, encoder: Encoder, tests: Sequence[Item], args: argparse.Namespace) -> None:
    """Print, by source, how many held-out replies make sense, the area under the curve, and what a threshold keeps."""
    odds = list(read_all(model, encoder, tests, args))
    for source in ("", *sorted({item.source for item in tests})):
        mine = [
            (o[0], item.sense[0]) for item, o in zip(tests, odds, strict=True) if source in ("", item.source)
        ]
        yes, no = ([o for o, sense in mine if sense == wanted] for wanted in (1, 0))
        if not yes or not no:
            continue
        above = np.mean([[a > b for b in no] for a in yes])
        kept = []
        for least in (0.5, 0.7, 0.85, 0.95):
            over = [sense for o, sense in mine if o >= math.log(least / (1 - least))]
            kept.append(
                f"{least}: keeps {len(over) / len(mine):.2f}, {sum(over) / max(1, len(over)):.2f} of them sensible"
            )
        print(
            f"{source or 'all'}: {len(mine)} replies, {len(yes) / len(mine):.2f} make sense, area {above:.3f}; "
            + "; ".join(kept),
            flush=True,
        )


def read_all(
    model: Any, encoder: Encoder, items: Sequence[Item], args: argparse.Namespace
) -> Iterator[list[float]]:
    """Yield the log-odds of each item's replies, in the order of the items; all of them are read before the first."""
    encoded = encoder.parts(items)
    result: list[list[float]] = [[]] * len(items)
    with torch.inference_mode():
        for group in batches(encoded, args.batch):
            rows = rows_of([encoded[k] for k in group])
            odds = iter(answers(model, encoder, rows, args.device).tolist())
            for k in group:
                result[k] = [next(odds) for _ in items[k].replies]
    yield from result


def items_of(people: Iterable[Person], *, only_short: bool) -> Iterator[Item]:
    """Yield the lines of people with their replies, after the story as far as it was told: others than those of the
    story follow a line of it."""
    for person in people:
        for line, lines in in_context(person):
            replies = [reply for _, reply in line.replies if is_short(reply) or not only_short]
            if replies:
                yield Item(lines, replies)


def said(paths: Sequence[Path]) -> Iterator[Item]:
    for path in paths:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for text in file:
                row = json.loads(text)
                yield Item(row["lines"], [r if isinstance(r, str) else r[1] for r in row["replies"]])


def read(args: argparse.Namespace) -> None:
    """Write the probability of sense of each reply of the given files, as many as the time allows."""
    model, encoder = load(args)
    items = [
        *said(args.said),
        *items_of(generated_people(args.stories), only_short=args.only_short),
        *items_of(people_with_new_replies(args.replies), only_short=args.only_short),
    ]
    end, done = time.monotonic() + 60 * args.minutes, 0
    with new_rows(args.out) as add:
        for start in range(0, len(items), args.chunk):
            if time.monotonic() > end:
                break
            some = items[start : start + args.chunk]
            for item, odds in zip(some, read_all(model, encoder, some, args), strict=True):
                pairs = [
                    (r, round(1 / (1 + math.exp(-o)), 3)) for r, o in zip(item.replies, odds, strict=True)
                ]
                add({"line": item.lines[-1], "replies": pairs})
            done += len(some)
            print(f"{done} of {len(items)} lines", flush=True)


def load(args: argparse.Namespace) -> tuple[Any, Encoder]:
    """Return the model with the given adapters merged into it."""
    model = load_model(args.model, (args.writer, args.reader), args.device, args.seed)
    return model, Encoder(AutoTokenizer.from_pretrained(args.model))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=("train", "read"))
    parser.add_argument("--model", required=True, help="folder of the language model")
    parser.add_argument("--writer", help="folder that `write.py train` wrote")
    parser.add_argument("--reader", help="folder that `train` wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder (train) or file (.jsonl.gz) to write")
    parser.add_argument("--stories", type=Path, nargs="+", default=[], help="files of `write.py stories`")
    parser.add_argument("--replies", type=Path, nargs="+", default=[], help="files of `write.py replies`")
    parser.add_argument(
        "--said", type=Path, nargs="+", default=[], help="files of say.py or `write.py short`"
    )
    parser.add_argument(
        "--only-short", action="store_true", help="read only short replies of --stories and --replies"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="longest time of training or reading")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--batch", type=int, default=16384, help="tokens per batch")
    parser.add_argument("--chunk", type=int, default=20000, help="lines sorted by length at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    {"train": train, "read": read}[args.task](args)


if __name__ == "__main__":
    main()
