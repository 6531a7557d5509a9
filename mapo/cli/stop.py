"""A long run ended by hand: Ctrl-C and SIGTERM end it in order, and say what is kept and how to go on."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import join
from typing import Any, TypeVar

import typer

from mapo.cli.say import say

_T = TypeVar("_T")


def until_stopped(
    work: Coroutine[Any, Any, _T], out: Path, kept: Callable[[], str], command: str | None = None
) -> _T:
    """What `work` comes to. Stopped by hand, the status is 130 or 143; `kept` says what the folder holds,
    and `command` (the one that was given, by default) goes on."""
    terminated = False

    async def whole() -> _T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def stop() -> None:
            nonlocal terminated
            terminated = True
            if task is not None:
                task.cancel()

        with suppress(NotImplementedError, RuntimeError, ValueError):  # not here, or not in this thread
            loop.add_signal_handler(signal.SIGTERM, stop)
        return await work

    try:
        return asyncio.run(whole())
    except (KeyboardInterrupt, asyncio.CancelledError):
        say(f"stopped; {kept()}; go on with: {command or again(out)}")
        raise typer.Exit(143 if terminated else 130) from None


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
