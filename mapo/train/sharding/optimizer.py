"""AdamW whose state is divided among processes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn import Parameter

from mapo.errors import InputError
from mapo.train.optim import MOMENTS, SavedState, check_saved
from mapo.train.processes import PendingSum, ProcessGroup
from mapo.train.sharding.buckets import Bucket, in_buckets


class ShardedOptimizer:
    """AdamW over named parameters, with the state of each parameter divided among `processes`.

    It is used as `Optimizer` is, with one backward pass before each `absorb()`. All processes make the same
    calls in the same order; one that has fewer micro-batches than another uses empty ones.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, Parameter]],
        processes: ProcessGroup,
        *,
        weight_decay: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self.params = dict(named)
        if not self.params:
            raise InputError("there is nothing to train: all parameters are frozen", where="model")
        self.processes = processes
        self.buckets = [Bucket(params, processes) for params in in_buckets(self.params)]
        self._bucket_of = {name: bucket for bucket in self.buckets for name in bucket.params}
        # The pieces are 1-dimensional; no weight decay on norms and biases, which are so as a whole.
        self._pieces = {n: b.master[b.columns[n]] for n, b in self._bucket_of.items()}
        groups = [
            {"params": [self._pieces[n] for n in names], "weight_decay": decay}
            for names, decay in (
                ([n for n, p in self.params.items() if p.ndim >= 2], weight_decay),
                ([n for n, p in self.params.items() if p.ndim < 2], 0.0),
            )
            if names
        ]
        self._adam = torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=eps, fused=True)
        self._sent = 0  # buckets of this backward pass
        self._pending: tuple[Bucket, PendingSum] | None = None
        for name, parameter in self.params.items():
            collect = partial(self._collect, name)
            parameter.register_post_accumulate_grad_hook(collect)  # type: ignore[no-untyped-call]

    @property
    def state_bytes(self) -> int:
        """The bytes of float32 weights, gradients and moments in this process."""
        tensors = [b.master for b in self.buckets]
        tensors += [b.gradient for b in self.buckets if b.gradient is not None]
        tensors += [value for state in self._adam.state.values() for value in state.values()]
        return sum(tensor.nbytes for tensor in tensors)

    def absorb(self) -> None:
        """Finish a backward pass: send the buckets that are left, and wait for the sums."""
        while self._sent < len(self.buckets):
            self._send()
        self._receive()
        self._sent = 0

    def sum_gradients(self, processes: ProcessGroup) -> None:
        """Do nothing: `absorb()` has summed the gradients over the processes."""

    def clip(self, max_norm: float) -> float:
        """Scale the gradients to a total norm of at most `max_norm`; return the norm before."""
        gradients = [b.gradient for b in self.buckets if b.gradient is not None]
        if not gradients:
            return 0.0
        squares = torch.stack(torch._foreach_norm(gradients)).square().sum()
        norm = math.sqrt(self.processes.sum_number(squares))
        if norm > max_norm:
            torch._foreach_mul_(gradients, max_norm / (norm + 1e-6))
        return norm

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update this process's pieces with learning rate `lr`, and the model's weights in all processes."""
        for group in self._adam.param_groups:
            group["lr"] = lr
        for name, bucket in self._bucket_of.items():
            gradient = bucket.gradient
            self._pieces[name].grad = None if gradient is None else gradient[bucket.columns[name]]
        self._adam.step()
        for bucket in self.buckets:
            bucket.write_weights()

    def zero_grad(self) -> None:
        for holder in (*self.params.values(), *self._pieces.values()):
            holder.grad = None
        for bucket in self.buckets:
            bucket.gradient = None

    def saved_state(self) -> SavedState:
        """Return the state as `Optimizer.saved_state` does, gathered one tensor at a time: all processes must
        go through the tensors together."""
        entries = [("master", n, self._pieces[n]) for n, p in self.params.items() if p.dtype != torch.float32]
        for name in self.params:
            state = self._adam.state.get(self._pieces[name], {})
            entries += [(kind, name, value) for kind, value in state.items()]
        layout = {
            f"{kind}/{name}": (torch.float32, () if kind == "step" else tuple(self.params[name].shape))
            for kind, name, _ in entries
        }
        return SavedState(layout, self._gathered(entries))

    def _gathered(self, entries: Iterable[tuple[str, str, Tensor]]) -> Iterator[Tensor]:
        for kind, name, value in entries:
            if kind == "step":
                yield value
            else:
                yield self._bucket_of[name].whole(name, self.processes.gather_rows(value))

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the state by a saved one, of any number of processes, as `Optimizer.restore` does. Float32
        weights are taken from the model."""
        check_saved(tensors, self.params)
        for bucket in self.buckets:
            bucket.read_masters()
        for name, piece in self._pieces.items():
            bucket = self._bucket_of[name]
            if self.params[name].dtype != torch.float32:
                piece.copy_(bucket.piece(name, tensors[f"master/{name}"]))
            self._adam.state.pop(piece, None)
            saved = {kind: tensors[f"{kind}/{name}"] for kind in MOMENTS if f"{kind}/{name}" in tensors}
            if saved:
                self._adam.state[piece] = {
                    kind: value.to(piece.device, torch.float32, copy=True)
                    if kind == "step"
                    else bucket.piece(name, value)
                    for kind, value in saved.items()
                }

    # ---- gradients during the backward pass

    @torch.no_grad()
    def _collect(self, name: str, parameter: Tensor) -> None:
        """Move a gradient into its bucket as soon as it is complete."""
        assert parameter.grad is not None
        self._bucket_of[name].add(name, parameter.grad)
        parameter.grad = None
        # In the order of the buckets, which is the same in all processes.
        while self._sent < len(self.buckets) and self.buckets[self._sent].complete:
            self._send()

    def _send(self) -> None:
        """Send the next bucket, after waiting for the one before: two tables exist at most."""
        self._receive()
        bucket = self.buckets[self._sent]
        self._pending = (bucket, bucket.send())
        self._sent += 1

    def _receive(self) -> None:
        if self._pending is not None:
            bucket, pending = self._pending
            bucket.receive(pending.wait())
            self._pending = None
