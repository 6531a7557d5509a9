"""A linear model over hashed features of texts."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence

import torch

BATCH, LEARNING_RATE = 512, 0.2
Rows = Sequence[Sequence[str]]
"""Features of each text, as strings."""


def train_linear(
    rows: Rows, labels: Sequence[int], *, classes: int, buckets: int, passes: int = 1, decay: float = 0.0
) -> Callable[[Rows], torch.Tensor]:
    """Return a function that gives the probabilities of the classes, learned from the labels of `rows`."""
    hashed = [_hashed(row, buckets) for row in rows]
    zeros = torch.zeros(buckets, classes)
    weights = torch.nn.EmbeddingBag.from_pretrained(zeros, freeze=False, mode="sum")
    optimizer = torch.optim.Adagrad(weights.parameters(), lr=LEARNING_RATE)
    rng, order = random.Random(0), list(range(len(rows)))
    for _ in range(passes):
        rng.shuffle(order)
        for some in (order[k : k + BATCH] for k in range(0, len(order), BATCH)):
            bags = _bags([hashed[n] for n in some])
            loss = torch.nn.functional.cross_entropy(weights(*bags), torch.tensor([labels[n] for n in some]))
            if decay:
                loss = loss + decay * weights.weight[bags[0].unique()].square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    @torch.no_grad()
    def probabilities(rows: Rows) -> torch.Tensor:
        parts = (rows[k : k + BATCH] for k in range(0, len(rows), BATCH))
        scores = [weights(*_bags([_hashed(row, buckets) for row in part])) for part in parts]
        return torch.cat([torch.empty(0, classes), *scores]).softmax(-1)

    return probabilities


def _hashed(row: Sequence[str], buckets: int) -> list[int]:
    return [zlib.crc32(feature.encode()) % buckets for feature in row]


def _bags(rows: Sequence[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the numbers of all rows and where each row starts."""
    starts = torch.tensor([0, *map(len, rows)][:-1]).cumsum(0)
    return torch.tensor([number for row in rows for number in row]), starts
