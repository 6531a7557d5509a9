"""Refuses to read values of tensors back, which on a GPU would wait for all work before it."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
_READS = (_ATEN._local_scalar_dense.default, _ATEN.nonzero.default, _ATEN.equal.default)


class NoReadBack(TorchDispatchMode):
    """Inside the block, `item`, `bool`, `float`, `nonzero`, `equal` and indexing by a mask raise."""

    def __torch_dispatch__(self, operation: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_mask = operation in (_ATEN.index.Tensor, _ATEN.index_put_.default) and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if operation in _READS or by_mask:
            raise AssertionError(f"{operation} waits for the GPU")
        return operation(*args, **(kwargs or {}))
