"""The run directory: every path in it, and the only code that writes there.

    runs/NAME/config.toml  manifest.json  rubric.toml  metrics.jsonl  dialogues/step_00001.jsonl
              checkpoints/step_00010/  tensorboard/  report.html

`RunDir` lists the paths of every kind of run. A process killed at any moment loses at most the record being
written: JSONL files only grow, by one `write` per record; other files are written to a temporary file and
renamed. An incomplete last line is not an error: readers report and skip it, and the next writer removes it.
A damaged line elsewhere is reported with its location and skipped; callers decide what to do about it.

`records.py` defines what a record is and how it is encoded.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self, TypeVar, overload
from uuid import uuid4

from mapo.errors import MapoError, RecordError, StoreError
from mapo.records import decode_dialogue, encode, encode_dialogue, parse, utf8
from mapo.types import Dialogue
from mapo.untrusted import open_regular

_T = TypeVar("_T")

MAX_LINE_BYTES = 64 << 20


class RunPath:
    """A file or folder that a run directory may contain.

    `RunDir.manifest.name` is its path inside the directory, `RunDir(root).manifest` the full path.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, run: None, owner: type[RunDir]) -> Self: ...
    @overload
    def __get__(self, run: RunDir, owner: type[RunDir]) -> Path: ...
    def __get__(self, run: RunDir | None, owner: type[RunDir]) -> Self | Path:
        return self if run is None else run.root / self.name


@dataclass(frozen=True, slots=True)
class RunDir:
    """Every path in the directory of a run of any kind. Creating the object does not touch the disk."""

    root: Path

    # every run
    manifest = RunPath("manifest.json")
    config = RunPath("config.toml")
    rubric = RunPath("rubric.toml")

    # training
    metrics = RunPath("metrics.jsonl")
    dialogues = RunPath("dialogues")
    cut_off = RunPath("dialogues/cut_off")
    """Dialogues of an interrupted step that a resumed verl run plays again."""
    evals = RunPath("eval")
    checkpoints = RunPath("checkpoints")
    best = RunPath("best.json")
    summary = RunPath("summary.json")
    stopped = RunPath("stopped.txt")
    """The error that ended the run, not written after a signal; removed when the run is resumed."""
    others_log = RunPath("others.log")
    """The output of the other processes, written when one of them fails."""
    start_levels = RunPath("start_levels")
    """Start forms that a judge has filled in, one file per scenario."""
    tensorboard = RunPath("tensorboard")
    report = RunPath("report.html")

    # verl engine
    verl = RunPath("verl")
    verl_config = RunPath("verl/config.toml")
    """The config of the latest start; after a resume, addresses and limits may differ from `config`."""
    verl_agent = RunPath("verl/agent.yaml")
    verl_settings = RunPath("verl/settings.txt")
    verl_checkpoints = RunPath("verl/checkpoints")
    verl_log = RunPath("verl/log.txt")
    verl_lock = RunPath("verl/lock")
    verl_trainer_lock = RunPath("verl/trainer.lock")

    # ablations; each run has its own folder, named after its cell
    ablation = RunPath("ablation.json")
    ablation_markdown = RunPath("ablation.md")
    grid_lock = RunPath(".lock")
    logs = RunPath("logs")

    # benchmarks
    empa_dialogues = RunPath("dialogues/empa.jsonl")
    empa_files = RunPath("empa")
    """The same dialogues as EMPA result files, one folder per model."""
    health = RunPath("health.json")
    items = RunPath("items.jsonl")
    result = RunPath("result.json")
    score = RunPath("score.json")
    """Not written by mapo: the conventional place for the output of `mapo score --json`."""

    # judges
    explanations = RunPath("explanations.jsonl")
    """Evidence and reasons for levels that were read out, written on demand; see `mapo judge explain`."""
    audit = RunPath("audit.json")
    audit_markdown = RunPath("audit.md")
    audit_figure = RunPath("audit.png")
    swap = RunPath("swap.json")
    swap_markdown = RunPath("swap.md")

    # roles learned from recordings
    role = RunPath("role.json")
    predictions = RunPath("predictions.jsonl")

    # Real-to-Sim and screening
    scenarios = RunPath("scenarios")
    source = RunPath("source.jsonl")
    raw_conversations = RunPath("0-raw")
    make_report = RunPath("report.json")
    private_cache = RunPath("private.sqlite")
    private_key = RunPath("private.key")
    screen = RunPath("screen.json")

    def dialogues_of(self, step: int, rank: int = 0) -> Path:
        """Return the file with the training dialogues of one step. Each process has its own
        (step_00001.1.jsonl).
        """
        return self.dialogues / f"step_{step:05d}{_of_process(rank)}.jsonl"

    def eval_of(self, label: str) -> Path:
        """Return the folder of one evaluation of a training run: before, after, validation_00010."""
        return self.evals / label

    def eval_dialogues(self, label: str, rank: int = 0) -> Path:
        return self.eval_of(label) / f"dialogues{_of_process(rank)}.jsonl"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step_{step:05d}"

    def ledger_of(self, rank: int = 0) -> Path:
        """Return the ledger file of one process: ledger.json, ledger.1.json."""
        return self.root / f"ledger{_of_process(rank)}.json"

    def ledgers(self) -> list[Path]:
        """Return the ledger files of all processes."""
        names = {ledger for path in self.root.glob("ledger*") if (ledger := ledger_name(path.name))}
        return [self.root / name for name in sorted(names)]

    def cache_of(self, rank: int = 0) -> Path:
        """Return the file with the cached model calls of one process: cache.sqlite, cache.sqlite.1."""
        return self.root / f"{CACHE}{_of_process(rank)}"


