"""Many prompts that share a beginning, in one row: a trunk of ids and branches that grow from it.

A judge reads a form after every turn of a dialogue. Each prompt repeats the dialogue so far, so a dialogue of
n turns as n rows costs about n / 2 times the tokens. Here the dialogue is one trunk, and what differs between
the prompts (the closing question and the form) is a branch per turn. A branch sees the first `visible` ids of
the trunk and itself, at the positions it would have alone, so the logits are those of separate prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class Branch:
    """The ids after a prefix of the trunk. `reads` are indices into `ids` whose logits are used."""

    visible: int
    ids: list[int]
    reads: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class BranchedRow:
    """A trunk and its branches."""

    trunk: list[int]
    branches: list[Branch]

    @property
    def length(self) -> int:
        return len(self.trunk) + sum(len(branch.ids) for branch in self.branches)


@dataclass(frozen=True, slots=True)
class BranchedBatch:
    """Rows stacked to [B, T], padded on the right.

    `branch` numbers the branches of a row from 1; the trunk is 0 and padding is -1. `visible` is the number
    of trunk ids that each position sees. `reads` are the (row, column) pairs of all reads, in the order of
    rows, branches and reads.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    branch: torch.Tensor
    visible: torch.Tensor
    reads: tuple[torch.Tensor, torch.Tensor]


def stack_rows(rows: Sequence[BranchedRow], device: torch.device | str = "cpu") -> BranchedBatch:
    """Return the rows as one batch on a device."""
    width = max(row.length for row in rows)
    columns = torch.zeros(4, len(rows), width, dtype=torch.int64)
    columns[2] = -1
    where: list[tuple[int, int]] = []
    for number, row in enumerate(rows):
        at = len(row.trunk)
        count = torch.arange(at)
        columns[:, number, :at] = torch.stack(
            [torch.tensor(row.trunk, dtype=torch.int64), count, torch.zeros_like(count), count + 1]
        )
        for name, branch in enumerate(row.branches, 1):
            size = len(branch.ids)
            offsets = torch.arange(size)
            columns[:, number, at : at + size] = torch.stack(
                [
                    torch.tensor(branch.ids, dtype=torch.int64),
                    branch.visible + offsets,
                    torch.full_like(offsets, name),
                    torch.full_like(offsets, branch.visible),
                ]
            )
            where += [(number, at + read) for read in branch.reads]
            at += size
    ids, positions, branches, visible = columns.to(device)
    reads = torch.tensor(where, dtype=torch.int64).reshape(-1, 2).to(device)
    return BranchedBatch(ids, positions, branches, visible, (reads[:, 0], reads[:, 1]))


def attention_mask(batch: BranchedBatch, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the additive attention mask [B, 1, T, T]: 0 where a position sees another, the lowest number of
    `dtype` where it does not.

    A position sees the first `visible` ids of the trunk and, in its own branch, itself and what precedes it.
    """
    width = batch.ids.shape[1]
    column = torch.arange(width, device=batch.ids.device)
    in_trunk = (batch.branch == 0)[:, None, :] & (column[None, None, :] < batch.visible[:, :, None])
    in_branch = (batch.branch[:, None, :] == batch.branch[:, :, None]) & (column[None, :] <= column[:, None])
    mask = torch.zeros(in_trunk.shape, dtype=dtype, device=column.device)
    return mask.masked_fill_(~(in_trunk | in_branch), torch.finfo(dtype).min)[:, None]


def branch_off(prompts: Sequence[Sequence[int]]) -> tuple[list[int], list[tuple[int, list[int]]]]:
    """Split prompts that grow into a trunk and, for each, its visible part of the trunk and its own ids.

    The trunk is the last prompt. A prompt sees the trunk up to where its ids first differ; the last prompt
    has at least its last id as a branch of its own.
    """
    last = list(prompts[-1])
    branches = []
    for prompt in prompts:
        same = common_prefix(prompt, last[:-1])
        branches.append((same, list(prompt[same:])))
    longest = max(visible for visible, _ in branches)
    return last[:longest], branches


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
