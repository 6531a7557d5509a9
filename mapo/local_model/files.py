"""Model files on disk: folders replaced atomically, and safetensors written one tensor at a time.

The safetensors library's writer first collects all tensors in host memory, which may be too small for the
optimizer state of a large model, and reports a full disk without the system's error number. Files are read
with the library.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from mapo.errors import StoreError
from mapo.store import sync_folder, write_error

Layout = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""Types and shapes of tensors by name."""
_OLD = ".old.tmp"
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write `tensors`, on any device, to a safetensors file. Raises OSError if that fails."""
    layout = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    stream_tensors(path, layout, tensors.values())


def stream_tensors(path: Path, layout: Layout, tensors: Iterable[Tensor]) -> None:
    """Write tensors of the given types and shapes as they come. Raises OSError if that fails."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in layout.items():
        start, end = end, end + prod(shape) * dtype.itemsize
        header[name] = {"dtype": _DTYPES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)  # the format requires aligned data
    with open(path, "wb") as file:
        file.write(len(head).to_bytes(8, "little"))
        file.write(head)
        for tensor in tensors:
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().data)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a file, on the CPU."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise StoreError(
            f"cannot be read ({error})", where=str(path), fix="Use an earlier checkpoint"
        ) from error


@contextlib.contextmanager
def atomic_folder(folder: Path, leftovers: str = "") -> Iterator[Path]:
    """Yield an empty folder that replaces `folder` when the block succeeds and is removed if it fails.

    A process killed at any moment leaves at most hidden folders next to `folder`. The next call for the same
    folder removes those of dead processes or, where only one process writes at a time, everything that
    matches the glob pattern `leftovers`. Dead means not in this machine's process list, so two machines or
    containers that share a disk must not write the same folder at once. If the process was killed while it
    replaced `folder`, the old version is restored.
    """
    draft = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        restore_replaced(folder.parent, leftovers or glob.escape(_hidden(folder).name))
        _clear(folder, leftovers)
        draft.mkdir()
        yield draft
        for file in draft.iterdir():
            _sync_file(file)
        sync_folder(draft)
        if folder.exists():  # saved again after a resume
            folder.rename(_hidden(folder))
        draft.rename(folder)
        sync_folder(folder.parent)
        _clear(folder, leftovers)
    except BaseException as error:
        restore_replaced(folder.parent, leftovers or glob.escape(_hidden(folder).name))
        shutil.rmtree(draft, ignore_errors=True)  # the disk may be full
        disk_error = _as_os_error(error)
        if disk_error is not None:
            raise write_error(folder, disk_error) from error
        raise


def restore_replaced(parent: Path, leftovers: str) -> None:
    """Restore folders that were moved aside for a replacement that was never completed, among those matching
    `leftovers`. Only the process that writes to `parent` may call this."""
    for hidden in parent.glob(leftovers):
        folder = hidden.with_name(hidden.name[1:].removesuffix(_OLD))
        if hidden.name.endswith(_OLD) and not folder.exists():
            with contextlib.suppress(OSError):  # the next call may succeed
                hidden.rename(folder)


def remove(folder: Path) -> None:
    """Remove a folder, renaming it first so that a killed process leaves no partial folder."""
    hidden = folder.with_name(f".{folder.name}.gone.tmp")
    try:
        folder.rename(hidden)
    except OSError as error:
        raise write_error(folder, error) from error
    shutil.rmtree(hidden, ignore_errors=True)


def _hidden(folder: Path) -> Path:
    """Return the path to which a folder is moved while it is replaced."""
    return folder.with_name(f".{folder.name}{_OLD}")


def _clear(folder: Path, leftovers: str) -> None:
    for entry in folder.parent.glob(leftovers or f".{glob.escape(folder.name)}.*.tmp"):
        owner = entry.name.removeprefix(f".{folder.name}.").removesuffix(".tmp")
        if leftovers or owner in ("old", "gone") or _is_dead(owner):
            shutil.rmtree(entry, ignore_errors=True)


def _is_dead(pid: str) -> bool:
    """Return whether no other process has this id. A leftover with our own id is from an earlier process."""
    if not pid.isdecimal():  # the draft of another folder whose name starts with ours
        return False
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False
    return int(pid) == os.getpid()


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _as_os_error(error: BaseException) -> OSError | None:
    """Return the disk error behind `error`, which libraries written in Rust (tokenizers, safetensors) only
    mention in the message."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    match = re.search(r"\(os error (\d+)\)", str(error))
    number = int(match[1]) if match else 0
    return OSError(number, os.strerror(number)) if number in errno.errorcode else None
