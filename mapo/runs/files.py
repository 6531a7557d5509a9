"""Reading untrusted files: regular files only, up to a maximum size.

A run directory may come from anywhere. A link in it may point outside, a pipe would never end, and a line may
have any length. Functions return problems as text; those that may be temporary start with UNREADABLE.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from mapo.errors import RecordError
from mapo.store import BadLine, decode_lines, split_lines

MAX_LINE_BYTES = 8 << 20
MAX_FILE_BYTES = 16 << 20
"""Largest file that is read at once."""
MAX_LINES_BYTES = 512 << 20
"""Most bytes that are read of a file of lines."""
UNREADABLE = "cannot be read"
"""Start of the problem text of a file that could not be opened, which may be temporary."""

_T = TypeVar("_T")


def open_plain(path: Path) -> IO[bytes]:
    """Open a regular file for reading. Raises OSError for links and devices."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError("not a regular file")
    return os.fdopen(fd, "rb")


def read_bytes(path: Path) -> tuple[bytes | None, str]:
    """Return the content of a small file and "", or None and the problem; (None, "") if it does not exist."""
    try:
        with open_plain(path) as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, read_problem(error)
    return (raw, "") if len(raw) <= MAX_FILE_BYTES else (None, f"larger than {MAX_FILE_BYTES >> 20} MB")


def read_problem(error: OSError) -> str:
    """Return the problem text of a file that could not be opened."""
    reason = "a link; not followed" if error.errno == errno.ELOOP else error.strerror or error
    return f"{UNREADABLE} ({reason})"


def written_at(path: Path) -> int:
    """Return the modification time of a file in nanoseconds; 0 if it does not exist."""
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return 0


def read_small(path: Path) -> tuple[Any, str]:
    """Return the JSON of a small file and "", or None and the problem; (None, "") if it does not exist."""
    raw, problem = read_bytes(path)
    if raw is None:
        return None, problem
    try:
        return json.loads(raw), ""
    except (ValueError, RecursionError):
        return None, "not JSON: incomplete or damaged"


def read_object(path: Path) -> tuple[dict[str, Any], str]:
    """Return the JSON object in a small file, and the problem with it; both are empty if it does not
    exist."""
    data, problem = read_small(path)
    if data is not None and not isinstance(data, dict):
        problem = "not a JSON object: incomplete or damaged"
    return (data if isinstance(data, dict) else {}), problem


def lines_from(file: IO[bytes], at: int) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield offset, length and content of each complete line from byte `at` on. The content is None if the
    line is too long to be read."""
    for offset, size, line in split_lines(file, at, longest=MAX_LINE_BYTES):
        if line is None or line.endswith(b"\n"):
            yield offset, size, line


def read_lines(path: Path, decode: Callable[[bytes], _T]) -> Iterator[_T | BadLine]:
    """Yield each line decoded, or as a BadLine. A file that cannot be read is a BadLine with number 0; one
    that does not exist has no lines."""
    try:
        with open_plain(path) as file:
            yield from decode_lines(file, path, decode, longest=MAX_LINE_BYTES, most=MAX_LINES_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        yield BadLine(path, 0, read_problem(error))


def read_at(path: Path, at: int, size: int) -> bytes:
    """Return the line of `size` bytes at offset `at`. Raises RecordError if the file has changed."""
    try:
        with open_plain(path) as file:
            file.seek(at)
            line = file.read(min(size, MAX_LINE_BYTES))
    except OSError as error:
        raise RecordError(read_problem(error), where=path.name) from None
    if len(line) != size or not line.endswith(b"\n"):
        raise RecordError("has changed since it was read", where=path.name, fix="Reload the page")
    return line


def plain_files(folder: Path, end: str) -> tuple[list[Path], list[Path]]:
    """Return the regular files of a folder whose names end with `end`, and the other entries that do: links,
    pipes and so on. A folder that is itself a link is not read."""
    if folder.is_symlink():
        return [], [folder]
    try:
        with os.scandir(folder) as all_entries:
            entries = sorted((e for e in all_entries if e.name.endswith(end)), key=lambda e: e.name)
    except OSError:
        return [], []
    plain = [Path(e.path) for e in entries if e.is_file(follow_symlinks=False)]
    return plain, [Path(e.path) for e in entries if not e.is_file(follow_symlinks=False)]
