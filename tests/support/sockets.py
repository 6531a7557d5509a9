"""Clients over plain sockets: slow, silent, or with small buffers."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from urllib.parse import urlsplit

import pytest


def opened(address, buffer=None):
    """Return a connection, with a receive buffer of `buffer` bytes."""
    connection = socket.socket()
    connection.settimeout(30)
    if buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    parts = urlsplit(address)
    connection.connect((parts.hostname, parts.port))
    return connection


def rest_of(connection):
    """Read until the server closes the connection."""
    connection.settimeout(30)
    return b"".join(iter(lambda: connection.recv(65536), b""))


def read_until(connection, end):
    """Read up to and including `end`."""
    received = b""
    while not received.endswith(end):
        received += connection.recv(1) or pytest.fail(f"the connection is closed after {received!r}")
    return received


def drip(connection, content):
    """Send byte after byte until the server answers or closes the connection. Return its answer."""
    connection.settimeout(0.05)
    for byte in content:
        with suppress(TimeoutError):
            connection.sendall(bytes([byte]))
            return connection.recv(1) + rest_of(connection)
    pytest.fail("the server took everything")


def until(condition):
    """Wait for a condition, up to 30 seconds. Return its last value."""
    end = time.monotonic() + 30
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return value