CACHE = "cache.sqlite"
"""Prefix of the names of cache files; SQLite adds files of its own (cache.sqlite-wal)."""
MAKE_STEPS = ("1-local", "2-decontextualised", "3-recontextualised", "4-levels")
"""Folders of `mapo scenarios make` with the intermediate results of each conversation."""
TESTS = ("before", "after")
"""Labels of the held-out tests of a training run."""


def _of_process(rank: int) -> str:
    return f".{rank}" if rank else ""


JOURNAL = "-journal"
"""Suffix of the file with the entries of a ledger since its last snapshot."""


def ledger_name(name: str) -> str:
    """Return the name of the ledger that a file belongs to, also for a journal; empty for other files."""
    name = name.removesuffix(JOURNAL)
    return name if is_ledger(name) else ""


def is_ledger(name: str) -> bool:
    """Return whether a file of this name in a run directory is a ledger."""
    return name.startswith("ledger") and name.endswith(".json")


def process_files(file: Path) -> list[Path]:
    """Return the existing files among NAME.jsonl, NAME.1.jsonl, ... by rank, where `file` is any of them."""
    name = file.name.partition(".")[0]
    paths = [file.with_name(f"{name}.jsonl"), *file.parent.glob(f"{name}.[0-9]*.jsonl")]
    return sorted((path for path in paths if path.exists()), key=process_of)


def process_of(file: Path) -> int:
    """Return the rank of the process that wrote NAME.jsonl (0) or NAME.1.jsonl (1)."""
    parts = file.name.split(".")
    return int(parts[1]) if len(parts) > 2 and parts[1].isdecimal() and len(parts[1]) < 10 else 0


def step_of(name: str) -> int | None:
    """Return the training step of a dialogue file (step_00001.jsonl, step_00001.1.jsonl), None for other
    names.
    """
    digits = name.partition(".")[0].removeprefix("step_")
    return int(digits) if name.startswith("step_") and digits.isdecimal() and len(digits) < 10 else None


