"""CUDA graphs: what the decode step launches is recorded once and replayed without Python.

`Fuser` is the second half of that: inside `on` the leaves of the model that are many small kernels (norms,
gated MLPs, rotary positions) run through torch.compile, so that the recording holds one kernel each, and
whole layers have another forward where there is one (`streamed/layers.py`). It changes the model only while
recording; training never sees it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import Any

import torch

_LEAVES = ("RMSNorm", "LayerNorm", "MLP")
_ROTARY = "apply_rotary_pos_emb"


def graphs_for(device: torch.device) -> Graphs | None:
    """None where nothing can be recorded."""
    return None if device.type == "cpu" else Graphs(device)


class Graphs:
    """Recorded work of one device, by key. All recordings share one memory pool: nothing in it outlives its
    replay. They are made on one stream, without which they would not share."""

    def __init__(self, device: torch.device) -> None:
        self._kept: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._device, self._pool = device, torch.cuda.graph_pool_handle()
        # torch's own is of whichever device came first.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __contains__(self, key: Hashable) -> bool:
        return key in self._kept

    def __len__(self) -> int:
        return len(self._kept)

    def record(self, key: Hashable, work: Callable[[], None], *, warm: int) -> None:
        """Record `work`, after `warm` plain runs in which libraries and compilers set themselves up."""
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(warm):
                work()
        torch.cuda.current_stream(self._device).wait_stream(side)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        # Only this thread must keep from forbidden calls: the event loop's thread goes on beside it.
        mode = "thread_local"
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode):
            work()
        self._kept[key] = graph

    def replay(self, key: Hashable, times: int = 1) -> None:
        graph = self._kept[key]
        for _ in range(times):
            graph.replay()

    def clear(self) -> None:
        """All recordings are dropped, and their memory: a pool without recordings is not used again."""
        self._kept.clear()
        self._pool = torch.cuda.graph_pool_handle()


def out_of_memory(problem: BaseException) -> bool:
    """By itself, or in the words of a recording that was broken off by it."""
    return any(isinstance(p, torch.OutOfMemoryError) for p in (problem, problem.__context__))


class Fuser:
    """Compiles the leaves of one model; inside `on` it uses them."""

    def __init__(self, model: torch.nn.Module, wanted: bool) -> None:
        self.wanted = wanted
        self._model = model
        self._on = False
        self._compiled: dict[Any, Any] = {}

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` through the compiler, once."""
        if function not in self._compiled:
            self._compiled[function] = torch.compile(function, dynamic=False)
        made: Callable[..., Any] = self._compiled[function]
        return made

    def leaf(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Of the functions around the model: compiled inside `on`, plain elsewhere."""
        return self.compiled(function) if self._on else function

    @contextmanager
    def on(
        self, swaps: Iterable[tuple[torch.nn.Module, Callable[..., Any]]] = (), *, compiler: bool = True
    ) -> Iterator[None]:
        """`swaps`: modules with the forward they get instead of their own; compiler: use the leaves too."""
        with ExitStack() as undo:
            for module, forward in swaps:
                module.forward = forward
                undo.callback(delattr, module, "forward")
            if compiler:
                # Every batch size is a shape of its own, and so are the norms of queries and keys.
                undo.enter_context(torch._dynamo.config.patch(recompile_limit=256))
                self._swap_leaves(undo)
                self._on = True
                undo.callback(setattr, self, "_on", False)
            yield

    def _swap_leaves(self, undo: ExitStack) -> None:
        homes = set()
        for module in self._model.modules():
            kind = type(module)
            if kind.__name__.endswith(_LEAVES) and "forward" not in vars(module):
                module.forward = MethodType(self.compiled(kind.forward), module)
                undo.callback(delattr, module, "forward")
            if hasattr(sys.modules.get(kind.__module__), _ROTARY):
                homes.add(kind.__module__)
        for home in homes:
            own = getattr(sys.modules[home], _ROTARY)
            setattr(sys.modules[home], _ROTARY, self.compiled(own))
            undo.callback(setattr, sys.modules[home], _ROTARY, own)


def next_power_of_two(n: int, least: int = 1) -> int:
    """The next power of two: few shapes, so that few recordings are made."""
    return max(least, 1 << (n - 1).bit_length())
