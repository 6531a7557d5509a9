"""The other processes of a run on this machine, started by the first one and ended with it.

On a CPU, sampling a small model is mostly small operations in a row, which threads do not speed up; processes
do. Each plays its share of the dialogues, and they sum their gradients (`team.py`).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from mapo.errors import TrainError


@contextmanager
def with_others(count: int, arguments: Sequence[str]) -> Iterator[None]:
    """This process leads; `count` - 1 others run `mapo train` with the same arguments."""
    if count < 2 or "WORLD_SIZE" in os.environ:
        yield
        return
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    if sys.platform == "linux":
        shared["GLOO_SOCKET_IFNAME"] = "lo"  # whatever this machine thinks its name is
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    shared["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(max(1, cores // count)))
    before = {key: os.environ.get(key) for key in (*shared, "RANK", "LOCAL_RANK")}
    with tempfile.TemporaryFile("w+") as log:
        ranks = [{"RANK": str(k), "LOCAL_RANK": str(k)} for k in range(count)]
        others = [_start(arguments, {**shared, **rank}, log) for rank in ranks[1:]]
        os.environ.update({**shared, **ranks[0]})
        try:
            yield
        except RuntimeError as error:  # what torch raises when another end of a link is gone
            gone = [other for other in others if other.poll() not in (None, 0)]
            if not gone:
                raise
            log.seek(0)
            last = (log.read().strip().splitlines() or [str(error)])[-1]
            raise TrainError(
                f"another process of the run ended: {last}", fix="Put that right; then --resume"
            ) from error
        finally:
            _end(others)
            for key, value in before.items():
                os.environ.pop(key, None)
                if value is not None:
                    os.environ[key] = value


def _start(arguments: Sequence[str], env: dict[str, str], log: IO[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "mapo", "train", *arguments]
    return subprocess.Popen(  # noqa: S603 (ourselves)
        command,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log,
    )


def _end(others: Sequence[subprocess.Popen[bytes]]) -> None:
    for other in others:
        try:
            other.wait(10)
        except subprocess.TimeoutExpired:
            other.send_signal(signal.SIGKILL)
            other.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
