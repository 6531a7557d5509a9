"""AdamW with float32 master weights, and the learning rate schedule.

At a learning rate of 1e-6 an update is far below the spacing of bfloat16 numbers and would be lost in
bfloat16 weights. Every trainable parameter that is not float32 therefore has a float32 copy, its *master*,
which receives the updates; the model's weights are the rounded masters. Parameters in float32 (a model on the
CPU, LoRA adapters) need no master. Moments are always float32.

Gradients have the model's dtype. A bfloat16 sum loses everything below 1/256 of it, so the gradients of
several micro-batches are accumulated in float32: call `absorb()` after each backward pass. If there is no
memory for that (4 bytes per parameter, 28 GB for a 7B model), `wide_gradients=False` leaves gradients in the
model's dtype and converts them one bucket at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from mapo.errors import InputError
from mapo.local_model.files import Layout
from mapo.train.processes import ProcessGroup

Schedule = Literal["cosine", "linear", "constant"]
BUCKET = 1 << 28
"""Elements updated at a time: 1 GiB of float32 gradients."""

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class SavedState(NamedTuple):
    """The tensors of a checkpoint: their names, types and shapes, and the tensors in the same order."""

    layout: Layout
    tensors: Iterable[Tensor]


class PolicyOptimizer(Protocol):
    """What a training uses: `Optimizer`, or `ShardedOptimizer` with `run.shard`."""

    def absorb(self) -> None: ...
    def sum_gradients(self, processes: ProcessGroup) -> None: ...
    def clip(self, max_norm: float) -> float: ...
    def step(self, lr: float) -> None: ...
    def zero_grad(self) -> None: ...
    def saved_state(self) -> SavedState: ...
    def restore(self, tensors: Mapping[str, Tensor]) -> None: ...


class Optimizer:
    """AdamW over named parameters.

    Call `absorb()` after the backward pass of each micro-batch, then `clip()`, `step(lr)` and `zero_grad()`.
    `tensors()` and `restore()` are for checkpoints. Float32 gradients are the `.grad` of the masters.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, torch.nn.Parameter]],
        *,
        weight_decay: float,
        betas: tuple[float, float],
        eps: float,
        wide_gradients: bool = True,
    ) -> None:
        self.params = dict(named)
        self.wide_gradients = wide_gradients
        if not self.params:
            raise InputError("there is nothing to train: all parameters are frozen", where="model")
        self.masters = {n: _master(p) for n, p in self.params.items() if p.dtype != torch.float32}
        self._buckets = _buckets(self.params)
        self._adams = []
        for bucket in self._buckets:
            # No weight decay on norms and biases.
            groups = [
                {"params": [self._updated(n) for n in names], "weight_decay": decay}
                for names, decay in (
                    ([n for n in bucket if self.params[n].ndim >= 2], weight_decay),
                    ([n for n in bucket if self.params[n].ndim < 2], 0.0),
                )
                if names
            ]
            self._adams.append(torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=eps, fused=True))

    def _updated(self, name: str) -> Tensor:
        """Return the tensor that AdamW updates: the master if there is one, else the parameter."""
        return self.masters.get(name, self.params[name])

    @torch.no_grad()
    def absorb(self) -> None:
        """Add the gradients of parameters to those of their masters, and free them."""
        if not self.wide_gradients:
            return
        for name, master in self.masters.items():
            grad = self.params[name].grad
            if grad is None:
                continue
            if master.grad is None:
                master.grad = grad.float()
            else:
                master.grad.add_(grad)
            self.params[name].grad = None

    def gradients(self, *, every: bool = False) -> list[Tensor]:
        """Return the accumulated gradients that `clip` and `step` use; they may be changed in place.

        With `every`, parameters without a gradient get one of zeros, so that processes can sum theirs.
        """
        self.absorb()
        gradients = []
        for name, parameter in self.params.items():
            holder = self._updated(name) if self.wide_gradients else parameter
            if holder.grad is None and every:
                holder.grad = torch.zeros_like(holder)
            if holder.grad is not None:
                gradients.append(holder.grad)
        return gradients

    def sum_gradients(self, processes: ProcessGroup) -> None:
        """Sum the accumulated gradients over the processes."""
        processes.sum_gradients(self.gradients(every=processes.world_size > 1))

    def clip(self, max_norm: float) -> float:
        """Scale the gradients to a total norm of at most `max_norm`; return the norm before."""
        grads = self.gradients()
        if not grads:
            return 0.0
        norms = torch._foreach_norm(grads, 2, dtype=torch.float32)  # float32 for any dtype
        norm = float(torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms])))
        if norm > max_norm:
            torch._foreach_mul_(grads, max_norm / (norm + 1e-6))
        return norm

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update all parameters that have a gradient, with learning rate `lr`."""
        self.absorb()
        for adam, bucket in zip(self._adams, self._buckets, strict=True):
            for group in adam.param_groups:
                group["lr"] = lr
            with_master = [n for n in bucket if n in self.masters]
            for name in with_master if not self.wide_gradients else ():
                grad = self.params[name].grad
                self.masters[name].grad = None if grad is None else grad.float()
            adam.step()
            if with_master:
                torch._foreach_copy_(
                    [self.params[n] for n in with_master], [self.masters[n] for n in with_master]
                )
            for name in with_master if not self.wide_gradients else ():
                self.masters[name].grad = None

    def zero_grad(self) -> None:
        for holder in (*self.params.values(), *self.masters.values()):
            holder.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """Return the state by name: "exp_avg/NAME", "exp_avg_sq/NAME", "step/NAME", "master/NAME"."""
        state: dict[str, Tensor] = {f"master/{n}": t for n, t in self.masters.items()}
        for adam, bucket in zip(self._adams, self._buckets, strict=True):
            for name in bucket:
                for kind, value in adam.state.get(self._updated(name), {}).items():
                    state[f"{kind}/{name}"] = value
        return state

    def saved_state(self) -> SavedState:
        """Return what a checkpoint stores of `tensors()`."""
        tensors = self.tensors()
        return SavedState({n: (t.dtype, tuple(t.shape)) for n, t in tensors.items()}, tensors.values())

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the state by one that `tensors()` returned. Missing moments start from zero.

        Raise ValueError, and change nothing, if a master is missing or a tensor does not fit.
        """
        check_saved(tensors, self.params)
        for name, master in self.masters.items():
            master.copy_(tensors[f"master/{name}"])
        for adam, bucket in zip(self._adams, self._buckets, strict=True):
            for name in bucket:
                target = self._updated(name)
                adam.state.pop(target, None)
                moments = {k: tensors[f"{k}/{name}"] for k in MOMENTS if f"{k}/{name}" in tensors}
                if moments:
                    adam.state[target] = {
                        k: v.to(target.device, torch.float32, copy=True) for k, v in moments.items()
                    }


