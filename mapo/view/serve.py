"""The server of the pages, and the thread that keeps their index fresh."""

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
from mapo.view.index.index import Index

EVERY = 2.0
"""Seconds between two looks at the files; more where a look takes long."""


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def addresses_of(host: str) -> list[str]:
    """Names under which a browser finds it. "Every address of this machine" (0.0.0.0, ::) is none to open:
    then its name, and the address others most likely reach it by."""
    try:
        if not ipaddress.ip_address(host).is_unspecified:
            return [host]
    except ValueError:
        return [host]
    outward = _outward(socket.AF_INET6 if ":" in host else socket.AF_INET)
    return list(dict.fromkeys([socket.gethostname(), *([outward] if outward else [])]))


def _outward(family: socket.AddressFamily) -> str:
    """This machine's address on the way out; "" where there is none. Nothing is sent."""
    where = "2001:db8::1" if family == socket.AF_INET6 else "192.0.2.1"  # addresses kept for examples
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((where, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def token_for(host: str) -> str:
    """Beyond loopback a token is needed: MAPO_VIEW_TOKEN, or a fresh one."""
    if is_loopback(host):
        return ""
    given = os.environ.get("MAPO_VIEW_TOKEN", "")
    if given and (len(given) < 16 or not given.isascii() or not given.isprintable() or " " in given):
        raise InputError("too short or odd", where="MAPO_VIEW_TOKEN", fix="At least 16 plain characters")
    return given or secrets.token_urlsafe(24)


@contextmanager
def kept_fresh(index: Index, on_error: Callable[[Exception], None]) -> Iterator[None]:
    """A thread that looks at the files again and again, until the block is left."""
    stop = threading.Event()

    def look() -> None:
        pause = 0.0
        while not stop.wait(pause):
            began = os.times().elapsed
            try:
                index.refresh(stop.is_set)
            except Exception as error:  # noqa: BLE001 (the pages stay up; the terminal says what happened)
                index.busy = None
                on_error(error)
            pause = max(EVERY, 5 * (os.times().elapsed - began))

    thread = threading.Thread(target=look, name="mapo-view-index", daemon=True)
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
    """Serve until interrupted. `names` are further host names that may be asked for."""
    import uvicorn

    token = token_for(host)
    listener = _listening(host, port)
    index = Index(root)
    own = [host, socket.gethostname(), *addresses_of(host)] if token else []
    app = make_app(index, names=[*own, *names], token=token)
    port = listener.getsockname()[1]
    for shown in addresses_of(host):
        at = f"[{shown}]" if ":" in shown else shown
        say(f"http://{at}:{port}/{f'?token={token}' if token else ''}   (Ctrl-C stops)")
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
        told = f"cannot listen there ({error.strerror or error})"
        raise StoreError(told, where=f"{host}, port {port}", fix="Choose another --port or --host") from None
