"""The server: OpenEnv's routes behind a guard that limits what clients can reach, send and hold.

OpenEnv gives every WebSocket connection at /ws a session of its own and counts them. The guard adds what it
leaves open: a session ends when its client is silent for too long or gone, also in the middle of a step;
routes that would create dialogues beside the sessions do not exist; a website that is open in a browser on
this machine cannot connect; beyond loopback a token is required. `mapo.connections` limits what comes before
a session: connections and the time of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import signal
import socket
from collections.abc import Iterator
from functools import partial
from urllib.parse import urlsplit

from fastapi import FastAPI
from openenv.core.env_server.http_server import HTTPEnvServer
from openenv.core.env_server.types import ServerMode
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from mapo.connections import BoundedServer, ConnectionLimits
from mapo.engines.openenv.environment import DialogueEnvironment, ServedSandbox
from mapo.engines.openenv.messages import MAX_REPLY, DialogueObservation, DialogueState, PolicyReply

NAME = "mapo"
"""The environment's name in the paths of OpenEnv's task API."""
MAX_MESSAGE = 12 * MAX_REPLY + 4096
"""The largest message of a client, in bytes. JSON escapes a character in at most 12 bytes."""
MAX_UNANSWERED = 2
"""The most messages that a client may send before the first of them is answered."""
MAX_BODY = 4096
"""The largest body of a request of the task API, in bytes."""
ROUTES = {
    "GET": {"/health", "/metadata", "/schema", "/list_environments", f"/{NAME}/splits"},
    "POST": {f"/{NAME}/{route}" for route in ("tasks", "num_tasks", "task", "task_range")},
}
FIRST_MESSAGE_SECONDS = 60.0
"""How long a session waits for its first message."""
PONG_SECONDS = 120.0
"""How long a client may take to answer a ping. One that computes in its event loop answers late."""
SPARE_CONNECTIONS = 128
"""Connections beside those of the sessions: requests that are arriving, and those of the task API."""
GRACE = 5
"""Seconds that open connections have when the server stops."""


def make_app(
    sandbox: ServedSandbox,
    *,
    sessions: int,
    idle: float,
    first: float = FIRST_MESSAGE_SECONDS,
    token: str = "",
) -> ASGIApp:
    """Return the application. A session ends if its client sends nothing for `idle` seconds, or for `first`
    seconds at the beginning. Without a token, only requests to localhost or an IP address are served."""
    app = FastAPI(openapi_url=None)
    server = _Sessions(
        partial(DialogueEnvironment, sandbox),
        PolicyReply,
        DialogueObservation,
        max_concurrent_envs=sessions,
        env_name=NAME,
        state_cls=DialogueState,
    )
    # OpenEnv's name for a server without routes that control an environment outside of a session.
    server.register_routes(app, mode=ServerMode.PRODUCTION)
    return Guard(app, idle=idle, first=min(first, idle), token=token)


class _Sessions(HTTPEnvServer):
    """OpenEnv's server, which also closes the environment of a connection that is cancelled meanwhile."""

    async def _destroy_session(self, session_id: str) -> None:
        await asyncio.shield(super()._destroy_session(session_id))