def check_saved(tensors: Mapping[str, Tensor], params: Mapping[str, Tensor]) -> None:
    """Raise ValueError if a saved tensor does not fit the parameters, or a master is missing."""
    masters = {f"master/{n}": p.shape for n, p in params.items() if p.dtype != torch.float32}
    shapes = masters | {f"{kind}/{n}": p.shape for n, p in params.items() for kind in MOMENTS}
    shapes |= {f"step/{n}": torch.Size() for n in params}
    unfit = sorted(n for n, tensor in tensors.items() if shapes.get(n) != tensor.shape)
    unfit = unfit or sorted(masters.keys() - tensors.keys())
    if unfit:
        raise ValueError(f"{len(unfit)} tensors are missing or do not fit, such as {unfit[0]}")


def make_optimizer(
    model: torch.nn.Module,
    weight_decay: float = 0.1,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    wide_gradients: bool = True,
) -> Optimizer:
    """Return an optimizer of the trainable parameters of `model`. `wide_gradients` accumulates gradients in
    float32, 4 bytes per parameter."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    return Optimizer(named, weight_decay=weight_decay, betas=betas, eps=eps, wide_gradients=wide_gradients)


def lr_at(step: int, total: int, lr: float, warmup: float = 0.05, schedule: Schedule = "cosine") -> float:
    """Return the learning rate of update `step` (from 0) of `total`.

    It rises linearly over the first `warmup` share of the updates and then falls; it would reach 0 at
    `total`, so no update has rate 0.
    """
    rise = math.ceil(warmup * total)
    if step < rise:
        return lr * (step + 1) / rise
    done = min(1.0, (step - rise) / max(1, total - rise))
    factors = {"cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done, "constant": 1.0}
    return lr * factors[schedule]


def _master(parameter: torch.nn.Parameter) -> Tensor:
    return parameter.detach().to(torch.float32, copy=True)


def _buckets(params: Mapping[str, Tensor]) -> list[list[str]]:
    """Split the names into buckets of at most BUCKET elements."""
    buckets: list[list[str]] = [[]]
    size = 0
    for name, parameter in params.items():
        if buckets[-1] and size + parameter.numel() > BUCKET:
            buckets.append([])
            size = 0
        buckets[-1].append(name)
        size += parameter.numel()
    return buckets
