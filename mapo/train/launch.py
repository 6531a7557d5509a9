"""Start and watch the worker processes of a run on this machine.

On a CPU, sampling a small model is mostly a sequence of small operations, which threads do not speed up but
processes do. Each process plays its share of the dialogues, and they sum their gradients (`processes.py`).

This process is rank 0 and keeps the terminal. If a worker fails, the run ends within seconds with that
worker's last error; if this process ends in any way, so do the workers. torch elastic (torchrun) does not
fit: it starts rank 0 too, in a session without the terminal, and leaves orphans when it is killed.
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
from mapo.untrusted import PYTHON, own_environment

PARENT = "MAPO_LEADER"
"""Environment variable of workers: the id of the process that started them."""
_GRACE = 5.0
"""Seconds in which rank 0 may notice by itself that a worker is gone, and end cleanly."""
_NOISE = re.compile(r"gloo|nccl|^\[[WIE]\d{4} |^\[rank\d+\]:|^\s|^Traceback|^During handling|^$", re.I)


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker process and the file that receives its standard error."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def failed(self) -> bool:
        """Whether it ended with an error. Ctrl-C reaches all processes and is handled by rank 0."""
        return self.process.poll() not in (None, 0, -signal.SIGINT, 128 + signal.SIGINT)

    @property
    def last_line(self) -> str:
        """The last line that says what happened: not network noise, not the body of a traceback."""
        lines = self.log.read_text(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if not _NOISE.search(line)), "")


@contextmanager
def with_workers(count: int, arguments: Sequence[str], out: Path) -> Iterator[None]:
    """Run the block as rank 0 of `count` processes; the workers run `mapo train` with the same arguments."""
    if parent := os.environ.get(PARENT):
        _exit_with_parent(int(parent))
    if count < 2 or "WORLD_SIZE" in os.environ:
        yield
        return
    shared = _shared(count)
    before = {key: os.environ.get(key) for key in (*shared, "RANK", "LOCAL_RANK")}
    workers: list[Worker] = []
    over = threading.Event()
    with tempfile.TemporaryDirectory(prefix="mapo-") as logs:
        try:
            workers.extend(_start(arguments, rank, shared, Path(logs)) for rank in range(1, count))
            os.environ.update({**shared, "RANK": "0", "LOCAL_RANK": "0"})
            threading.Thread(target=_watch, args=(workers, over, out), daemon=True).start()
            yield
            over.set()
            _stop(workers, patience=10)
        except RuntimeError as error:  # torch raises this when the other end of a connection is gone
            over.set()
            if not _any_failed(workers):
                raise
            raise _failure(workers, out) from error
        finally:
            over.set()
            _stop(workers)
            for key, value in before.items():
                os.environ.pop(key, None)
                if value is not None:
                    os.environ[key] = value


def is_leader() -> bool:
    """Return whether this process is rank 0, or the only one."""
    return int(os.environ.get("RANK", "0")) == 0


def threads_each(count: int) -> int:
    """Return how many of this machine's cores each of `count` processes gets."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, cores // count)


def _shared(count: int) -> dict[str, str]:
    """Return the environment variables that are the same in every process."""
    variables = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    if sys.platform == "linux":
        variables["GLOO_SOCKET_IFNAME"] = "lo"  # the host name may not resolve
    variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(threads_each(count)))
    return variables


def _start(arguments: Sequence[str], rank: int, shared: dict[str, str], logs: Path) -> Worker:
    command = [*PYTHON, "-m", "mapo", "train", *arguments]
    identity = {"RANK": str(rank), "LOCAL_RANK": str(rank), PARENT: str(os.getpid())}
    log = logs / f"{rank}.log"
    with open(log, "wb") as file:
        process = subprocess.Popen(  # noqa: S603 (our own command)
            command,
            env={**own_environment(), **shared, **identity},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=file,
        )
    return Worker(process, log)


def _exit_with_parent(parent: int) -> None:
    """In a worker: exit when the parent does, however it ended, and leave signals to the parent."""
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _watch(workers: Sequence[Worker], over: threading.Event, out: Path) -> None:
    """Exit if a worker failed and the block does not end by itself.

    The main thread may be blocked in torch, waiting for the workers, where no Python exception reaches it. So
    the process exits at once; a run can be cut off at any point and resumed.
    """
    while not over.wait(0.5):
        if not any(worker.failed for worker in workers):
            continue
        if over.wait(_GRACE):
            return
        try:
            error = _failure(workers, out)
            _stop(workers)
            shown = "\x1b[?25h" if sys.stderr.isatty() else ""  # a progress bar hides the cursor
            sys.stderr.write(f"{shown}error: {error}\n")
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(2)


def _any_failed(workers: Sequence[Worker]) -> bool:
    """Wait briefly for a worker to fail: a connection breaks before the process at its other end is gone."""
    until = time.monotonic() + _GRACE
    while not (failed := any(worker.failed for worker in workers)) and time.monotonic() < until:
        time.sleep(0.05)
    return failed


def _failure(workers: Sequence[Worker], out: Path) -> TrainError:
    """Return an error with the last line of the worker that failed; OUT/others.log gets the full output."""
    failed = [(rank, worker) for rank, worker in enumerate(workers, 1) if worker.failed]
    rank, worker = next((x for x in failed if x[1].last_line), failed[0])
    reason = worker.last_line.removeprefix("error: ") or f"exit status {worker.process.returncode}"
    file = RunDir(out).others_log
    details = ""
    if RunDir(out).manifest.exists():  # a file in a folder that is not a run yet would block the next start
        with suppress(StoreError):
            logs = (f"process {k}:\n".encode() + x.log.read_bytes() for k, x in enumerate(workers, 1))
            write_atomic(file, b"\n".join(logs))
            details = f" (full output: {file})"
    return TrainError(
        f"process {rank} of the run failed: {reason.rstrip('.')}{details}",
        fix="Fix the cause, then run again with --resume",
    )


def _stop(workers: Sequence[Worker], patience: float = 0) -> None:
    """Wait up to `patience` seconds for each worker to end, then kill those that are left."""
    for worker in workers:
        with suppress(subprocess.TimeoutExpired):
            worker.process.wait(patience)
    for worker in workers:
        worker.process.kill()
        worker.process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