# ---- atomic files


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write `data` to `path` atomically: after a crash the file has either the new content or the old one."""
    content = utf8(data, str(path)) if isinstance(data, str) else data
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_once(path: Path, data: bytes | str) -> None:
    """Write `data` to `path` unless the file exists. Of several processes that write it, the first wins.

    Without hard links (some network file systems), two that write at the same moment may both replace it.
    """
    draft = path.with_name(f".{path.name}.{uuid4().hex}.draft")  # other nodes may have our process id
    write_atomic(draft, data)
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    except OSError as error:
        if not path.exists():
            try:
                os.replace(draft, path)
            except OSError:
                raise write_error(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def write_stop_reason(run: RunDir, why: Exception | str, *, keep_first: bool = False) -> None:
    """Write why the run stopped to its folder. With `keep_first`, an existing reason is kept."""
    reason = str(why) if isinstance(why, MapoError | str) else f"{type(why).__name__}: {why}"
    with contextlib.suppress(StoreError):  # a full disk may be what stopped the run
        if not (keep_first and run.stopped.exists()):
            write_atomic(run.stopped, reason + "\n")


# ---- JSONL files


class JsonlWriter:
    """Appends records to a JSONL file. Each record is complete on disk when `write` returns.

    A file has one writer at a time, used from one thread at a time. After a failed write the writer is
    closed; opening the file again removes the incomplete line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A run directory may come from somebody else: its links must not lead to files of the user's.
            self._file = open_regular(path, "ab+", links=False)
        except OSError as error:
            raise write_error(path, error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.cut = _cut_torn_tail(self._file.fileno())
            """Bytes of an incomplete last line that were removed on opening."""
            sync_folder(path.parent)
        except BlockingIOError:
            self._file.close()
            raise StoreError(
                "another process is writing to it", where=str(path), fix="Wait for that process, or stop it"
            ) from None
        except OSError as error:
            self._file.close()
            raise write_error(path, error) from error

    def write(self, record: dict[str, Any]) -> None:
        """Append one record; its key `schema` should name its type."""
        self._append(encode(record, str(self.path)))

    def write_dialogue(self, dialogue: Dialogue) -> None:
        self._append(encode_dialogue(dialogue))

    def _append(self, line: bytes) -> None:
        if self._file.closed:
            raise StoreError("the writer is closed", where=str(self.path), fix="Open a new writer")
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
            raise write_error(self.path, error) from error

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> JsonlWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that could not be read. `torn` marks an incomplete last line."""

    path: Path
    line: int
    problem: str
    torn: bool = False

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: {self.problem}"


def read_jsonl(path: Path) -> Iterator[dict[str, Any] | BadLine]:
    """Yield each line as a dict or a BadLine. Raises RecordError if the file cannot be read."""
    yield from _read(path, parse)


def read_dialogues(path: Path) -> Iterator[Dialogue | BadLine]:
    """Yield each line as a Dialogue or a BadLine."""
    yield from _read(path, decode_dialogue)


def _read(path: Path, decode: Callable[[bytes], _T]) -> Iterator[_T | BadLine]:
    try:
        with open_regular(path) as file:
            yield from decode_lines(file, path, decode, longest=MAX_LINE_BYTES)
    except OSError as error:
        raise RecordError(
            f"cannot be read ({error.strerror})", where=str(path), fix="Check the path and its permissions"
        ) from error


def decode_lines(
    file: IO[bytes],
    path: Path,
    decode: Callable[[bytes], _T],
    *,
    longest: int | None = None,
    most: int | None = None,
) -> Iterator[_T | BadLine]:
    """Yield each line of an open file, decoded or as a BadLine.

    Files from untrusted sources are read with limits, in bytes: a line longer than `longest` is skipped, and
    nothing is read beyond `most`.
    """
    for number, (at, size, line) in enumerate(split_lines(file, longest=longest), 1):
        if most is not None and at + size > most:
            yield BadLine(path, number, f"the rest of the file was skipped after {most >> 20} MB")
            return
        if line is None:
            yield BadLine(path, number, "too long to be read")
            continue
        try:
            yield decode(line)
        except (RecordError, RecursionError) as error:
            malformed = isinstance(error, RecordError) and error.problem.startswith(("not JSON", "blank"))
            torn = malformed and not line.endswith(b"\n")
            problem = "torn: the file ends in the middle of this record" if torn else str(error)
            yield BadLine(path, number, problem, torn)


def split_lines(
    file: IO[bytes], at: int = 0, *, longest: int | None = None
) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield offset, length and content of each line, starting at byte `at`.

    The content of a line longer than `longest` bytes is None. The last line may lack its newline; if it is
    also too long, its content is the first `longest` bytes.
    """
    limit = -1 if longest is None else longest
    file.seek(at)
    while line := file.readline(limit):
        rest, size = line, len(line)
        while len(rest) == limit and not rest.endswith(b"\n"):
            rest = file.readline(limit)
            size += len(rest)
        if not rest.endswith(b"\n"):
            yield at, size, line
            return  # anything a writer has appended since belongs to this line
        yield at, size, line if size == len(line) else None
        at += size


def read_steps(path: Path) -> list[dict[str, Any]]:
    """Read the metrics.jsonl of a run, sorted by step."""
    return steps_of(read_jsonl(path))[0] if path.exists() else []


def steps_of(lines: Iterable[dict[str, Any] | BadLine]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the records of a metrics.jsonl sorted by step, and the problems found.

    If a step was repeated after a resume, the last record counts.
    """
    steps: dict[int, dict[str, Any]] = {}
    problems: list[str] = []
    for line in lines:
        if isinstance(line, BadLine):
            where = f"line {line.line}: " if line.line else ""
            problems.append(f"{where}{line.problem}"[:300])
        elif type(step := line.get("step")) is int and 0 <= step < 10**9:
            steps[step] = line
        else:
            problems.append("a line without a step number")
    return [steps[step] for step in sorted(steps)], problems[:20]


# ---- the disk


def _cut_torn_tail(fd: int) -> int:
    """Remove an incomplete last line and return the number of removed bytes."""
    size = os.fstat(fd).st_size
    begin = start = size
    while start > 0 and begin == start:
        step = min(1 << 16, start)
        start -= step
        begin = start + os.pread(fd, step, start).rfind(b"\n") + 1
    torn = size - begin
    if not torn:
        return 0
    try:
        parse(os.pread(fd, min(torn, MAX_LINE_BYTES), begin))  # complete, only the newline is missing
    except RecordError:
        os.ftruncate(fd, begin)
        return torn
    os.write(fd, b"\n")
    return 0


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a rename survives a crash."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_error(path: Path, error: OSError) -> StoreError:
    """Return the StoreError for a failed write, with a fix for common causes."""
    fixes = {
        errno.ENOSPC: "The disk is full. Free some space; all earlier records are intact",
        errno.EDQUOT: "The disk quota is exceeded. Free some space; all earlier records are intact",
        errno.EROFS: "The file system is read-only. Choose another folder",
        errno.EACCES: "Permission is denied. Choose another folder",
    }
    return StoreError(
        f"cannot be written ({error.strerror})", where=str(path), fix=fixes.get(error.errno or 0, "")
    )
