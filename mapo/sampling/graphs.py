"""CUDA graphs: the kernel launches of a decode step are recorded once and replayed without Python.

Inside `Fuser.on`, the parts of the model that consist of many small kernels (norms, gated MLPs, rotary
embeddings) are compiled with torch.compile, so that the graph has one kernel for each, and complete layers
may be replaced by streamed ones (`streamed/layers.py`). The model is changed only while a graph is recorded,
never for training.
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
    """Return an empty set of graphs; None on a CPU."""
    return None if device.type == "cpu" else Graphs(device)


class Graphs:
    """Recorded graphs of one device, by key. They share one memory pool, because no tensor in it is used
    after its replay; sharing requires that they are recorded on the same stream."""

    def __init__(self, device: torch.device) -> None:
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._device, self._pool = device, torch.cuda.graph_pool_handle()
        # torch's default capture stream belongs to the first device that was used.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __contains__(self, key: Hashable) -> bool:
        return key in self._graphs

    def __len__(self) -> int:
        return len(self._graphs)

    def record(self, key: Hashable, work: Callable[[], None], *, warm: int) -> None:
        """Record `work`, after `warm` runs without recording in which libraries and compilers initialise."""
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(warm):
                work()
        torch.cuda.current_stream(self._device).wait_stream(side)
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        # The restrictions of capturing apply to this thread only: the event loop's thread continues.
        mode = "thread_local"
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode):
            work()
        self._graphs[key] = graph

    def replay(self, key: Hashable, times: int = 1) -> None:
        graph = self._graphs[key]
        for _ in range(times):
            graph.replay()

    def clear(self) -> None:
        """Drop all graphs and their memory. A new pool is needed: one without graphs is not used again."""
        self._graphs.clear()
        self._pool = torch.cuda.graph_pool_handle()


def out_of_memory(problem: BaseException) -> bool:
    """Return whether a problem is, or was caused by, a lack of GPU memory."""
    return any(isinstance(p, torch.OutOfMemoryError) for p in (problem, problem.__context__))


class Fuser:
    """Compiles small modules of one model, and uses them inside `on`."""

    def __init__(self, model: torch.nn.Module, wanted: bool) -> None:
        self.wanted = wanted
        self._model = model
        self._is_on = False
        self._compiled: dict[Any, Any] = {}

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the compiled version of a function, which is compiled once."""
        if function not in self._compiled:
            self._compiled[function] = torch.compile(function, dynamic=False)
        compiled: Callable[..., Any] = self._compiled[function]
        return compiled

    def leaf(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function outside the model, compiled inside `on` and unchanged elsewhere."""
        return self.compiled(function) if self._is_on else function

    @contextmanager
    def on(
        self, swaps: Iterable[tuple[torch.nn.Module, Callable[..., Any]]] = (), *, compiler: bool = True
    ) -> Iterator[None]:
        """Replace the forward of modules inside the block: those in `swaps` by the given function and, with
        `compiler`, small modules by their compiled version."""
        with ExitStack() as undo:
            for module, forward in swaps:
                module.forward = forward
                undo.callback(delattr, module, "forward")
            if compiler:
                # Every batch size is another shape, and so are the norms of queries and keys.
                undo.enter_context(torch._dynamo.config.patch(recompile_limit=256))
                self._swap_leaves(undo)
                self._is_on = True
                undo.callback(setattr, self, "_is_on", False)
            yield

    def _swap_leaves(self, undo: ExitStack) -> None:
        model_files = set()
        for module in self._model.modules():
            kind = type(module)
            if kind.__name__.endswith(_LEAVES) and "forward" not in vars(module):
                module.forward = MethodType(self.compiled(kind.forward), module)
                undo.callback(delattr, module, "forward")
            if hasattr(sys.modules.get(kind.__module__), _ROTARY):
                model_files.add(kind.__module__)
        for name in model_files:
            original = getattr(sys.modules[name], _ROTARY)
            setattr(sys.modules[name], _ROTARY, self.compiled(original))
            undo.callback(setattr, sys.modules[name], _ROTARY, original)


def round_up(n: int, least: int = 1) -> int:
    """Round up to a power of two, so that there are few shapes and few graphs."""
    return max(least, 1 << (n - 1).bit_length())
