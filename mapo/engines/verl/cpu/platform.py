"""verl's device interface for CPUs."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

RANKS_VARIABLE = "MAPO_CPU_RANKS"
"""Environment variable with the number of devices to report."""
ROLLOUT_BACKEND = "mapo_cpu"
"""Name of the rollout backend (actor_rollout_ref.rollout.name)."""
_NO_OPS = (
    "empty_cache",
    "ipc_collect",
    "reset_peak_memory_stats",
    "set_device",
    "manual_seed",
    "manual_seed_all",
    "set_rng_state",
)


def install() -> None:
    """Patch the places where verl assumes an accelerator. Importing this module registers the platform."""
    import torch.distributed.fsdp as fsdp
    import verl.utils.distributed as distributed
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    # verl selects its FSDP engine by device name
    os.environ.setdefault("VERL_ENGINE_DEVICE", "cuda")
    # verl would build the backend "cpu:gloo,cpu:gloo", which torch rejects
    initialize = distributed.initialize_global_process_group_ray

    def with_gloo(timeout_second: int | None = None, backend: str | None = None) -> None:
        initialize(timeout_second, backend or "cpu:gloo")

    distributed.initialize_global_process_group_ray = with_gloo
    # memory can be pinned only with an accelerator
    offload = fsdp.CPUOffloadPolicy
    unpinned: Any = lambda pin_memory=True: offload(pin_memory=False)  # noqa: ARG005, E731
    fsdp.CPUOffloadPolicy = unpinned  # type: ignore[misc]

    _ROLLOUT_REGISTRY[ROLLOUT_BACKEND, "async"] = "mapo.engines.verl.cpu.rollout.CpuRollout"
    RolloutReplicaRegistry.register(ROLLOUT_BACKEND, _replica)


def _replica() -> type:
    from mapo.engines.verl.cpu.rollout import CpuReplica

    return CpuReplica


def _no_op(*_: Any, **__: Any) -> None:
    return None


class _CpuDeviceModule(types.ModuleType):
    """Replacement for `torch.cuda`."""

    def is_available(self) -> bool:
        return False  # keeps verl from using its GPU memory helpers

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return int(os.environ.get(RANKS_VARIABLE, "1"))

    def mem_get_info(self, *_: Any) -> tuple[int, int]:
        return 0, 0

    def get_device_name(self, *_: Any) -> str:
        return "CPU"

    def get_rng_state(self, *_: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def __getattr__(self, name: str) -> Any:
        if hasattr(torch.cpu, name):
            return getattr(torch.cpu, name)
        if name.startswith(("memory_", "max_memory_")):
            return lambda *_, **__: 0
        if name in _NO_OPS:
            return _no_op
        raise AttributeError(name)


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """verl's platform interface. Most methods have no meaning on CPUs."""

    _module = _CpuDeviceModule("mapo_cpu")

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> types.ModuleType:
        return self._module

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:  # noqa: ARG002
        return False  # use it only when requested by name

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return self._module.device_count()

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:  # noqa: ARG002
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        return "GPU"  # logical GPUs: ray.init(num_gpus=N)

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:  # noqa: ARG002
        yield

    set_device: Callable[..., None] = staticmethod(_no_op)
    synchronize: Callable[..., None] = staticmethod(_no_op)
    set_allocator_settings: Callable[..., None] = staticmethod(_no_op)
    empty_cache: Callable[..., None] = staticmethod(_no_op)
    profiler_start: Callable[..., None] = staticmethod(_no_op)
    profiler_stop: Callable[..., None] = staticmethod(_no_op)
