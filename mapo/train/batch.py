"""Batching of token rows: minibatches for updates, shares for processes, micro-batches for forward passes.

Rows are sorted by length, so that a micro-batch holds rows of similar length and little padding. Padding is
on the right: with causal attention no token of a row attends to it, and no attention mask is needed. The
loss is a mean over the tokens of the minibatch, so the cuts do not change it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mapo.errors import InputError
from mapo.rows import Row


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Right-padded rows as tensors of shape [rows, length].

    `at` holds the positions of the trained tokens in the flattened `ids`, so that selecting them needs no
    synchronisation with the device. `rows` are the indices of the rows in the original list.
    """

    ids: Tensor
    mask: Tensor
    advantages: Tensor
    logprobs: Tensor
    at: Tensor
    rows: tuple[int, ...]

    @property
    def trained(self) -> int:
        """The number of trained tokens."""
        return self.at.numel()

    def to(self, device: torch.device | str) -> MicroBatch:
        """Copy to a device; to a GPU without blocking, from page-locked memory."""
        target = torch.device(device)

        def move(tensor: Tensor) -> Tensor:
            if target.type == "cuda" and tensor.device.type == "cpu":
                tensor = tensor.pin_memory()
            return tensor.to(target, non_blocking=True)

        ids, mask, at = move(self.ids), move(self.mask), move(self.at)
        return MicroBatch(ids, mask, move(self.advantages), move(self.logprobs), at, self.rows)


def micro_batches(rows: Sequence[Row], tokens: int, *, multiple: int = 1) -> list[MicroBatch]:
    """Return micro-batches with every row once, the longest first, so that lack of memory shows at once.

    Each micro-batch has at most `tokens` tokens including padding, unless a single row is longer. Lengths are
    rounded up to `multiple`, because compiled code needs few different shapes.
    """
    if tokens < 1 or multiple < 1:
        raise InputError(f"tokens is {tokens} and multiple is {multiple}", fix="Use 1 or more for both")
    order = sorted(range(len(rows)), key=lambda i: (-len(rows[i]), i))
    micros, start = [], 0
    while start < len(order):
        length = -(-len(rows[order[start]]) // multiple) * multiple
        count = max(1, tokens // length)
        micros.append(_padded(rows, order[start : start + count], length))
        start += count
    return micros


def empty_batch(length: int = 1) -> MicroBatch:
    """Return a micro-batch of one row without trained tokens, whose gradient is zero."""
    zeros, nothing = torch.zeros(1, length), torch.zeros(0, dtype=torch.int64)
    return MicroBatch(zeros.long(), zeros.bool(), zeros, zeros, at=nothing, rows=())


def _padded(rows: Sequence[Row], indices: list[int], length: int) -> MicroBatch:
    shape = (len(indices), length)
    ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    advantages, logprobs = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    for position, index in enumerate(indices):
        row = rows[index]
        n = len(row)
        ids[position, :n], mask[position, :n] = row.ids, row.mask
        advantages[position, :n], logprobs[position, :n] = row.advantages, row.logprobs
    return MicroBatch(
        ids=torch.from_numpy(ids),
        mask=torch.from_numpy(mask),
        advantages=torch.from_numpy(advantages),
        logprobs=torch.from_numpy(logprobs),
        at=torch.from_numpy(np.flatnonzero(mask)),
        rows=tuple(indices),
    )


def minibatches(rows: Sequence[Row], n: int, seed: int) -> list[list[Row]]:
    """Split a batch into at most `n` minibatches, one per optimizer step, shuffled by `seed`.

    The rows of a dialogue stay together; the minibatches have about the same number of trained tokens.
    """
    if n < 1:
        raise InputError(f"{n} updates per batch", fix="Use 1 or more")
    dialogues = list(dict.fromkeys(row.dialogue for row in rows))
    parts = min(n, len(dialogues))
    shuffled = [dialogues[i] for i in np.random.default_rng(seed).permutation(len(dialogues))]
    weight = dict.fromkeys(dialogues, 0)
    for row in rows:
        weight[row.dialogue] += row.trained
    part_of = _distribute(shuffled, parts, weight.__getitem__)
    return [[row for row in rows if part_of[row.dialogue] == part] for part in range(parts)]


def share(rows: Sequence[Row], rank: int, world_size: int) -> list[Row]:
    """Return the rows of one process; all get about the same number of tokens, or none if rows are few."""
    if not 0 <= rank < world_size:
        raise InputError(f"rank {rank} of {world_size} processes", fix="Ranks count from 0")
    order = sorted(range(len(rows)), key=lambda i: (-len(rows[i]), i))
    part_of = _distribute(order, world_size, lambda i: len(rows[i]))
    return [row for i, row in enumerate(rows) if part_of[i] == rank]


def _distribute(items: Sequence[int], parts: int, weight: Callable[[int], int]) -> dict[int, int]:
    """Assign each item to the part with the least weight so far; return the part of each item."""
    load = [(0, 0)] * parts  # weight and number of items: items without weight are distributed too
    part_of = {}
    for item in items:
        part = min(range(parts), key=load.__getitem__)
        part_of[item] = part
        load[part] = (load[part][0] + weight(item), load[part][1] + 1)
    return part_of
