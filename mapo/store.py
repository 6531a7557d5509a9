"""The run directory: every path in it, and the only code that writes there.

    runs/NAME/config.toml  manifest.json  rubric.toml  metrics.jsonl  dialogues/step_00001.jsonl
              checkpoints/step_00010/  tensorboard/  report.html

A kill at any byte loses at most the record being written. Line files only grow, one `write` a record;
other files are written beside and renamed. A torn last line is never fatal: readers report and skip it,
and the next writer cuts it off, for a record that was not completed was never acknowledged. A damaged
line elsewhere is reported with its place and skipped; what to make of that is the caller's choice.

Every record carries its schema and version, e.g. {"schema": "mapo.dialogue/1", ...}.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mapo.errors import RecordError, StoreError
from mapo.types import Dialogue

if TYPE_CHECKING:
    from pydantic import TypeAdapter

DIALOGUE_SCHEMA = "mapo.dialogue/1"


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


# ---- whole files


def write_atomic(path: Path, data: bytes | str) -> None:
    """All of `data` at `path`, or what was there before: never a part."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(beside, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        _sync_folder(path.parent)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise _refused(path, error) from error


# ---- line files


class JsonlWriter:
    """Appends records to one file, each complete on disk when `write` returns. One writer at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise _refused(path, error) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.cut = _cut_torn_tail(self._fd)
            """Bytes of a torn last line that were cut off on opening."""
        except BlockingIOError:
            os.close(self._fd)
            raise StoreError(
                "another process is writing to it", where=str(path), fix="Wait for it, or stop it"
            ) from None
        except OSError as error:
            os.close(self._fd)
            raise _refused(path, error) from error

    def write(self, record: dict[str, Any]) -> None:
        self.write_line(encode(record, str(self.path)))

    def write_line(self, line: bytes) -> None:
        size = os.fstat(self._fd).st_size
        try:
            written = os.write(self._fd, line + b"\n")
            if written <= len(line):
                raise OSError(errno.ENOSPC, "only a part of the record fitted")
            os.fdatasync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):  # else the next writer cuts the torn line off
                os.ftruncate(self._fd, size)
            raise _refused(self.path, error) from error

    def close(self) -> None:
        os.close(self._fd)

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
    for number, line, whole in _lines(path):
        try:
            record = json.loads(line, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            problem = f"not JSON ({error})" if whole else "torn: the file ends in the middle of this record"
            yield BadLine(path, number, problem, torn=not whole)
            continue
        yield record if isinstance(record, dict) else BadLine(path, number, "not a JSON object")


def read_dialogues(path: Path) -> Iterator[Dialogue | BadLine]:
    """Each line as a Dialogue, or as the BadLine it is."""
    for number, record in enumerate(read_jsonl(path), 1):
        if isinstance(record, BadLine):
            yield record
            continue
        try:
            yield decode_dialogue(record, f"{path}, line {number}")
        except RecordError as error:
            yield BadLine(path, number, str(error).removeprefix(f"{path}, line {number}: "))


def _lines(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """(number, bytes, ends with a newline) of each line."""
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                yield number, line, line.endswith(b"\n")
    except OSError as error:
        raise RecordError(
            f"cannot be read ({error.strerror})", where=str(path), fix="Check the path and its permissions"
        ) from error


# ---- dialogue records


@lru_cache
def _adapter() -> TypeAdapter[Dialogue]:
    from pydantic import TypeAdapter

    return TypeAdapter(Dialogue)


def encode_dialogue(dialogue: Dialogue) -> bytes:
    """One line of a dialogue file."""
    body = _adapter().dump_python(dialogue, mode="json", exclude_defaults=True)
    return encode({"schema": DIALOGUE_SCHEMA, **body}, f"dialogue {dialogue.id}")


def decode_dialogue(record: dict[str, Any], where: str) -> Dialogue:
    """The Dialogue behind a parsed line; RecordError names the key that does not fit."""
    from pydantic import ValidationError

    body = dict(record)
    schema = body.pop("schema", None)
    if schema != DIALOGUE_SCHEMA:
        raise RecordError(
            f"schema is {schema!r}, not '{DIALOGUE_SCHEMA}'",
            where=where,
            fix="This version of mapo reads that schema alone; upgrade if the file is newer",
        )
    try:
        return _adapter().validate_python(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise RecordError(f"{key}: {first['msg']}", where=where, fix="See docs/records.md") from None


def encode(record: dict[str, Any], where: str) -> bytes:
    """One line of JSON without its newline. NaN and infinity are refused: missing values are null."""
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except ValueError as error:
        raise RecordError(
            f"cannot be written ({error})",
            where=where,
            fix="Use null for missing numbers; text must be Unicode",
        ) from error


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number; a missing number is null")


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
        json.loads(torn)  # complete but for its newline
    except ValueError:
        os.ftruncate(fd, size - len(torn))
        return len(torn)
    os.write(fd, b"\n")
    return 0


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _refused(path: Path, error: OSError) -> StoreError:
    fixes = {
        errno.ENOSPC: "The disk is full: free some space; all earlier records are kept",
        errno.EDQUOT: "The quota is used up: free some space; all earlier records are kept",
        errno.EROFS: "The file system is read-only: choose another folder",
        errno.EACCES: "No permission: choose another folder",
    }
    return StoreError(
        f"cannot be written ({error.strerror})", where=str(path), fix=fixes.get(error.errno or 0, "")
    )
