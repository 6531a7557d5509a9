"""Naming the kind of a reply from its words: a linear model over hashed word sequences, for replies that are known to make
sense but not what they are."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Sequence

import torch
from dialogues import content
from documents import words
from texts import KINDS, Person

BUCKETS = 1 << 18


def features(line: str, reply: str) -> list[int]:
    """Return the hashed sequences of one to three words of a reply, and what it shares with the line."""
    tokens = ["<", *words(reply), reply[-1:]]
    rows = [" ".join(tokens[k : k + n]) for n in (1, 2, 3) for k in range(len(tokens) - n + 1)]
    shared = len(content(line) & content(reply))
    rows += [f"shared {min(shared, 3)}", f"line {line[-1:]}", f"long {len(tokens) // 3}"]
    return [zlib.crc32(row.encode()) % BUCKETS for row in rows]


def train_namer(people: Sequence[Person], passes: int = 1) -> Callable[[str, str], str]:
    """Return a function that names the kind of a reply to a line, learned from the replies of `people`."""
    torch.manual_seed(0)
    pairs = [
        (features(line.text, r), KINDS.index(k)) for p in people for line in p.lines for k, r in line.replies
    ]
    torch.sparse.check_sparse_tensor_invariants.disable()  # explicitly: otherwise Adagrad warns
    bag = torch.nn.EmbeddingBag(BUCKETS, len(KINDS), mode="sum", sparse=True)
    torch.nn.init.zeros_(bag.weight)
    optimizer = torch.optim.Adagrad(bag.parameters(), lr=0.2)
    for _ in range(passes):
        for some in _batches(pairs):
            scores = bag(*_bags([row for row, _ in some]))
            loss = torch.nn.functional.cross_entropy(scores, torch.tensor([kind for _, kind in some]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def name(line: str, reply: str) -> str:
        with torch.no_grad():
            return KINDS[int(bag(*_bags([features(line, reply)])).argmax())]

    return name


def _batches(pairs: list[tuple[list[int], int]], size: int = 512) -> Iterator[list[tuple[list[int], int]]]:
    order = random.Random(0).sample(pairs, len(pairs))
    yield from (order[k : k + size] for k in range(0, len(order), size))


def _bags(rows: Sequence[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.tensor([0, *map(len, rows)][:-1]).cumsum(0)
    return torch.tensor([number for row in rows for number in row]), starts