class Guard:
    """Middleware that refuses requests and ends sessions, as this module describes."""

    def __init__(self, app: ASGIApp, *, idle: float, first: float, token: str = "") -> None:
        self.app, self.idle, self.first, self.token = app, idle, first, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if scope["type"] == "websocket":
            if refusal is None:
                await _with_limits(self.app, self.first, self.idle, scope, receive, send)
            else:
                await WebSocket(scope, receive, send).send_denial_response(refusal)
        else:
            await (refusal or self.app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        # A page that rebinds its name to this machine has no token, so with one any name will do.
        if not self.token and (len(hosts) != 1 or not _is_local(hosts[0])):
            return _rejected("This host name is not served here.", 421)
        if "origin" in headers:  # browsers send it; OpenEnv's clients do not
            return _rejected("Requests from web pages are refused.", 403)
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        token = bearer.strip() if kind.casefold() == "bearer" else ""
        if self.token and not hmac.compare_digest(token.encode(), self.token.encode()):
            return _rejected("A token is required: the header 'Authorization: Bearer TOKEN'.", 401)
        if scope["type"] == "websocket":
            known = scope["path"] == "/ws" and not scope["query_string"]
        else:
            known = scope["path"] in ROUTES.get(scope["method"], ())
        if not known:
            return PlainTextResponse("There is no such route. Sessions are WebSockets at /ws.\n", 404)
        size = headers.get("content-length", "0" if scope.get("method") != "POST" else "")
        if not (size.isascii() and size.isdecimal() and int(size[:9]) <= MAX_BODY):
            return PlainTextResponse(f"The body must be at most {MAX_BODY} bytes long.\n", 413)
        return None


def _rejected(reason: str, status: int) -> PlainTextResponse:
    """Return an answer to a client that may not use this server. Its connection is closed."""
    return PlainTextResponse(f"{reason}\n", status, {"Connection": "close"})


def _is_local(host: str) -> bool:
    try:
        name = (urlsplit(f"//{host}").hostname or "").casefold()
        return name == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


async def _with_limits(
    app: ASGIApp, first: float, idle: float, scope: Scope, receive: Receive, send: Send
) -> None:
    """Serve one connection. If its client disconnects during a step, the step is cancelled; if it sends no
    whole message for `idle` seconds (`first` before its first one) while the server waits for it, the
    connection is closed.

    A cancellation hits only what answers a message: OpenEnv would never free a session that it was creating.
    """
    inbox: asyncio.Queue[Message] = asyncio.Queue()
    answering, unanswered = False, 0
    patience = first
    gone: Message | None = None

    async def close(code: int, reason: str) -> Message:
        await send_open({"type": "websocket.close", "code": code, "reason": reason})
        return {"type": "websocket.disconnect", "code": code, "reason": reason}

    async def read() -> None:
        """Pass messages on until the client disconnects or sends too far ahead."""
        nonlocal unanswered, gone
        while gone is None:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                gone = message
            elif unanswered == MAX_UNANSWERED:
                gone = await close(1008, "wait for the answer before you send the next message")
            else:
                unanswered += message["type"] == "websocket.receive"
                inbox.put_nowait(message)
        if answering:
            serving.cancel()
        else:
            inbox.put_nowait(gone)

    async def next_message() -> Message:
        nonlocal answering, unanswered, patience, gone
        unanswered -= answering
        answering = False
        try:
            message = await asyncio.wait_for(inbox.get(), patience)
        except TimeoutError:
            message = gone = await close(1001, f"nothing was received for {patience:g} seconds")
        if gone and message["type"] == "websocket.receive":
            return gone
        if message["type"] == "websocket.receive":
            answering, patience = True, idle
        return message

    async def send_open(message: Message) -> None:
        if gone is None:
            await send(message)

    serving = asyncio.ensure_future(_run(app, scope, next_message, send_open))
    reading = asyncio.ensure_future(read())
    try:
        await asyncio.wait((serving,))
    finally:
        reading.cancel()
        serving.cancel()
        await asyncio.wait((reading, serving), timeout=GRACE)
    if not serving.cancelled():
        serving.result()


async def _run(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)


class _Server(BoundedServer):
    """A server that leaves signals to its caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def server_of(app: ASGIApp, limits: ConnectionLimits) -> BoundedServer:
    """Return a server; `await server.serve([listener])` serves until its `should_exit` is set."""
    return _Server(
        app,
        limits,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="off",  # nothing to start, and Ctrl-C during the start would print a traceback
        ws_max_size=MAX_MESSAGE,
        ws_ping_timeout=PONG_SECONDS,
        timeout_graceful_shutdown=GRACE,
    )


async def serve(app: ASGIApp, listener: socket.socket, sessions: int) -> None:
    """Serve until SIGINT or SIGTERM. A second signal does not wait for open connections."""
    limits = ConnectionLimits(sessions + SPARE_CONNECTIONS)
    server, loop = server_of(app, limits), asyncio.get_running_loop()

    def stop() -> None:
        server.force_exit = server.should_exit
        server.should_exit = True

    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, stop)
    try:
        await server.serve([listener])
    finally:
        for sign in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(sign)
