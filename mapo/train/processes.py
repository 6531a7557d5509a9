"""Data-parallel training in one or several processes (`run.processes`, torchrun, `accelerate launch`).

Every process holds the whole model, plays its share of the scenarios and computes its share of the gradient.
Gradients are summed, so all processes take the same step. Models too large for one card need the verl
engine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
from torch.distributed.rendezvous import rendezvous

from mapo.errors import InputError, TrainError

JOINING = timedelta(minutes=10)
"""How long processes may take to join: to start Python and import the libraries."""
WORKING = timedelta(hours=12)
"""How long processes wait for each other: for a share of dialogues with remote judges, or a checkpoint."""


class Team:
    """The processes that train together. With one process every method does nothing."""

    def __init__(self, rank: int = 0, world: int = 1, device: str = "cpu") -> None:
        self.rank, self.world, self.device = rank, world, device

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which writes everything that is written once."""
        return self.rank == 0

    def gather(self, mine: list[Any]) -> list[Any]:
        """Return the items (JSON values) of all processes in rank order, to every process."""
        if self.world == 1:
            return mine
        data = torch.frombuffer(bytearray(json.dumps(mine).encode()), dtype=torch.uint8).to(self.device)
        sizes = [torch.zeros(1, dtype=torch.long, device=self.device) for _ in range(self.world)]
        torch.distributed.all_gather(sizes, torch.tensor([len(data)], device=self.device))
        longest = int(max(sizes))
        parts = [torch.zeros(longest, dtype=torch.uint8, device=self.device) for _ in range(self.world)]
        torch.distributed.all_gather(parts, torch.nn.functional.pad(data, (0, longest - len(data))))
        texts = [bytes(p[: int(n)].cpu().tolist()) for p, n in zip(parts, sizes, strict=True)]
        return [item for text in texts for item in json.loads(text)]

    def sum_gradients(self, gradients: Iterable[torch.Tensor]) -> None:
        """Sum gradients in place. Every process passes all of them in the same order
        (`Optimizer.gradients(every=True)`)."""
        if self.world > 1:
            for gradient in gradients:
                torch.distributed.all_reduce(gradient)

    def wait(self) -> None:
        if self.world > 1:
            torch.distributed.barrier()

    def leave(self) -> None:
        """Leave after a successful run. After a failure this could wait for processes that are gone."""
        if self.world > 1:
            torch.distributed.destroy_process_group()


def leads() -> bool:
    """Return whether this process is rank 0, or the only one."""
    return int(os.environ.get("RANK", "0")) == 0


def join_team(device: str = "auto") -> Team:
    """Join the processes that this one was launched with, by `launch.py`, torchrun or `accelerate launch`."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return Team()
    card = _card() if device != "cpu" and torch.cuda.is_available() else None
    try:
        store, rank, world = next(rendezvous("env://", timeout=JOINING))
        store.set(f"mapo/{rank}", "here")
        store.wait([f"mapo/{k}" for k in range(world)], JOINING)
    except RuntimeError as error:
        raise TrainError(
            f"the {world} processes of the run did not come together ({str(error).splitlines()[0]})",
            fix="Give each its RANK, and all the same MASTER_ADDR and MASTER_PORT; then --resume",
        ) from error
    backend = "gloo" if card is None else "nccl"
    torch.distributed.init_process_group(
        backend, store=store, rank=rank, world_size=world, timeout=WORKING, device_id=card
    )
    return Team(rank, world, str(card or "cpu"))


def _card() -> torch.device:
    """Return this process's GPU and make it the current one, which plain "cuda" refers to."""
    number, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= there:
        raise InputError(
            f"no card for process {number + 1} of this machine, which has {there}",
            where="run.processes",
            fix="Use one process per card, or model.device=cpu",
        )
    card = torch.device("cuda", number)
    torch.cuda.set_device(card)
    return card
