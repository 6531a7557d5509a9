"""Limits of connections: how many are open, how long a request takes to arrive and an answer to be read.

uvicorn has no such limits: a client that sends nothing, or one byte now and then, would keep its connection,
and so would one that never reads its answers.
"""

from __future__ import annotations

import asyncio
import logging
import socket
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
STOP_SECONDS = 5.0
"""How long the server waits for its clients when it stops."""
BACKLOG = 32
"""Connections that asyncio accepts at a time, before any is counted. With uvicorn's 2,048 a flood uses up all
file descriptors, and the server stops answering."""
NOT_WAITING = float("inf")
_WARNING_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one server. `connections` counts all that are open, those of sessions included."""

    connections: int
    request_seconds: float = REQUEST_SECONDS
    unread_seconds: float = UNREAD_SECONDS
    stop_seconds: float = STOP_SECONDS


class BoundedServer(uvicorn.Server):
    """A server with limits on connections."""

    def __init__(self, app: ASGIApp, limits: ConnectionLimits, **options: Any) -> None:
        protocol: Any = partial(BoundedConnection, self)  # uvicorn takes whatever makes a protocol
        super().__init__(uvicorn.Config(app, http=protocol, backlog=BACKLOG, **options))
        self.limits = limits
        self._unread_since: dict[Any, float] = {}
        self._warned = float("-inf")

    async def on_tick(self, counter: int) -> bool:
        """Do what uvicorn does ten times per second. Once per second, cut off clients that do not read."""
        if counter % 10 == 0:
            self._cut_off_unread(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop as uvicorn does, which waits until all answers are read, but only for `stop_seconds`."""
        timer = asyncio.get_running_loop().call_later(self.limits.stop_seconds, self._cut_off_requests)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    def _cut_off_requests(self) -> None:
        for connection in self.server_state.connections:
            if isinstance(connection, BoundedConnection):  # uvicorn ends sessions
                connection.transport.abort()

    def _cut_off_unread(self, now: float) -> None:
        self._find_unread(now)
        for connection, since in self._unread_since.items():
            if now - since > self.limits.unread_seconds:
                connection.transport.abort()  # close() would wait until everything is read

    def _find_unread(self, now: float) -> None:
        unread = [c for c in self.server_state.connections if c.transport.get_write_buffer_size()]
        self._unread_since = {c: self._unread_since.get(c, now) for c in unread}

    def make_room(self, newcomer: BoundedConnection) -> None:
        """If there are too many connections, close the one that has been waiting longest for its client: for
        a request, or to be read. Other clients send and read in milliseconds, so they are served also while
        slow ones take all connections. The newcomer is refused only if all others are being answered."""
        now = asyncio.get_running_loop().time()
        self._find_unread(now)
        connections = self.server_state.connections
        held = [c for c in connections if not c.transport.is_closing() or c in self._unread_since]
        if len(held) <= self.limits.connections:
            return
        if now - self._warned > _WARNING_SECONDS:
            self._warned = now
            _log.warning(
                "more than %d connections are open; closing those whose clients are slowest",
                self.limits.connections,
            )
        waiting = {
            c: since
            for c in held
            if isinstance(c, BoundedConnection)  # not a session's
            and c is not newcomer
            and (since := self._unread_since.get(c, c.waiting_since)) < NOT_WAITING
        }
        slowest = min(waiting, key=waiting.__getitem__, default=newcomer)
        if slowest in self._unread_since:
            slowest.transport.abort()
        else:
            slowest.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "There are too many connections.")


class BoundedConnection(H11Protocol):
    """A connection until it becomes a WebSocket, with a deadline while a request is awaited or arriving.

    Between two requests, uvicorn's own limit for idle connections applies.
    """

    def __init__(self, bounded: BoundedServer, **options: Any) -> None:
        super().__init__(**options)
        self.bounded = bounded
        self.waiting_since = NOT_WAITING
        """The time at which it began to wait for the rest of a request or for the next one."""
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_deadline()
        self.bounded.make_room(self)

    def data_received(self, data: bytes) -> None:
        self._set_deadline()
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._clear_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # reads the next request, if it began to arrive before the answer
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            return
        if self.conn.their_state is h11.SEND_BODY:
            self._set_deadline()
        elif self.conn.their_state is h11.IDLE:
            self.waiting_since = self.loop.time()

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
            self.waiting_since = self.loop.time()
            seconds = self.bounded.limits.request_seconds
            reason = f"The request did not arrive within {seconds:g} seconds."
            self._deadline = self.loop.call_later(seconds, self.refuse, HTTPStatus.REQUEST_TIMEOUT, reason)

    def _clear_deadline(self) -> None:
        self.waiting_since = NOT_WAITING
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
