"""Token rows -> what one forward pass takes: micro-batches by token budget, parts for updates and processes.

Rows are sorted by length, so that a micro-batch holds rows of about the same length and little padding.
Padding is on the right: with causal attention nothing that counts ever sees it, and no attention mask is
needed. The loss is a mean over the tokens of the whole batch, so where the cuts fall changes nothing.
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
class Micro:
    """Right-padded rows, [rows, length] each; `at` holds the places of the trained tokens in the flattened
    `ids`, in order, so that picking them needs no look at the device. `rows` are places in the list given.
    """

    ids: Tensor
    mask: Tensor
    advantages: Tensor
    logprobs: Tensor
    at: Tensor
    rows: tuple[int, ...]

    @property
    def trained(self) -> int:
        return self.at.numel()

    def to(self, device: torch.device | str) -> Micro:
        """On a device; from page-locked memory, so that the copy to a GPU does not wait for it."""
        target = torch.device(device)

        def move(tensor: Tensor) -> Tensor:
            if target.type == "cuda" and tensor.device.type == "cpu":
                tensor = tensor.pin_memory()
            return tensor.to(target, non_blocking=True)

        ids, mask, at = move(self.ids), move(self.mask), move(self.at)
        return Micro(ids, mask, move(self.advantages), move(self.logprobs), at, self.rows)


def micro_batches(rows: Sequence[Row], tokens: int, *, multiple: int = 1) -> list[Micro]:
    """Every row once, the longest first (what will not fit in memory shows at once).

    Each micro-batch has at most `tokens` tokens, padding counted, but for a single row that is longer by
    itself. Lengths are rounded up to `multiple`: few different shapes suit compiled code.
    """
    if tokens < 1 or multiple < 1:
        raise InputError(f"micro-batches of {tokens} tokens, multiple {multiple}", fix="Give 1 or more")
    order = sorted(range(len(rows)), key=lambda i: (-len(rows[i]), i))
    micros, start = [], 0
    while start < len(order):
        length = -(-len(rows[order[start]]) // multiple) * multiple
        count = max(1, tokens // length)
        micros.append(_padded(rows, order[start : start + count], length))
        start += count
    return micros


def _padded(rows: Sequence[Row], picked: list[int], length: int) -> Micro:
    shape = (len(picked), length)
    ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    advantages, logprobs = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    for place, index in enumerate(picked):
        row = rows[index]
        n = len(row)
        ids[place, :n], mask[place, :n] = row.ids, row.mask
        advantages[place, :n], logprobs[place, :n] = row.advantages, row.logprobs
    return Micro(
        ids=torch.from_numpy(ids),
        mask=torch.from_numpy(mask),
        advantages=torch.from_numpy(advantages),
        logprobs=torch.from_numpy(logprobs),
        at=torch.from_numpy(np.flatnonzero(mask)),
        rows=tuple(picked),
    )


def minibatches(rows: Sequence[Row], n: int, seed: int) -> list[list[Row]]:
    """At most `n` parts of a batch, one optimizer update each, shuffled by `seed`.

    The rows of one dialogue stay together; the parts hold about equally many trained tokens.
    """
    if n < 1:
        raise InputError(f"{n} updates a batch", fix="Give 1 or more")
    dialogues = list(dict.fromkeys(row.dialogue for row in rows))
    parts = min(n, len(dialogues))
    shuffled = [dialogues[i] for i in np.random.default_rng(seed).permutation(len(dialogues))]
    weight = dict.fromkeys(dialogues, 0)
    for row in rows:
        weight[row.dialogue] += row.trained
    part_of = _deal(shuffled, parts, weight.__getitem__)
    return [[row for row in rows if part_of[row.dialogue] == part] for part in range(parts)]


def share(rows: Sequence[Row], rank: int, world: int) -> list[Row]:
    """The rows of one of `world` processes, about equally many tokens each; maybe none, if rows are few."""
    if not 0 <= rank < world:
        raise InputError(f"rank {rank} of {world}", fix="Ranks count from 0")
    order = sorted(range(len(rows)), key=lambda i: (-len(rows[i]), i))
    part_of = _deal(order, world, lambda i: len(rows[i]))
    return [row for i, row in enumerate(rows) if part_of[i] == rank]


def _deal(items: Sequence[int], parts: int, weight: Callable[[int], int]) -> dict[int, int]:
    """Each item to the part that is lightest so far: item -> part."""
    load = [(0, 0)] * parts  # the weight, then the number of items: weightless ones are spread too
    part_of = {}
    for item in items:
        part = min(range(parts), key=load.__getitem__)
        part_of[item] = part
        load[part] = (load[part][0] + weight(item), load[part][1] + 1)
    return part_of
