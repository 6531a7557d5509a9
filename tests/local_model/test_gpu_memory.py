"""The memory in use on GPUs, as the driver reports it."""

import threading

import pytest
import torch

from mapo.local_model.devices import gpu_ids
from mapo.local_model.gpu_memory import MemoryWatch, memory_reader

GIB = 2**30


def test_the_peak_is_the_largest_since_the_last_call_on_any_gpu():
    values = iter([[GIB, GIB], [2 * GIB, 5 * GIB], [3 * GIB, GIB]])
    watch = MemoryWatch(lambda: next(values))
    assert watch.peak_gb() == 5
    assert watch.peak_gb() == 5  # what was in use when the peak was reset
    with pytest.raises(StopIteration):
        watch.peak_gb()


def test_a_peak_between_two_calls_is_seen():
    polled, used = threading.Event(), [GIB]

    def read():
        if threading.current_thread().name == "gpu-memory":
            polled.set()
            return [9 * GIB]
        return used

    with MemoryWatch(read) as watch:
        assert polled.wait(60)
    assert watch.peak_gb() == 9


def test_without_a_gpu_there_is_no_peak_and_no_thread():
    with MemoryWatch(list) as watch:
        assert watch.peak_gb() is None
        assert all(thread.name != "gpu-memory" for thread in threading.enumerate())
    assert gpu_ids(torch.device("cpu")) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_machine_without_a_driver_reports_nothing():
    assert memory_reader(["GPU-none"])() == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_memory_that_torch_allocates_is_in_use():
    read = memory_reader(gpu_ids(torch.device("cuda", 0)))
    (before,) = read()
    held = torch.zeros(GIB, dtype=torch.uint8, device="cuda")
    (after,) = read()
    assert after - before >= 0.9 * held.nbytes
