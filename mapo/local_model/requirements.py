"""What the local engine needs before torch is imported: its packages and its thread settings."""

from __future__ import annotations

import os
from importlib.util import find_spec

from mapo.errors import InputError


def require_torch() -> None:
    """Refuse to go on where the packages of the local engine are not installed."""
    needed = ("torch", "transformers", "safetensors")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise InputError(
            f"this needs {', '.join(missing)}, not installed here", fix="pip install 'mapo[train]'"
        )
    limit_threads()


def limit_threads(threads: int | None = None) -> None:
    """Stop OpenMP threads from busy-waiting, disable tokenizer parallelism and set the number of threads.

    torch reads these variables when it is imported, so call this before. What the environment already says
    is kept.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if threads:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
