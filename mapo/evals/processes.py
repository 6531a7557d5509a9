"""Commands run as processes of their own, with their output in a log file, and how far a training is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from mapo.errors import InputError, RecordError, StoreError
from mapo.records import parse
from mapo.store import RunDir
from mapo.untrusted import open_regular, own_environment

SECONDS_TO_END = 30
"""A training on verl takes up to 25 seconds to end its processes."""
TAIL = 1 << 16
"""Bytes to read from the end of metrics.jsonl for its last line: the file grows long and is polled often."""


async def run_logged(
    command: Sequence[str], log_file: Path, environment: Mapping[str, str] | None = None
) -> str | None:
    """Run a command and append its output to a log; return why it failed, if it did.

    The reason is the last line of the output. If cancelled, end the process and wait for it.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with open_regular(log_file, "ab", links=False) as log:
        begin = log.tell()  # earlier attempts wrote the text before this position
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**own_environment(), **(environment or {})},
        )
        try:
            status = await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                try:
                    await asyncio.wait_for(process.wait(), SECONDS_TO_END)
                except TimeoutError:
                    process.kill()
                    await process.wait()
    if status == 0:
        return None
    lines = log_file.read_bytes()[begin:].decode(errors="replace").splitlines()
    return next((x.strip() for x in reversed(lines) if x.strip()), "") or f"exit status {status}"


def last_step(metrics: Path) -> int:
    """Return the step of the last complete line, or 0 before there is one."""
    try:
        with open(metrics, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().splitlines(keepends=True)
    except OSError:
        return 0
    for line in reversed(lines):
        with suppress(RecordError):
            step = parse(line).get("step") if line.endswith(b"\n") else None
            if isinstance(step, int):
                return step
    return 0


@contextmanager
def locked(out: Path, kind: str) -> Iterator[None]:
    """Create `out` if needed and allow one command of this kind at a time in it."""
    import fcntl

    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = open_regular(RunDir(out).grid_lock, "ab", links=False)
    except OSError as error:
        raise StoreError(f"the folder cannot be written ({error.strerror})", where=str(out)) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A command may have replaced the file since it was opened: its lock would then keep nobody out.
            ours = os.path.samestat(os.fstat(lock.fileno()), RunDir(out).grid_lock.stat())
        except (BlockingIOError, FileNotFoundError):
            ours = False
        if not ours:
            raise InputError(
                f"another {kind} is running in this folder", where=str(out), fix="Wait until it ends"
            )
        yield
