"""Data-parallel training in one or several processes (`run.processes`, torchrun, `accelerate launch`).

Every process holds the whole model, plays its share of the scenarios and computes its share of the gradient.
Gradients are summed, so all processes take the same optimizer step. With `run.shard` the training state is
divided among them (`sharding/`). Models whose weights do not fit on one GPU need the verl engine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.rendezvous import rendezvous

from mapo.errors import InputError, TrainError

JOINING = timedelta(minutes=10)
"""How long processes may take to join: to start Python and import the libraries."""
WORKING = timedelta(hours=12)
"""How long processes wait for each other: for a share of dialogues with remote judges, or a checkpoint."""


def _renamed(name: str, earlier: str) -> Any:
    """Return a function of torch.distributed by its name since torch 2.13, or its earlier one."""
    return getattr(torch.distributed, name, None) or getattr(torch.distributed, earlier)


@dataclass(frozen=True, slots=True)
class PendingSum:
    """A sum over processes in progress. `sent` must not be changed or freed before it ends."""

    sent: torch.Tensor
    total: torch.Tensor
    work: Any = None

    def wait(self) -> torch.Tensor:
        """Return the sum. On a GPU later operations wait for it, not the caller."""
        if self.work is not None:
            self.work.wait()
        return self.total


class ProcessGroup:
    """The processes that train together. With one process every method does nothing.

    `store` is torch's key-value store that all of them can reach.
    """

    def __init__(self, rank: int = 0, world_size: int = 1, device: str = "cpu", store: Any = None) -> None:
        self.rank, self.world_size, self.device, self.store = rank, world_size, device, store

    @property
    def is_leader(self) -> bool:
        """Whether this is rank 0, which writes everything that is written once."""
        return self.rank == 0

    def gather(self, items: list[Any]) -> list[Any]:
        """Return the items (JSON values) of all processes in rank order, to every process."""
        if self.world_size == 1:
            return items
        data = torch.frombuffer(bytearray(json.dumps(items).encode()), dtype=torch.uint8).to(self.device)
        sizes = [torch.zeros(1, dtype=torch.long, device=self.device) for _ in range(self.world_size)]
        torch.distributed.all_gather(sizes, torch.tensor([len(data)], device=self.device))
        longest = int(max(sizes))
        parts = [torch.zeros(longest, dtype=torch.uint8, device=self.device) for _ in range(self.world_size)]
        torch.distributed.all_gather(parts, torch.nn.functional.pad(data, (0, longest - len(data))))
        texts = [bytes(p[: int(n)].cpu().tolist()) for p, n in zip(parts, sizes, strict=True)]
        return [item for text in texts for item in json.loads(text)]

    def sum_gradients(self, gradients: Iterable[torch.Tensor]) -> None:
        """Sum gradients in place. Every process passes all of them in the same order
        (`Optimizer.gradients(every=True)`)."""
        if self.world_size > 1:
            for gradient in gradients:
                torch.distributed.all_reduce(gradient)

    def sum_rows(self, rows: torch.Tensor) -> PendingSum:
        """Start to sum `rows`, one per process, over all processes; the sum is this process's row of it."""
        if self.world_size == 1:
            return PendingSum(rows, rows[0])
        total = torch.empty_like(rows[0])
        sum_rows = _renamed("reduce_scatter_single", "reduce_scatter_tensor")
        return PendingSum(rows, total, sum_rows(total, rows.flatten(), async_op=True))

    def gather_rows(self, row: torch.Tensor) -> torch.Tensor:
        """Return the rows of all processes, in rank order, to every process."""
        rows = row.new_empty(self.world_size, row.numel())
        if self.world_size == 1:
            rows[0] = row
        else:
            _renamed("all_gather_single", "all_gather_into_tensor")(rows.view(-1), row.contiguous())
        return rows

    def sum_number(self, number: torch.Tensor) -> float:
        """Return the sum of a number over all processes, to every process."""
        if self.world_size > 1:
            torch.distributed.all_reduce(number)
        return float(number)

    def wait(self) -> None:
        """Wait until all processes have called this."""
        if self.world_size > 1:
            torch.distributed.barrier()

    def publish(self, topic: str, text: str) -> None:
        """Make a text readable for the other processes; it replaces this process's last one on the topic."""
        if self.store is not None:
            self.store.set(f"mapo/{topic}/{self.rank}", text)

    def published(self, topic: str) -> list[str]:
        """Return what the other processes have published on a topic so far. Does not wait."""
        if self.store is None:
            return []
        keys = [f"mapo/{topic}/{rank}" for rank in range(self.world_size) if rank != self.rank]
        return [self.store.get(key).decode() for key in keys if self.store.check([key])]

    def leave(self) -> None:
        """Leave after a successful run. After a failure this could wait for processes that are gone."""
        if self.world_size > 1:
            torch.distributed.destroy_process_group()


def join_processes(device: str = "auto") -> ProcessGroup:
    """Join the processes that this one was launched with, by `launch.py`, torchrun or `accelerate launch`."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        return ProcessGroup()
    gpu = _gpu() if device != "cpu" and torch.cuda.is_available() else None
    try:
        store, rank, world_size = next(rendezvous("env://", timeout=JOINING))
        store.set(f"mapo/{rank}", "here")
        store.wait([f"mapo/{k}" for k in range(world_size)], JOINING)
    except RuntimeError as error:
        raise TrainError(
            f"the {world_size} processes of the run could not connect ({str(error).splitlines()[0]})",
            fix="Give each its own RANK and all the same MASTER_ADDR and MASTER_PORT, then use --resume",
        ) from error
    backend = "gloo" if gpu is None else "nccl"
    torch.distributed.init_process_group(
        backend, store=store, rank=rank, world_size=world_size, timeout=WORKING, device_id=gpu
    )
    return ProcessGroup(rank, world_size, str(gpu or "cpu"), store)


def _gpu() -> torch.device:
    """Return this process's GPU and make it the current one, which plain "cuda" refers to."""
    number, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= count:
        raise InputError(
            f"there is no GPU for process {number + 1}: this machine has {count}",
            where="run.processes",
            fix="Use at most one process per GPU, or model.device=cpu",
        )
    gpu = torch.device("cuda", number)
    torch.cuda.set_device(gpu)
    return gpu
