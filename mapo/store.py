"""The run directory: every path in it, and the only code that writes there.

    runs/NAME/config.toml  manifest.json  rubric.toml  metrics.jsonl  dialogues/step_00001.jsonl
              checkpoints/step_00010/  tensorboard/  report.html

A kill at any byte loses at most the record being written. Line files only grow, one `write` a record;
other files are written beside and renamed. A torn last line is never fatal: readers report and skip it,
and the next writer cuts it off, for a record that was not completed was never acknowledged. A damaged
line elsewhere is reported with its place and skipped; what to make of that is the caller's choice.

What a record is and how it becomes a line: `records.py`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mapo.errors import RecordError, StoreError
from mapo.records import decode_dialogue, encode, encode_dialogue, parse, utf8
from mapo.types import Dialogue

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RunDir:
    """Paths of one run. Creating the object touches nothing."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.toml"

    @property
    def manifest(self) -> Path:
        return self.root / "manifest.json"

    @property
    def rubric(self) -> Path:
        return self.root / "rubric.toml"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def dialogues(self) -> Path:
        return self.root / "dialogues"

    def dialogues_of(self, step: int) -> Path:
        return self.dialogues / f"step_{step:05d}.jsonl"

    def checkpoint(self, step: int) -> Path:
        return self.root / "checkpoints" / f"step_{step:05d}"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def stopped(self) -> Path:
        """Why a run could not go on, in words; gone when it is taken up again."""
        return self.root / "stopped.txt"


# ---- whole files


def write_atomic(path: Path, data: bytes | str) -> None:
    """All of `data` at `path`, or what was there before: never a part."""
    content = utf8(data, str(path)) if isinstance(data, str) else data
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        sync_folder(path.parent)
    except OSError as error:
        raise refused(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


# ---- line files


class JsonlWriter:
    """Appends records to one file, each complete on disk when `write` returns.

    One writer at a time, from one thread at a time. After a failed write it takes no more: reopening
    cuts off what the failure left.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "ab+", buffering=0)  # noqa: SIM115 (closed by close)
        except OSError as error:
            raise refused(path, error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.cut = _cut_torn_tail(self._file.fileno())
            """Bytes of a torn last line that were cut off on opening."""
            sync_folder(path.parent)
        except BlockingIOError:
            self._file.close()
            raise StoreError(
                "another process is writing to it", where=str(path), fix="Wait for it, or stop it"
            ) from None
        except OSError as error:
            self._file.close()
            raise refused(path, error) from error

    def write(self, record: dict[str, Any]) -> None:
        """One record; `schema` should name what it is."""
        self._append(encode(record, str(self.path)))

    def write_dialogue(self, dialogue: Dialogue) -> None:
        self._append(encode_dialogue(dialogue))

    def _append(self, line: bytes) -> None:
        if self._file.closed:
            raise StoreError("the writer is closed", where=str(self.path), fix="Open the file again")
        rest = memoryview(line + b"\n")
        size = os.fstat(self._file.fileno()).st_size
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(size)
            self.close()
            raise refused(self.path, error) from error

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that could not be read. `torn`: it is the unfinished last line of a file."""

    path: Path
    line: int
    problem: str
    torn: bool = False

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: {self.problem}"


def read_jsonl(path: Path) -> Iterator[dict[str, Any] | BadLine]:
    """Each line as a dict, or as the BadLine it is. Raises only if the file cannot be read at all."""
    yield from _read(path, parse)


def read_steps(path: Path) -> list[dict[str, Any]]:
    """metrics.jsonl by step: after a resume, what was written last for a step counts."""
    lines: dict[int, dict[str, Any]] = {}
    for line in read_jsonl(path) if path.exists() else ():
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            lines[line["step"]] = line
    return [lines[step] for step in sorted(lines)]


def read_dialogues(path: Path) -> Iterator[Dialogue | BadLine]:
    """Each line as a Dialogue, or as the BadLine it is."""
    yield from _read(path, decode_dialogue)


def _read(path: Path, decode: Callable[[bytes], _T]) -> Iterator[_T | BadLine]:
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield decode(line)
                except RecordError as error:
                    torn = not line.endswith(b"\n") and error.problem.startswith("not JSON")
                    problem = "torn: the file ends in the middle of this record" if torn else str(error)
                    yield BadLine(path, number, problem, torn)
    except OSError as error:
        raise RecordError(
            f"cannot be read ({error.strerror})", where=str(path), fix="Check the path and its permissions"
        ) from error


# ---- the disk


def _cut_torn_tail(fd: int) -> int:
    """Make the file end with a whole line; returns how many bytes had to go."""
    size = os.fstat(fd).st_size
    tail, start = b"", size
    while start > 0 and b"\n" not in tail:
        step = min(1 << 16, start)
        start -= step
        tail = os.pread(fd, step, start) + tail
    torn = tail[tail.rfind(b"\n") + 1 :]
    if not torn:
        return 0
    try:
        parse(torn)  # complete but for its newline
    except RecordError:
        os.ftruncate(fd, size - len(torn))
        return len(torn)
    os.write(fd, b"\n")
    return 0


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def refused(path: Path, error: OSError) -> StoreError:
    fixes = {
        errno.ENOSPC: "The disk is full: free some space; all earlier records are kept",
        errno.EDQUOT: "The quota is used up: free some space; all earlier records are kept",
        errno.EROFS: "The file system is read-only: choose another folder",
        errno.EACCES: "No permission: choose another folder",
    }
    return StoreError(
        f"cannot be written ({error.strerror})", where=str(path), fix=fixes.get(error.errno or 0, "")
    )
