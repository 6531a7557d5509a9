"""The processes that train together: one, or several (`run.processes`, torchrun, `accelerate launch`).

Every member holds the whole model, plays its own share of the scenarios and computes its share of the
gradient; gradients are summed, so all members take the same step. Past what one card can hold, the verl
engine is the way.
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
"""How long members may take to come together: to start Python and load its libraries."""
WORKING = timedelta(hours=12)
"""How long members wait for one another: a whole share of dialogues with remote judges, a checkpoint."""


class Team:
    """Who is there. For a single process every method is the identity."""

    def __init__(self, rank: int = 0, world: int = 1, device: str = "cpu") -> None:
        self.rank, self.world, self.device = rank, world, device

    @property
    def leads(self) -> bool:
        """Whether this process writes what is written once."""
        return self.rank == 0

    def gather(self, mine: list[Any]) -> list[Any]:
        """Everybody's items (JSON values), in rank order, for everybody."""
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
        """In place; every member gives all of them, in one order (`Optimizer.gradients(every=True)`)."""
        if self.world > 1:
            for gradient in gradients:
                torch.distributed.all_reduce(gradient)

    def wait(self) -> None:
        if self.world > 1:
            torch.distributed.barrier()

    def leave(self) -> None:
        """When all went well: after a failure, taking leave may itself wait for those who are gone."""
        if self.world > 1:
            torch.distributed.destroy_process_group()


def leads() -> bool:
    """Whether this process will lead the team it was launched into, or trains alone."""
    return int(os.environ.get("RANK", "0")) == 0


def join_team(device: str = "auto") -> Team:
    """The team this process was launched into, by us (`launch.py`), torchrun or `accelerate launch`."""
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
            fix="Each needs its RANK, and all the same MASTER_ADDR and MASTER_PORT; then --resume",
        ) from error
    backend = "gloo" if card is None else "nccl"
    torch.distributed.init_process_group(
        backend, store=store, rank=rank, world_size=world, timeout=WORKING, device_id=card
    )
    return Team(rank, world, str(card or "cpu"))


def _card() -> torch.device:
    """This member's card, made the current one: code that says just "cuda" means it."""
    number, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= there:
        raise InputError(
            f"no card for process {number + 1} of this machine, which has {there}",
            where="run.processes",
            fix="A process a card, or model.device=cpu",
        )
    card = torch.device("cuda", number)
    torch.cuda.set_device(card)
    return card
