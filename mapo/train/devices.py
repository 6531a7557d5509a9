"""What torch is and finds on this machine, for `mapo doctor`, and how it multiplies on some."""

from __future__ import annotations

import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def version() -> str:
    """torch's own, with what it was built for."""
    return str(torch.__version__)


def devices() -> list[str]:
    """Every card with its memory, or the CPU with the threads torch would use."""
    if not torch.cuda.is_available():
        return [f"CPU, {torch.get_num_threads()} threads"]
    cards = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [f"cuda:{n} {card.name}, {card.total_memory / 2**30:.0f} GiB" for n, card in enumerate(cards)]


_LOCK = threading.Lock()
_BEFORE: list[bool] = []


@contextmanager
def few_rows(dtype: torch.dtype) -> Iterator[None]:
    """For products of few rows on a CPU, as decoding has them, inside the block.

    On ARM processors without wide vectors torch hands float32 products of nine rows and more to oneDNN, which
    takes up to twice as long as plain BLAS until the rows are hundreds (`benchmarks/products.py`).
    """
    old = platform.machine() == "aarch64" and torch.backends.cpu.get_cpu_capability() == "DEFAULT"
    if not old or dtype != torch.float32:
        yield
        return
    switch: Any = torch.backends.mkldnn
    with _LOCK:
        _BEFORE.append(switch.enabled)
        switch.enabled = False
    try:
        yield
    finally:
        with _LOCK:
            before = _BEFORE.pop()
            if not _BEFORE:  # the switch is the whole process's: the last to leave puts it back
                switch.enabled = before
