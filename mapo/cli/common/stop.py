"""Stopping a long run with Ctrl-C or SIGTERM: it ends cleanly and prints what is saved and how to resume."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from shlex import join
from typing import Any, TypeVar

import typer

from mapo.cli.common.messages import say

_T = TypeVar("_T")


def until_stopped(
    work: Coroutine[Any, Any, _T], out: Path, saved: Callable[[], str], command: str | None = None
) -> _T:
    """Run `work` and return its result.

    If a signal stops it, print what is on disk (`saved`) and the command that resumes (default: the command
    line of this process), and exit with status 130 or 143. A computation may take seconds to end, so the
    first signal is acknowledged at once, and the same signal again exits without waiting.
    """
    received: list[int] = []
    cancel: Callable[[], object] | None = None

    def handle(sign: int, _: object) -> None:
        if sign in received:  # do not wait for computing threads: a run can be killed at any time
            _write_now("\x1b[?25h" if sys.stderr.isatty() else "")  # the progress bar hid the cursor
            os._exit(128 + received[0])
        received.append(sign)
        if cancel is None:
            raise KeyboardInterrupt
        if len(received) == 1:
            action = "press Ctrl-C" if sign == signal.SIGINT else "send SIGTERM"
            _write_now(f"\nStopping cleanly; {action} again to force quit.\n")
            with suppress(RuntimeError):  # the loop has just ended
                cancel()

    async def cancellable() -> _T:
        nonlocal cancel
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        cancel = partial(loop.call_soon_threadsafe, task.cancel)
        return await work

    try:
        with _handled_by(handle):  # also while the loop is being closed
            return asyncio.run(cancellable())
    except (KeyboardInterrupt, asyncio.CancelledError):
        # On a terminal a progress line may be on the screen without a line break.
        line = "\n" if sys.stderr.isatty() else ""
        say(f"{line}stopped; {saved()}; resume with: {command or resume_command(out)}")
        raise typer.Exit(143 if received[:1] == [signal.SIGTERM] else 130) from None


def _write_now(text: str) -> None:
    """Write to standard error directly: Python's own stream may be in the middle of a line."""
    with suppress(OSError):
        os.write(2, text.encode())


@contextmanager
def _handled_by(handle: Callable[[int, object], None]) -> Iterator[None]:
    """Send SIGINT and SIGTERM to `handle`, except one that was ignored before (as in a background job)."""
    before = {}
    try:
        with suppress(ValueError):  # not the main thread
            for sign in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(sign) is not signal.SIG_IGN:
                    before[sign] = signal.signal(sign, handle)
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


@contextmanager
def tidy(out: Path) -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C in work without an event loop, so that it removes its temporary files.

    The work creates `out` completely or not at all; the message says which. Exit with status 143 or 130.
    """
    terminated = False

    def stop(*_: object) -> None:
        nonlocal terminated
        terminated = True
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGTERM)
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        complete = out.exists() and any(out.iterdir())  # an empty folder may have existed before
        say(f"stopped; {out} is ready" if complete else f"stopped; nothing was written to {out}")
        raise typer.Exit(143 if terminated else 130) from None
    finally:
        with suppress(ValueError):
            signal.signal(signal.SIGTERM, before)


def resume_command(out: Path) -> str:
    """Return the command line of this process, with --resume if the run exists."""
    from mapo.store import RunDir

    words = [word for word in sys.argv[1:] if word != "--resume"]
    return join(["mapo", *words, *(["--resume"] if RunDir(out).manifest.exists() else [])])
