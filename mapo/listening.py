"""Where a server listens: loopback or not, the addresses to open, the token that others need."""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket

from mapo.errors import InputError, StoreError


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


def token_for(host: str, variable: str) -> str:
    """Return the required token: none on loopback, else that in the environment variable, or a new one."""
    if is_loopback(host):
        return ""
    token = os.environ.get(variable, "")
    if token and (len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token):
        raise InputError(
            "the token is too short or contains unusual characters",
            where=variable,
            fix="Use at least 16 ASCII characters without spaces",
        )
    return token or secrets.token_urlsafe(24)


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens there. Raises StoreError if that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        # The text of the error repeats the address, so the reason comes from its number.
        if (error.errno or 0) < 0:  # from the name resolution
            reason = "the host name cannot be resolved"
        else:
            reason = os.strerror(error.errno) if error.errno else str(error)
        raise StoreError(
            f"the server cannot listen there: {reason.lower()}",
            where=f"{host}, port {port}",
            fix="Choose another --port or --host",
        ) from None
