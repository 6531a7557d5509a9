"""Requirements of the local engine, checked before torch is imported: packages and thread settings."""

from __future__ import annotations

import os
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path

from mapo.errors import InputError, install_hint
from mapo.local_model.shipped import SHIPPED

FETCHED = {
    "smollm2": Path("models/smollm2-135m-instruct"),
    "qwen2.5-coder-1.5b": Path("models/qwen2.5-coder-1.5b-instruct"),
}
"""Models that `mapo fetch` downloads, and their default folders."""


def refuse_missing_folder(source: str) -> None:
    """Raise InputError if `source` is a shipped model or a folder path that does not exist, not a name on
    the model hub.

    A path starts with ".", "~" or "/", has more than one "/", or is close to the name of a folder here.
    """
    if source in SHIPPED:
        raise InputError(
            f"the shipped model '{source}' is missing from this installation",
            where=str(SHIPPED[source]),
            fix="Install mapo again or, in a checkout, restore the folder",
        )
    path = Path(source).expanduser()
    if path.is_file():
        raise InputError(
            "this is a file, not the folder of a model",
            where=source,
            fix=f"Give its folder: {path.parent.absolute()}",
        )
    in_folder = "/" in source and path.parent.is_dir() and bool(_similar_folder(path))
    if path.is_dir() or not (
        path.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1 or in_folder
    ):
        return
    raise InputError(
        f"there is no such folder: {path.absolute()}",
        where=source,
        fix=_similar_folder(path) or "Give the folder of a model, a name on the Hugging Face hub, or pocket",
    )


def _similar_folder(path: Path) -> str:
    """Return a suggestion if a folder of a similar name exists, else ""."""
    parent = next((parent for parent in path.parents if parent.is_dir()), Path())
    missing = path.relative_to(parent).parts[0]
    try:
        folders = [child.name for child in parent.iterdir() if child.is_dir()]
    except OSError:
        return ""
    similar = get_close_matches(missing, folders, n=1)
    if not similar:
        return ""
    folder = parent / similar[0]
    complete = folder.joinpath(*path.relative_to(parent).parts[1:])
    return f"Did you mean {complete if complete.is_dir() else folder}?"


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
