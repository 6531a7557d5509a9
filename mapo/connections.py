"""Limits of connections: how many are open, how long a request takes to arrive and an answer to be read.

uvicorn has no such limits: a client that sends nothing, or one byte now and then, would keep its connection,
and so would one that never reads its answers.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

_log = logging.getLogger(__name__)

REQUEST_SECONDS = 10.0
"""The longest time for a request to arrive, headers and body: from the opening of its connection or, on a
connection that has had a request, from its first byte."""
UNREAD_SECONDS = 60.0
"""The longest time for a client to read what it is sent. After it, the connection is cut off."""
_WARNING_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one server. `connections` counts all that are open, those of sessions included."""

    connections: int
    request_seconds: float = REQUEST_SECONDS
    unread_seconds: float = UNREAD_SECONDS


class BoundedServer(uvicorn.Server):
    """A server with limits on connections."""

    def __init__(self, app: ASGIApp, limits: ConnectionLimits, **options: Any) -> None:
        protocol: Any = partial(BoundedConnection, self)  # uvicorn takes whatever makes a protocol
        super().__init__(uvicorn.Config(app, http=protocol, **options))
        self.limits = limits
        self._unread_since: dict[asyncio.BaseProtocol, float] = {}
        self._warned = float("-inf")

    async def on_tick(self, counter: int) -> bool:
        """Do what uvicorn does ten times per second. Once per second, cut off clients that do not read."""
        if counter % 10 == 0:
            self._cut_off_unread(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    def _cut_off_unread(self, now: float) -> None:
        unread = [c for c in self.server_state.connections if c.transport.get_write_buffer_size()]
        self._unread_since = {c: self._unread_since.get(c, now) for c in unread}
        for connection in unread:
            if now - self._unread_since[connection] > self.limits.unread_seconds:
                connection.transport.abort()  # close() would wait until everything is read

    def make_room(self) -> None:
        """Close the connection that has been waiting longest for its request. Requests of other clients
        arrive in milliseconds, so they are served also while slow ones take all connections."""
        now = asyncio.get_running_loop().time()
        if now - self._warned > _WARNING_SECONDS:
            self._warned = now
            _log.warning(
                "more than %d connections are open; closing those whose request is slowest",
                self.limits.connections,
            )
        connections = [c for c in self.server_state.connections if isinstance(c, BoundedConnection)]
        slowest = min(connections, key=lambda c: c.due)
        slowest.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "There are too many connections.")


class BoundedConnection(H11Protocol):
    """A connection until it becomes a WebSocket, with a deadline while a request is awaited or arriving.

    Between two requests, uvicorn's own limit for idle connections applies.
    """

    def __init__(self, bounded: BoundedServer, **options: Any) -> None:
        super().__init__(**options)
        self.bounded = bounded
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def due(self) -> float:
        """When the request must have arrived; infinite if none is awaited."""
        return self._deadline.when() if self._deadline else float("inf")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_deadline()
        if len(self.connections) > self.bounded.limits.connections:
            self.bounded.make_room()

    def data_received(self, data: bytes) -> None:
        self._set_deadline()
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._clear_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # reads the next request, if it began to arrive before the answer
        if self.conn.their_state is h11.SEND_BODY and self.transport.get_protocol() is self:
            self._set_deadline()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._clear_deadline()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        super().connection_lost(exc)

    def refuse(self, status: HTTPStatus, reason: str) -> None:
        """Close the connection, with an answer unless there has been one."""
        self._clear_deadline()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: text/plain\r\n"
            size = f"content-length: {len(reason) + 1}\r\nconnection: close\r\n\r\n"
            self.transport.write(f"{head}{size}{reason}\n".encode())
        self.transport.close()

    def _set_deadline(self) -> None:
        if self._deadline is None:
            seconds = self.bounded.limits.request_seconds
            reason = f"The request did not arrive within {seconds:g} seconds."
            self._deadline = self.loop.call_later(seconds, self.refuse, HTTPStatus.REQUEST_TIMEOUT, reason)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
