"""Files from which nothing is taken on trust: regular ones alone, and no more of them than fits.

A run's folder may come from anywhere. A link in it may lead out of it, a pipe would never end, and a line may
be of any length. What cannot be used is said in words, beginning with UNREADABLE where that may pass.
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

LINE = 8 << 20
"""The longest line that is read, in bytes."""
SMALL = 16 << 20
"""The largest file that is read as a whole."""
LINES = 512 << 20
"""Bytes of a file of lines that are read."""
UNREADABLE = "cannot be read"
"""How the problem of a file begins that could not be opened: that may pass."""

_T = TypeVar("_T")


def open_plain(path: Path) -> IO[bytes]:
    """A regular file, opened for reading; a link or a device put in its place is refused."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError("not a regular file")
    return os.fdopen(fd, "rb")


def read_bytes(path: Path) -> tuple[bytes | None, str]:
    """A small file and "", or None and what is wrong with it; both empty where there is none."""
    try:
        with open_plain(path) as file:
            raw = file.read(SMALL + 1)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, told(error)
    return (raw, "") if len(raw) <= SMALL else (None, f"larger than {SMALL >> 20} MB")


def told(error: OSError) -> str:
    why = "a link; not followed" if error.errno == errno.ELOOP else error.strerror or error
    return f"{UNREADABLE} ({why})"


def written_at(path: Path) -> int:
    """When a file was last written, in nanoseconds; 0 of one that is gone."""
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return 0


def read_small(path: Path) -> tuple[Any, str]:
    """A small file's JSON and "", or None and what is wrong with it; both empty where there is none."""
    raw, problem = read_bytes(path)
    if raw is None:
        return None, problem
    try:
        return json.loads(raw), ""
    except (ValueError, RecursionError):
        return None, "no JSON: half-written or damaged"


def read_object(path: Path) -> tuple[dict[str, Any], str]:
    """A small file's JSON object and what is wrong with it; empty where there is none."""
    data, problem = read_small(path)
    if data is not None and not isinstance(data, dict):
        problem = "no JSON object: half-written or damaged"
    return (data if isinstance(data, dict) else {}), problem


def lines_from(file: IO[bytes], at: int) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield the offset, the length and the content of each complete line from byte `at` on; None stands for
    the content of a line that is too long to be read."""
    for offset, size, line in split_lines(file, at, longest=LINE):
        if line is None or line.endswith(b"\n"):
            yield offset, size, line


def read_lines(path: Path, decode: Callable[[bytes], _T]) -> Iterator[_T | BadLine]:
    """Yield each line decoded, or as a BadLine. A file that cannot be read is a BadLine with number 0; one
    that does not exist has no lines."""
    try:
        with open_plain(path) as file:
            yield from decode_lines(file, path, decode, longest=LINE, most=LINES)
    except FileNotFoundError:
        return
    except OSError as error:
        yield BadLine(path, 0, told(error))


def read_at(path: Path, at: int, size: int) -> bytes:
    """A line by its place; RecordError where the file is no longer what it was."""
    try:
        with open_plain(path) as file:
            file.seek(at)
            line = file.read(min(size, LINE))
    except OSError as error:
        raise RecordError(told(error), where=path.name) from None
    if len(line) != size or not line.endswith(b"\n"):
        raise RecordError("has changed since it was read", where=path.name, fix="Load the page again")
    return line


def plain_files(folder: Path, end: str) -> tuple[list[Path], list[Path]]:
    """The regular files of a folder whose names end so, and those left out: links, pipes and the like. A
    folder that is itself a link has none."""
    if folder.is_symlink():
        return [], [folder]
    try:
        with os.scandir(folder) as found:
            entries = sorted((e for e in found if e.name.endswith(end)), key=lambda e: e.name)
    except OSError:
        return [], []
    plain = [Path(e.path) for e in entries if e.is_file(follow_symlinks=False)]
    return plain, [Path(e.path) for e in entries if not e.is_file(follow_symlinks=False)]
