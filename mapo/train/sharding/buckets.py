"""Parameters cut into pieces, and the buckets in which their gradients and weights are sent."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import Parameter

from mapo.local_model.memory import BUCKET
from mapo.train.processes import PendingSum, ProcessGroup


class Bucket:
    """Parameters whose gradients and weights are sent together.

    They are sent as a table with a row per process: row k holds the k-th piece of every parameter, one after
    another. `columns` are the places of a parameter's pieces in a row.
    """

    def __init__(self, params: Mapping[str, Parameter], processes: ProcessGroup) -> None:
        self.params, self.processes = params, processes
        self.columns: dict[str, slice] = {}
        width = 0
        for name, parameter in params.items():
            start, width = width, width + max(1, -(-parameter.numel() // processes.world_size))
            self.columns[name] = slice(start, width)
        first = next(iter(params.values()))
        self.dtype, self.device = first.dtype, first.device
        self.shape = (processes.world_size, width)
        self.master = torch.zeros(width, device=self.device)
        self.gradient: Tensor | None = None
        self._table: Tensor | None = None
        self._missing = set(params)
        self.read_masters()

    @property
    def complete(self) -> bool:
        """Whether the gradients of all parameters have been added in this backward pass."""
        return not self._missing

    def add(self, name: str, gradient: Tensor) -> None:
        """Add the gradient of a parameter to the table."""
        table = self._table = self._zeros() if self._table is None else self._table
        flat, columns = gradient.reshape(-1), self.columns[name]
        size = columns.stop - columns.start
        rows, rest = divmod(flat.numel(), size)
        table[:rows, columns].copy_(flat[: rows * size].view(rows, size))
        if rest:
            table[rows, columns][:rest].copy_(flat[rows * size :])
        self._missing.discard(name)

    def send(self) -> PendingSum:
        """Start to sum the tables of all processes. Gradients that are missing count as zeros."""
        table, self._table, self._missing = self._table, None, set(self.params)
        return self.processes.sum_rows(self._zeros() if table is None else table)

    def receive(self, total: Tensor) -> None:
        """Add this process's row of the summed tables to its gradient."""
        self.gradient = total if self.gradient is None else self.gradient.add_(total)

    def piece(self, name: str, whole: Tensor) -> Tensor:
        """Return this process's piece of a tensor of a parameter's shape, padded with zeros, in float32."""
        columns = self.columns[name]
        size = columns.stop - columns.start
        own = whole.detach().reshape(-1)[self.processes.rank * size :][:size]
        padded = torch.zeros(size, device=self.device)
        padded[: own.numel()].copy_(own)
        return padded

    def whole(self, name: str, table: Tensor, columns: slice | None = None) -> Tensor:
        """Return a parameter, or a tensor of its shape, from the rows of all processes."""
        parameter = self.params[name]
        flat = table[:, columns or slice(None)].reshape(-1)[: parameter.numel()]
        return flat.view(parameter.shape)

    @torch.no_grad()
    def read_masters(self) -> None:
        """Set the float32 pieces to those of the model's weights."""
        for name, parameter in self.params.items():
            self.master[self.columns[name]] = self.piece(name, parameter)

    @torch.no_grad()
    def write_weights(self) -> None:
        """Set the model's weights, in place, to the float32 pieces of all processes."""
        table = self.processes.gather_rows(self.master.to(self.dtype))
        for name, parameter in self.params.items():
            parameter.copy_(self.whole(name, table, self.columns[name]))

    def _zeros(self) -> Tensor:
        return torch.zeros(self.shape, device=self.device)


def in_buckets(params: dict[str, Parameter]) -> list[dict[str, Parameter]]:
    """Divide the parameters into buckets, the last ones first, in about the order of their gradients."""
    buckets: list[dict[str, Parameter]] = []
    size = BUCKET
    for name, parameter in reversed(params.items()):
        if size >= BUCKET or parameter.dtype != next(iter(buckets[-1].values())).dtype:
            buckets.append({})
            size = 0
        buckets[-1][name] = parameter
        size += parameter.numel()
    return buckets
