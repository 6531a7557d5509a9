"""Model files on disk: folders that are whole or not there, and safetensors written a tensor at a time.

The safetensors library's own writer gathers all tensors in host memory first, which for a large model's
optimizer is more than there is, and tells of a full disk without the system's error number. Reading is
the library's.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from mapo.errors import StoreError
from mapo.store import refused, sync_folder

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
    """`tensors` at `path`, from whatever device they are on. Raises OSError where the disk refuses."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)  # the format wants its data aligned
    with open(path, "wb") as file:
        file.write(len(head).to_bytes(8, "little"))
        file.write(head)
        for tensor in tensors.values():
            plain = tensor.detach().cpu().contiguous().reshape(-1)
            file.write(plain.view(torch.uint8).numpy().data)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, on the CPU."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise StoreError(
            f"cannot be read ({error})", where=str(path), fix="Take an earlier checkpoint"
        ) from error


@contextlib.contextmanager
def beside(folder: Path, leftovers: str = "") -> Iterator[Path]:
    """A new folder to fill, which takes the place of `folder` when the block ends well; else it is removed.

    Killed at any instant, it leaves at most hidden folders beside. The next one for the same folder clears
    away those of processes that are gone; or everything that matches `leftovers`, where one process at a time
    writes. Gone means: from this machine's list of processes, so two machines (or containers) that share a
    disk must not write the same folder at once. A folder that was making room when it was killed is put back.
    """
    draft = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        put_back(folder.parent, leftovers or glob.escape(_hidden(folder).name))
        _clear(folder, leftovers)
        draft.mkdir()
        yield draft
        for file in draft.iterdir():
            _sync_file(file)
        sync_folder(draft)
        if folder.exists():  # saved again after a resume: the old one makes room
            folder.rename(_hidden(folder))
        draft.rename(folder)
        sync_folder(folder.parent)
        _clear(folder, leftovers)
    except BaseException as error:
        put_back(folder.parent, leftovers or glob.escape(_hidden(folder).name))
        shutil.rmtree(draft, ignore_errors=True)  # a full disk wants its space back
        refusal = _as_os_error(error)
        if refusal is not None:
            raise refused(folder, refusal) from error
        raise


def put_back(parent: Path, leftovers: str) -> None:
    """Folders that made room for one that never came, among `leftovers`. Only for who writes there."""
    for hidden in parent.glob(leftovers):
        folder = hidden.with_name(hidden.name[1:].removesuffix(_OLD))
        if hidden.name.endswith(_OLD) and not folder.exists():
            with contextlib.suppress(OSError):  # the next one may do it
                hidden.rename(folder)


def remove(folder: Path) -> None:
    """Out of sight in one step, so that a kill on the way leaves no half folder."""
    hidden = folder.with_name(f".{folder.name}.gone.tmp")
    try:
        folder.rename(hidden)
    except OSError as error:
        raise refused(folder, error) from error
    shutil.rmtree(hidden, ignore_errors=True)


def _hidden(folder: Path) -> Path:
    """Where a folder waits while another takes its place."""
    return folder.with_name(f".{folder.name}{_OLD}")


def _clear(folder: Path, leftovers: str) -> None:
    for entry in folder.parent.glob(leftovers or f".{glob.escape(folder.name)}.*.tmp"):
        whose = entry.name.removeprefix(f".{folder.name}.").removesuffix(".tmp")
        if leftovers or whose in ("old", "gone") or _gone(whose):
            shutil.rmtree(entry, ignore_errors=True)


def _gone(whose: str) -> bool:
    """A process by that number runs no more; our own number is that of one before us."""
    if not whose.isdecimal():  # of a folder whose name begins as ours
        return False
    try:
        os.kill(int(whose), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False
    return int(whose) == os.getpid()


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _as_os_error(error: BaseException) -> OSError | None:
    """The disk's refusal in `error`: libraries written in Rust (tokenizers, safetensors) put it in words."""
    if isinstance(error, OSError) and error.errno is not None:
        return error
    told = re.search(r"\(os error (\d+)\)", str(error))
    number = int(told[1]) if told else 0
    return OSError(number, os.strerror(number)) if number in errno.errorcode else None
