"""Stopping a long run: Ctrl-C and SIGTERM end it cleanly, and print what is kept and how to resume."""

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
    work: Coroutine[Any, Any, _T], out: Path, kept: Callable[[], str], command: str | None = None
) -> _T:
    """Run `work` and return its result.

    Stopped by a signal, exit with status 130 or 143 and print what the folder holds (`kept`) and the command
    that resumes (by default the one that was given). A computation may take seconds to end, so the first
    signal is acknowledged immediately, and the same signal again exits without waiting.
    """
    received: list[int] = []
    cancel: Callable[[], object] | None = None

    def handle(sign: int, _: object) -> None:
        if sign in received:  # Python would wait for computing threads; a run can be killed at any time
            _write_now("\x1b[?25h" if sys.stderr.isatty() else "")  # a live bar hides the cursor
            os._exit(128 + received[0])
        received.append(sign)
        if cancel is None:
            raise KeyboardInterrupt
        if len(received) == 1:
            how = "press Ctrl-C" if sign == signal.SIGINT else "send SIGTERM"
            _write_now(f"\nStopping cleanly; {how} again to force quit.\n")
            with suppress(RuntimeError):  # it has just ended by itself
                cancel()

    async def whole() -> _T:
        nonlocal cancel
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        cancel = partial(loop.call_soon_threadsafe, task.cancel)
        return await work

    try:
        with _handled_by(handle):  # until the loop is closed, too
            return asyncio.run(whole())
    except (KeyboardInterrupt, asyncio.CancelledError):
        say(f"stopped; {kept()}; resume with: {command or again(out)}")
        raise typer.Exit(143 if received[:1] == [signal.SIGTERM] else 130) from None


def _write_now(text: str) -> None:
    """Write to standard error directly: Python's own stream may be in the middle of a line."""
    with suppress(OSError):
        os.write(2, text.encode())


@contextmanager
def _handled_by(handle: Callable[[int, object], None]) -> Iterator[None]:
    """Send both signals to `handle`, except one that was ignored at the start (as in a background job)."""
    before = {}
    try:
        with suppress(ValueError):  # not in this thread
            for sign in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(sign) is not signal.SIG_IGN:
                    before[sign] = signal.signal(sign, handle)
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


@contextmanager
def tidy(out: Path) -> Iterator[None]:
    """Let SIGTERM end work without an event loop as Ctrl-C does, so that it removes what it began.

    The work creates `out` as a whole or not at all. The exit status is 143 or 130. The stop may come when
    `out` is complete but not yet announced.
    """
    terminated = False

    def stop(*_: object) -> None:
        nonlocal terminated
        terminated = True
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGTERM)
    with suppress(ValueError):  # not in this thread
        signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        whole = out.exists() and any(out.iterdir())  # an empty folder may have been there before
        say(f"stopped; {out} is ready" if whole else f"stopped; nothing was written to {out}")
        raise typer.Exit(143 if terminated else 130) from None
    finally:
        with suppress(ValueError):
            signal.signal(signal.SIGTERM, before)


def again(out: Path) -> str:
    """Return the command that resumes: the one that was given, with --resume once there is a run."""
    from mapo.store import RunDir

    words = [word for word in sys.argv[1:] if word != "--resume"]
    return join(["mapo", *words, *(["--resume"] if RunDir(out).manifest.exists() else [])])
