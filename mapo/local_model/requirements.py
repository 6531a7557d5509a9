"""Requirements of the local engine, checked before torch is imported: packages and thread settings."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from mapo.errors import InputError, install_hint

FETCHED = {"smollm2": Path("models/smollm2-135m-instruct")}
"""Models that `mapo fetch` downloads, and their default folders."""


def require_torch() -> None:
    """Raise InputError if the packages of the local engine are not installed; set its thread settings."""
    needed = ("torch", "transformers", "safetensors")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise InputError(
            f"this needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            fix=install_hint("train"),
        )
    limit_threads()


def limit_threads(threads: int | None = None) -> None:
    """Stop OpenMP threads from busy-waiting, disable tokenizer parallelism and set the number of threads.

    torch reads these environment variables when it is imported, so call this before. Variables that are
    already set are kept.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if threads:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
