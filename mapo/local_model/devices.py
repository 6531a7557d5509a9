"""What torch is and finds on this machine: all that `mapo doctor` needs of this room."""

from __future__ import annotations

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
