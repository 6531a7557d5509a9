"""The server, and the thread that refreshes the index."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from starlette.types import ASGIApp

from mapo import listening
from mapo.connections import BoundedServer, ConnectionLimits
from mapo.listening import addresses_of
from mapo.view.app import make_app
from mapo.view.index.files import find_runs
from mapo.view.index.index import Index

EVERY = 2.0
"""Seconds between two refreshes; more if a refresh takes long."""
LIMITS = ConnectionLimits(64)
"""Limits of connections. A browser opens about six."""


def token_for(host: str) -> str:
    """Return the token that clients need: none on loopback."""
    return listening.token_for(host, "MAPO_VIEW_TOKEN")


@contextmanager
def kept_fresh(index: Index, on_error: Callable[[Exception], None]) -> Iterator[None]:
    """Refresh the index in a thread until the block is left."""
    stop = threading.Event()

    def refresh() -> None:
        pause = 0.0
        while not stop.wait(pause):
            began = os.times().elapsed
            try:
                index.refresh(stop.is_set)
            except Exception as error:  # noqa: BLE001 (the pages stay up; the terminal shows the error)
                index.busy = None
                on_error(error)
            pause = max(EVERY, 5 * (os.times().elapsed - began))

    thread = threading.Thread(target=refresh, name="mapo-view-index", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)


def server_of(app: ASGIApp, limits: ConnectionLimits = LIMITS) -> BoundedServer:
    """Return a server; `server.run([listener])` serves until interrupted or its `should_exit` is set."""
    return BoundedServer(
        app,
        limits,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
    )


def serve(
    root: Path,
    *,
    host: str,
    port: int,
    names: Sequence[str] = (),
    say: Callable[[str], None],
    on_ready: Callable[[], None] | None = None,
) -> None:
    """Serve until interrupted. `names` are further host names to accept."""
    token = token_for(host)
    listener = listening.listening(host, port)
    index = Index(root)
    known = [host, socket.gethostname(), *addresses_of(host)] if token else []
    app = make_app(index, names=[*known, *names], token=token)
    port = listener.getsockname()[1]
    for shown in addresses_of(host):
        at = f"[{shown}]" if ":" in shown else shown
        say(f"http://{at}:{port}/{f'?token={token}' if token else ''}   (press Ctrl-C to stop)")
    if next(find_runs(root), None) is None:
        say(f"{root} holds no runs yet; the page shows new ones as they appear.")
    try:
        with kept_fresh(index, lambda error: say(f"warning: {type(error).__name__}: {error}")):
            if on_ready:
                on_ready()
            server_of(app).run([listener])
    finally:
        listener.close()
        index.close()
