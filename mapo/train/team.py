"""The processes that train together: one, or several (`run.processes`, torchrun, `accelerate launch`).

Every member holds the whole model, plays its own share of the scenarios and computes its share of the
gradient; gradients are summed, so all members take the same step. Past what one card can hold, the verl
engine is the way.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

import torch


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

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """A member without rows still takes part: its gradient is zero."""
        if self.world == 1:
            return
        for parameter in parameters:
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                torch.distributed.all_reduce(parameter.grad)

    def wait(self) -> None:
        if self.world > 1:
            torch.distributed.barrier()


def join_team(device: str = "auto") -> Team:
    """The team this process was launched into, by us (`launch.py`), torchrun or `accelerate launch`."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return Team()
    cuda = device != "cpu" and torch.cuda.is_available()
    torch.distributed.init_process_group("nccl" if cuda else "gloo")
    place = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if cuda else "cpu"
    return Team(torch.distributed.get_rank(), world, place)
