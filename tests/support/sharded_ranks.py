"""One of two processes that train the same small models with divided and with whole training state.

Run it with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; it prints what it measured as a line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import torch
from torch import nn

from mapo.local_model.attention import _needs_no_mask
from mapo.train.launch import _free_port
from mapo.train.optim import make_optimizer
from mapo.train.processes import ProcessGroup, join_processes
from mapo.train.sharding import buckets
from mapo.train.sharding.optimizer import ShardedOptimizer
from mapo.train.sharding.reference import shard_reference
from support import tiny

MICRO_BATCHES = 2


class Odd(nn.Module):
    """Parameters whose sizes two does not divide: a single number, one that only rank 1 uses, one that nobody
    uses, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(31, 17), nn.LayerNorm(17), nn.Linear(17, 3, bias=False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.sometimes = nn.Parameter(torch.randn(3))
        self.unused = nn.Parameter(torch.randn(2, 2))
        self.frozen = nn.Parameter(torch.randn(4), requires_grad=False)

    def loss(self, rank: int, number: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(10 * number + rank)
        x = torch.randn(6, 31, generator=generator).to(self.scale.dtype)
        y = self.last(self.norm(self.first(x).tanh())) * self.scale
        return (y + self.sometimes if rank else y).square().sum()


def sharded(model: nn.Module, processes: ProcessGroup) -> ShardedOptimizer:
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    return ShardedOptimizer(named, processes, weight_decay=0.1)


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys(), a.keys() ^ b.keys()
    return max(float((a[n].double() - b[n].double()).abs().max()) for n in a)


def compare_optimizers(processes: ProcessGroup, dtype: torch.dtype) -> dict[str, Any]:
    """Take three steps with both, then one more with a divided state that was restored from the whole one."""
    models = Odd().to(dtype), Odd().to(dtype)
    whole, parts = make_optimizer(models[0], weight_decay=0.1), sharded(models[1], processes)
    norms: list[list[float]] = []
    sizes: list[int] = []

    def step(number: int, pairs: list[tuple[Odd, Any]]) -> None:
        for micro in range(MICRO_BATCHES):
            for model, optimizer in pairs:
                model.loss(processes.rank, MICRO_BATCHES * number + micro).backward()
                optimizer.absorb()
        for _, optimizer in pairs:
            optimizer.sum_gradients(processes)
        norms.append([optimizer.clip(1.0) for _, optimizer in pairs])
        for _, optimizer in pairs:
            optimizer.step(1e-2)
        sizes.append(pairs[1][1].state_bytes)
        for _, optimizer in pairs:
            optimizer.zero_grad()

    for number in range(3):
        step(number, [(models[0], whole), (models[1], parts)])
    layout, tensors = parts.saved_state()
    saved = dict(zip(layout, [tensor.clone() for tensor in tensors], strict=True))
    result = {
        "weights": largest_difference(models[0].state_dict(), models[1].state_dict()),
        "saved": largest_difference(whole.tensors(), saved),
        "layout": all((t.dtype, tuple(t.shape)) == layout[n] for n, t in saved.items()),
        "buckets": len(parts.buckets),
    }
    fresh = Odd().to(dtype)
    fresh.load_state_dict(models[0].state_dict())
    restored = sharded(fresh, processes)
    restored.restore(whole.tensors())
    step(3, [(models[0], whole), (fresh, restored)])
    result["restored"] = largest_difference(models[0].state_dict(), fresh.state_dict())
    # float32 weight, gradient and two moments of each parameter
    trained = sum(p.numel() for p in models[0].parameters() if p.requires_grad)
    return {**result, "norms": norms, "share": max(sizes) / (16 * trained)}


def compare_reference(processes: ProcessGroup) -> dict[str, Any]:
    torch.manual_seed(0)
    model = tiny.model("llama").requires_grad_(False)
    ids = torch.arange(12).view(2, 6)
    with torch.no_grad():
        before = model(input_ids=ids).logits
        size = sum(p.nbytes for p in model.model.layers.parameters())
        shard_reference(model, processes)
        same = torch.equal(before, model(input_ids=ids).logits)
    left = sum(p.to_local().nbytes for p in model.model.layers.parameters())
    return {"same": same, "share": left / size, "needs_no_mask": _needs_no_mask(model.model)}


def start_two() -> list[dict[str, Any]]:
    """Run both processes and return what they measured."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    shared |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "support.sharded_ranks"],
            env={**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    try:
        outputs = [process.communicate(timeout=240)[0] for process in both]
    finally:
        for process in both:
            process.kill()
    return [json.loads(text.splitlines()[-1]) for text in outputs]


def main() -> None:
    buckets.BUCKET = 60  # several buckets
    processes = join_processes("cpu")
    measured = {
        "float32": compare_optimizers(processes, torch.float32),
        "bfloat16": compare_optimizers(processes, torch.bfloat16),
        "reference": compare_reference(processes),
    }
    processes.leave()
    sys.stdout.write(json.dumps(measured) + "\n")


if __name__ == "__main__":
    main()
