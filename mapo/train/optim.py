"""AdamW with float32 masters, and the learning rate over a run.

At learning rates of 1e-6 an update is far below the spacing of bfloat16 numbers: added to bfloat16
weights it vanishes. So every trainable parameter that is not float32 gets a float32 copy, its *master*,
which takes the updates; the model's own weights are that copy, rounded. Parameters that are float32
already (a model on CPU, LoRA adapters) need none. Moments are always float32.

Gradients come in the model's dtype. In bfloat16 a sum loses whatever is below 1/256 of it, so those of
several micro-batches are added up in float32: `absorb()` after each backward. Where that does not fit
(4 bytes a parameter: 28 GB for a 7B model) `wide_gradients=False` leaves them in the model's dtype and
raises them a bucket at a time at the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor

from mapo.errors import InputError

Schedule = Literal["cosine", "linear", "constant"]
BUCKET = 1 << 28
"""Elements stepped at once: a GiB of float32 gradients."""

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class Optimizer:
    """`absorb()` after each micro-batch's backward, `clip()`, `step(lr)`, `zero_grad()`.

    `tensors()` and `restore()` are for checkpoints. A wide gradient is its master's `.grad`.
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
            raise InputError("nothing to train: every parameter is frozen", where="model")
        self.masters = {n: _master(p) for n, p in self.params.items() if p.dtype != torch.float32}
        self._buckets = _buckets(self.params)
        self._adams = []
        for bucket in self._buckets:
            # No decay on norms and biases: they scale and shift, and shrinking them fights the others.
            groups = [
                {"params": [self._stepped(n) for n in names], "weight_decay": decay}
                for names, decay in (
                    ([n for n in bucket if self.params[n].ndim >= 2], weight_decay),
                    ([n for n in bucket if self.params[n].ndim < 2], 0.0),
                )
                if names
            ]
            self._adams.append(torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=eps, fused=True))

    def _stepped(self, name: str) -> Tensor:
        """What AdamW works on: the master where there is one."""
        return self.masters.get(name, self.params[name])

    @torch.no_grad()
    def absorb(self) -> None:
        """Add the parameters' gradients to the wide ones and free them. Nothing to do without masters."""
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
        """What has been added up, as `clip` and `step` will take it, to be changed in place.

        `every`: one for each parameter, zero where there was none, so that processes can sum theirs.
        """
        self.absorb()
        found = []
        for name, parameter in self.params.items():
            holder = self._stepped(name) if self.wide_gradients else parameter
            if holder.grad is None and every:
                holder.grad = torch.zeros_like(holder)
            if holder.grad is not None:
                found.append(holder.grad)
        return found

    def clip(self, max_norm: float) -> float:
        """Scale the gradients to a joint norm of at most `max_norm`; returns the norm they had."""
        grads = self.gradients()
        if not grads:
            return 0.0
        norms = torch._foreach_norm(grads, 2, dtype=torch.float32)  # in float32 whatever the gradients are
        norm = float(torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms])))
        if norm > max_norm:
            torch._foreach_mul_(grads, max_norm / (norm + 1e-6))
        return norm

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One update at rate `lr` from the gradients there are."""
        self.absorb()
        for adam, bucket in zip(self._adams, self._buckets, strict=True):
            for group in adam.param_groups:
                group["lr"] = lr
            raised = [n for n in bucket if n in self.masters]
            for name in raised if not self.wide_gradients else ():
                grad = self.params[name].grad
                self.masters[name].grad = None if grad is None else grad.float()
            adam.step()
            if raised:
                torch._foreach_copy_([self.params[n] for n in raised], [self.masters[n] for n in raised])
            for name in raised if not self.wide_gradients else ():
                self.masters[name].grad = None

    def zero_grad(self) -> None:
        for holder in (*self.params.values(), *self.masters.values()):
            holder.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """All state by name: "exp_avg/NAME", "exp_avg_sq/NAME", "step/NAME", "master/NAME"."""
        found: dict[str, Tensor] = {f"master/{n}": t for n, t in self.masters.items()}
        for adam, bucket in zip(self._adams, self._buckets, strict=True):
            for name in bucket:
                for kind, value in adam.state.get(self._stepped(name), {}).items():
                    found[f"{kind}/{name}"] = value
        return found

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take `tensors` (as `tensors()` gave them) as the state; moments that are not there start anew.

        ValueError, with nothing changed, where a master is missing or a tensor has no place here.
        """
        shapes = {f"{kind}/{n}": p.shape for n, p in self.params.items() for kind in _MOMENTS}
        shapes |= {f"step/{n}": torch.Size() for n in self.params}
        shapes |= {f"master/{n}": master.shape for n, master in self.masters.items()}
        wrong = sorted(n for n, tensor in tensors.items() if shapes.get(n) != tensor.shape)
        wrong = wrong or sorted(f"master/{n}" for n in self.masters if f"master/{n}" not in tensors)
        if wrong:
            raise ValueError(f"{len(wrong)} tensors are missing or of no use, such as {wrong[0]}")
        for name, master in self.masters.items():
            master.copy_(tensors[f"master/{name}"])
        for adam, bucket in zip(self._adams, self._buckets, strict=True):
            for name in bucket:
                stepped = self._stepped(name)
                adam.state.pop(stepped, None)
                kept = {k: tensors[f"{k}/{name}"] for k in _MOMENTS if f"{k}/{name}" in tensors}
                if kept:
                    adam.state[stepped] = {
                        k: v.to(stepped.device, torch.float32, copy=True) for k, v in kept.items()
                    }


def make_optimizer(
    model: torch.nn.Module,
    weight_decay: float = 0.1,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    wide_gradients: bool = True,
) -> Optimizer:
    """Over what of `model` is trainable. `wide_gradients`: add them up in float32, 4 bytes a parameter."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    return Optimizer(named, weight_decay=weight_decay, betas=betas, eps=eps, wide_gradients=wide_gradients)


def lr_at(step: int, total: int, lr: float, warmup: float = 0.05, schedule: Schedule = "cosine") -> float:
    """The learning rate of update `step` (from 0) of `total`: a linear rise over the first `warmup`
    share of them, then a fall that would reach 0 at `total`. No update has rate 0."""
    rise = math.ceil(warmup * total)
    if step < rise:
        return lr * (step + 1) / rise
    done = min(1.0, (step - rise) / max(1, total - rise))
    return (
        lr * {"cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done, "constant": 1.0}[schedule]
    )


def _master(parameter: torch.nn.Parameter) -> Tensor:
    return parameter.detach().to(torch.float32, copy=True)


def _buckets(params: Mapping[str, Tensor]) -> list[list[str]]:
    """Names in order, cut where a bucket would exceed BUCKET elements."""
    buckets: list[list[str]] = [[]]
    size = 0
    for name, parameter in params.items():
        if buckets[-1] and size + parameter.numel() > BUCKET:
            buckets.append([])
            size = 0
        buckets[-1].append(name)
        size += parameter.numel()
    return buckets
