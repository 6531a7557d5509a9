"""Memory in use on the GPUs of this machine, by all processes, as the driver reports it (NVML).

torch counts only what its own process has allocated. A sampler in another process, such as vLLM's, and the
memory of libraries show up only here. Does not need torch.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

POLL_SECONDS = 0.25


class _Usage(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def memory_reader(uuids: Sequence[str] | None = None) -> Callable[[], list[int]]:
    """Return a function that returns the bytes in use on the GPUs with these ids ("GPU-..."), or on all; none
    if the driver does not tell."""
    try:
        driver: Any = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return list
    if driver.nvmlInit_v2():
        return list
    handles = _handles(driver, uuids)

    def used() -> list[int]:
        usages = [_Usage() for _ in handles]
        pairs = zip(handles, usages, strict=True)
        failed = [driver.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(usage)) for handle, usage in pairs]
        return [] if any(failed) else [int(usage.used) for usage in usages]

    return used


def _handles(driver: Any, uuids: Sequence[str] | None) -> list[ctypes.c_void_p]:
    if uuids is None:
        count = ctypes.c_uint()
        driver.nvmlDeviceGetCount_v2(ctypes.byref(count))
        wanted: list[Any] = list(range(count.value))
        find = driver.nvmlDeviceGetHandleByIndex_v2
    else:
        wanted, find = [ctypes.c_char_p(uuid.encode()) for uuid in uuids], driver.nvmlDeviceGetHandleByUUID
    handles = [ctypes.c_void_p() for _ in wanted]
    failed = [find(key, ctypes.byref(handle)) for key, handle in zip(wanted, handles, strict=True)]
    return [] if any(failed) else handles


class MemoryWatch:
    """Polls the memory in use in a thread, inside `with`. `read` returns the bytes in use on each GPU; if
    there is none, no thread is started."""

    def __init__(self, read: Callable[[], Sequence[int]]) -> None:
        self._read, self._peak = read, max(read(), default=0)
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="gpu-memory", daemon=True)

    def peak_gb(self) -> float | None:
        """Return the most GiB in use on one GPU since the last call; None without a GPU."""
        used = max(self._read(), default=0)
        with self._lock:
            peak, self._peak = max(self._peak, used), used
        return peak / 2**30 if peak else None

    def __enter__(self) -> MemoryWatch:
        if self._peak:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            used = max(self._read(), default=0)
            with self._lock:
                self._peak = max(self._peak, used)
