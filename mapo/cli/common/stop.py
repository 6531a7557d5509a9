"""A long run ended by hand: Ctrl-C and SIGTERM end it in order, and say what is kept and how to go on."""

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
    """What `work` comes to. Stopped by hand, the status is 130 or 143; `kept` says what the folder holds,
    and `command` (the one that was given, by default) goes on. What is being computed may take seconds to
    its end, so a stop is answered at once, and the same signal again does not wait."""
    heard: list[int] = []
    cancel: Callable[[], object] | None = None

    def hear(sign: int, _: object) -> None:
        if sign in heard:  # Python would wait for threads that compute; a run is made to be cut off anywhere
            _tell_at_once("\x1b[?25h" if sys.stderr.isatty() else "")  # a live bar hides the cursor
            os._exit(128 + heard[0])
        heard.append(sign)
        if cancel is None:
            raise KeyboardInterrupt
        if len(heard) == 1:
            _tell_at_once("\nstopping in order; the same again stops at once\n")
            with suppress(RuntimeError):  # it has just ended by itself
                cancel()

    async def whole() -> _T:
        nonlocal cancel
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        cancel = partial(loop.call_soon_threadsafe, task.cancel)
        return await work

    try:
        with _hearing(hear):  # until the loop is closed, too
            return asyncio.run(whole())
    except (KeyboardInterrupt, asyncio.CancelledError):
        say(f"stopped; {kept()}; go on with: {command or again(out)}")
        raise typer.Exit(143 if heard[:1] == [signal.SIGTERM] else 130) from None


def _tell_at_once(text: str) -> None:
    """Past Python's own streams, which may be in the middle of a line."""
    with suppress(OSError):
        os.write(2, text.encode())


@contextmanager
def _hearing(hear: Callable[[int, object], None]) -> Iterator[None]:
    """Both signals go to `hear`, unless we were started with one ignored (in the background of a script)."""
    before = {}
    try:
        with suppress(ValueError):  # not in this thread
            for sign in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(sign) is not signal.SIG_IGN:
                    before[sign] = signal.signal(sign, hear)
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


@contextmanager
def tidy(out: Path) -> Iterator[None]:
    """For work without an event loop that makes `out`, whole or not at all: SIGTERM ends it as Ctrl-C does,
    so that it clears away what it began.

    The status is 143 or 130. A stop may also come when all is done but the telling.
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
    """The command that goes on: the one that was given, with --resume once there is a run."""
    from mapo.store import RunDir

    words = [word for word in sys.argv[1:] if word != "--resume"]
    return join(["mapo", *words, *(["--resume"] if RunDir(out).manifest.exists() else [])])
