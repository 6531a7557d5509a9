"""The other processes of a run on this machine, started by the first one and ended with it.

On a CPU, sampling a small model is mostly small operations in a row, which threads do not speed up; processes
do. Each plays its share of the dialogues, and they sum their gradients (`team.py`).

Nobody is waited for in vain: if another process breaks, the run ends within seconds and tells what that
process said last; if the leading one breaks, the others end at once.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mapo.errors import StoreError, TrainError
from mapo.store import RunDir, write_atomic

LEADER = "MAPO_LEADER"
"""In the environment of the others: the process that started them."""
_GRACE = 5.0
"""Seconds in which the leading process may find out by itself, and in order, that another one is gone."""
_NOISE = re.compile(r"gloo|nccl|^\[[WIE]\d{4} |^\[rank\d+\]:|^\s|^Traceback|^During handling|^$", re.I)


@dataclass(frozen=True, slots=True)
class Other:
    """Another process of the run, and the file that takes what it says."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def broke(self) -> bool:
        """Ended, and not well. A Ctrl-C is everybody's, and the leading process sees to it."""
        return self.process.poll() not in (None, 0, -signal.SIGINT, 128 + signal.SIGINT)

    @property
    def last_words(self) -> str:
        """The last line that says what happened: not the libraries' links, not the body of a traceback."""
        lines = self.log.read_text(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if not _NOISE.search(line)), "")


@contextmanager
def with_others(count: int, arguments: Sequence[str], out: Path) -> Iterator[None]:
    """This process leads; `count` - 1 others run `mapo train` with the same arguments."""
    if leader := os.environ.get(LEADER):
        _follow(int(leader))
    if count < 2 or "WORLD_SIZE" in os.environ:
        yield
        return
    shared = _shared(count)
    before = {key: os.environ.get(key) for key in (*shared, "RANK", "LOCAL_RANK")}
    others: list[Other] = []
    over = threading.Event()
    with tempfile.TemporaryDirectory(prefix="mapo-") as logs:
        try:
            others.extend(_start(arguments, rank, shared, Path(logs)) for rank in range(1, count))
            os.environ.update({**shared, "RANK": "0", "LOCAL_RANK": "0"})
            threading.Thread(target=_watch, args=(others, over, out), daemon=True).start()
            yield
            over.set()
            _end(others, patience=10)
        except RuntimeError as error:  # what torch raises when another end of a link is gone
            over.set()
            if not _one_broke(others):
                raise
            raise _story(others, out) from error
        finally:
            over.set()
            _end(others)
            for key, value in before.items():
                os.environ.pop(key, None)
                if value is not None:
                    os.environ[key] = value


def threads_each(count: int) -> int:
    """This machine's cores, shared out among `count` processes."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, cores // count)


def _shared(count: int) -> dict[str, str]:
    """The environment of every member."""
    found = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    if sys.platform == "linux":
        found["GLOO_SOCKET_IFNAME"] = "lo"  # whatever this machine thinks its name is
    found["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(threads_each(count)))
    return found


def _start(arguments: Sequence[str], rank: int, shared: dict[str, str], logs: Path) -> Other:
    command = [sys.executable, "-m", "mapo", "train", *arguments]
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), LEADER: str(os.getpid())}
    log = logs / f"{rank}.log"
    with open(log, "wb") as file:
        process = subprocess.Popen(  # noqa: S603 (ourselves)
            command,
            env={**os.environ, **shared, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
        )
    return Other(process, log)


def _follow(leader: int) -> None:
    """End with the process that started this one, however it ended; leave signals to all of us to it."""
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == leader:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _watch(others: Sequence[Other], over: threading.Event, out: Path) -> None:
    """End this process if another one broke and the block does not end by itself.

    It may be waiting where nothing of Python's reaches it: for the others to join, or to answer. So it is
    ended hard. A run is made to be cut off anywhere.
    """
    while not over.wait(0.5):
        if not any(other.broke for other in others):
            continue
        if over.wait(_GRACE):
            return
        try:
            error = _story(others, out)
            _end(others)
            shown = "\x1b[?25h" if sys.stderr.isatty() else ""  # a live bar hides the cursor
            sys.stderr.write(f"{shown}error: {error}\n")
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(2)


def _one_broke(others: Sequence[Other]) -> bool:
    """A link breaks before the process at its other end is quite gone."""
    until = time.monotonic() + _GRACE
    while not (found := any(other.broke for other in others)) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def _story(others: Sequence[Other], out: Path) -> TrainError:
    """What happened, in the words of the process it happened to; all that was said is in OUT/others.log."""
    broke = [(rank, other) for rank, other in enumerate(others, 1) if other.broke]
    rank, other = next((x for x in broke if x[1].last_words), broke[0])
    said = other.last_words.removeprefix("error: ") or f"exit status {other.process.returncode}"
    file = out / "others.log"
    where = ""
    if RunDir(out).manifest.exists():  # in a folder that is no run yet it would be in the way
        with suppress(StoreError):
            logs = (f"process {k}:\n".encode() + x.log.read_bytes() for k, x in enumerate(others, 1))
            write_atomic(file, b"\n".join(logs))
            where = f" (all it said: {file})"
    return TrainError(
        f"process {rank} of the run ended: {said.rstrip('.')}{where}", fix="Put that right; then --resume"
    )


def _end(others: Sequence[Other], patience: float = 0) -> None:
    """Wait for them as long as `patience` lasts, then end them: a run is made to be cut off anywhere."""
    for other in others:
        with suppress(subprocess.TimeoutExpired):
            other.process.wait(patience)
    for other in others:
        other.process.kill()
        other.process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
