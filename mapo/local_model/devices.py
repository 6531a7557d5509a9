"""The torch version and the devices it finds, for `mapo doctor`."""

from __future__ import annotations

import torch


def version() -> str:
    """Return torch's version, with the platform it was built for."""
    return str(torch.__version__)


def devices() -> list[str]:
    """Describe every GPU with its memory, or the CPU with the number of threads torch would use."""
    if not torch.cuda.is_available():
        return [f"CPU, {torch.get_num_threads()} threads"]
    cards = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [f"cuda:{n} {card.name}, {card.total_memory / 2**30:.0f} GiB" for n, card in enumerate(cards)]


def gpu_count() -> int:
    """Return how many CUDA GPUs torch can use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def gpu_ids(device: torch.device) -> list[str]:
    """Return the driver's id of a GPU in a list; none for a CPU, or if torch does not know it."""
    if device.type != "cuda":
        return []
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return [] if uuid is None else [f"GPU-{uuid}"]


def has_gpu() -> bool:
    """Return whether torch can use a CUDA GPU."""
    return torch.cuda.is_available()
