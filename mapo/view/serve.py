"""The server, and the thread that refreshes the index."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mapo.errors import InputError, StoreError
from mapo.view.app import make_app
from mapo.view.index.files import find_runs
from mapo.view.index.index import Index

EVERY = 2.0
"""Seconds between two refreshes; more if a refresh takes long."""


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def addresses_of(host: str) -> list[str]:
    """Return the hosts to open in a browser. For 0.0.0.0 and :: these are the machine's name and its address
    on the outgoing route."""
    try:
        if not ipaddress.ip_address(host).is_unspecified:
            return [host]
    except ValueError:
        return [host]
    outgoing = _outgoing_address(socket.AF_INET6 if ":" in host else socket.AF_INET)
    return list(dict.fromkeys([socket.gethostname(), *([outgoing] if outgoing else [])]))


def _outgoing_address(family: socket.AddressFamily) -> str:
    """Return this machine's address on the outgoing route, or "". Nothing is sent."""
    target = "2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1"  # reserved for documentation
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def token_for(host: str) -> str:
    """Return the required token: none on loopback, else MAPO_VIEW_TOKEN or a new one."""
    if is_loopback(host):
        return ""
    token = os.environ.get("MAPO_VIEW_TOKEN", "")
    if token and (len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token):
        raise InputError(
            "The token is too short or contains unusual characters.",
            where="MAPO_VIEW_TOKEN",
            fix="Use at least 16 ASCII characters without spaces",
        )
    return token or secrets.token_urlsafe(24)


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
    import uvicorn

    token = token_for(host)
    listener = _listening(host, port)
    index = Index(root)
    known = [host, socket.gethostname(), *addresses_of(host)] if token else []
    app = make_app(index, names=[*known, *names], token=token)
    port = listener.getsockname()[1]
    for shown in addresses_of(host):
        at = f"[{shown}]" if ":" in shown else shown
        say(f"http://{at}:{port}/{f'?token={token}' if token else ''}   (press Ctrl-C to stop)")
    if next(find_runs(root), None) is None:
        say(f"{root} holds no runs yet; the page shows new ones as they appear.")
    config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, ws="none")
    try:
        with kept_fresh(index, lambda error: say(f"warning: {type(error).__name__}: {error}")):
            if on_ready:
                on_ready()
            uvicorn.Server(config).run([listener])
    finally:
        listener.close()
        index.close()


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        # The text of the error repeats the address, so the reason comes from its number.
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise StoreError(
            f"the server cannot listen there: {reason.lower()}",
            where=f"{host}, port {port}",
            fix="Choose another --port or --host",
        ) from None
