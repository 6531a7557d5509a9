"""A real HTTP server on loopback that plays the OpenAI protocol, with latencies and faults as told.

    with LoopbackServer(lambda body: "I hear you.", latency=0.2) as server:
        chat = Endpoint("any", server.base_url)

For tests and benchmarks of everything that talks to models, yours too. It runs in a thread of its own and
carries many hundred calls at once. Usage numbers are estimates: four characters a token, and as cached
counts the part of a prompt that some earlier prompt began with, as a server with a prefix cache would.
Needs the extra `mapo[testing]`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from mapo.testing.faults import IN_MESSAGE, STATUS, known, spoil

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

Body = dict[str, Any]
Said = str | dict[str, Any]
"""The text of the answer, or the whole message (with `tool_calls`; `finish_reason` may be among its keys)."""

Answering = Callable[[Body], Said | Awaitable[Said]]
Fault = Callable[[int, Body], str | None]


class LoopbackServer:
    """`fault` picks a fault by name for a call (`mapo.testing.faults`). `refuses` lists what the server does
    not know ("json_schema", "json_object", "tools", "max_tokens", "temperature"): such requests get a 400
    that says so. With `key`, calls without it get a 401. `record` keeps the request bodies in `bodies`."""

    def __init__(
        self,
        answer: Answering = lambda _: "I see.",
        *,
        latency: float | Callable[[Body], float] = 0.0,
        fault: Fault = lambda _number, _body: None,
        refuses: Collection[str] = (),
        models: tuple[str, ...] = ("loopback",),
        key: str | None = None,
        retry_after: str = "1",
        record: bool = False,
    ) -> None:
        self.answer, self.latency, self.fault, self.refuses = answer, latency, fault, refuses
        self.models, self.key, self.retry_after, self.record = models, key, retry_after, record
        self.calls, self.in_flight, self.peak = 0, 0, 0
        self.faults: Counter[str] = Counter()
        self.bodies: list[Body] = []
        self.errors: list[Exception] = []
        """What the functions given to it raised; the client got a 500."""
        self._prefixes = _Prefixes()
        self._connections: dict[tuple[str, int], asyncio.Transport] = {}
        self._ready = threading.Event()

    # ---- running

    def __enter__(self) -> LoopbackServer:
        import uvicorn

        self._socket = socket.create_server(("127.0.0.1", 0), backlog=2048)
        self.base_url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/v1"
        config = uvicorn.Config(
            self._app(),
            http=_protocol(self._connections),
            ws="none",
            log_config=None,
            access_log=False,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=1,
            backlog=2048,
        )
        self._server: uvicorn.Server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the loopback server did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._loop.call_soon_threadsafe(self._hang_up)
        self._thread.join(10)
        self._socket.close()

    def _hang_up(self) -> None:
        self._closing.set()
        for transport in list(self._connections.values()):
            transport.abort()

    def _app(self) -> Starlette:
        from starlette.applications import Starlette
        from starlette.routing import Route

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
            self._ready.set()
            yield

        routes = [
            Route("/v1/models", self._list),
            Route("/v1/chat/completions", self._complete, methods=["POST"]),
        ]
        return Starlette(routes=routes, lifespan=lifespan)

    # ---- answering

    async def _list(self, _: Request) -> Response:
        return _json({"object": "list", "data": [{"id": m, "object": "model"} for m in self.models]})

    async def _complete(self, request: Request) -> Response:
        self.calls += 1
        number = self.calls
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            return await self._respond(number, request)
        except Exception as error:  # noqa: BLE001 (a bug in the test's functions must reach the test)
            self.errors.append(error)
            return _error(500, f"a function given to the server failed: {error!r}")
        finally:
            self.in_flight -= 1

    async def _respond(self, number: int, request: Request) -> Response:
        given = request.headers.get("authorization", "")
        if self.key is not None and given != f"Bearer {self.key}":
            return _error(401, f"Incorrect API key provided: {given}")
        try:
            body = json.loads(await request.body())
            messages = body["messages"]
        except (ValueError, KeyError, TypeError):
            return _error(400, "the request is no chat completion")
        if self.record:
            self.bodies.append(body)
        if complaint := self._complaint(body):
            return _error(400, complaint)
        fault = self.fault(number, body)
        if fault is not None:
            if not known(fault):
                raise ValueError(f"no fault is called '{fault}'")
            self.faults[fault] += 1
        await asyncio.sleep(self.latency(body) if callable(self.latency) else self.latency)
        if fault and (status := STATUS.fullmatch(fault)):
            headers = {"Retry-After": self.retry_after} if status[2] else {}
            # As careless as servers can be: clients must not pass the key on.
            return _error(int(status[1]), f"told to fail (Authorization: {given})", headers)
        if fault in ("drop", "hang"):
            return await self._vanish(fault, request)
        said = self.answer(body)
        said = await said if inspect.isawaitable(said) else said
        message: Body = {"role": "assistant", "content": said} if isinstance(said, str) else said
        return _completion(body["model"], message, fault, self._prefixes.usage(body, messages, message))

    def _complaint(self, body: Body) -> str:
        kind = (body.get("response_format") or {}).get("type")
        if kind in self.refuses:
            return f"response_format of type '{kind}' is not supported"
        if "tools" in body and "tools" in self.refuses:
            return "tools are not supported by this model"
        if "max_tokens" in body and "max_tokens" in self.refuses:
            return "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
        if "temperature" in body and "temperature" in self.refuses:
            return "Unsupported parameter: 'temperature' is not supported with this model."
        return "streams are not supported here" if body.get("stream") else ""

    async def _vanish(self, fault: str, request: Request) -> Response:
        transport = self._connections[request.scope["client"]]
        if fault == "hang":
            gone = [asyncio.ensure_future(request.receive()), asyncio.ensure_future(self._closing.wait())]
            await asyncio.wait(gone, return_when=asyncio.FIRST_COMPLETED)
            for waiting in gone:
                waiting.cancel()
        transport.abort()
        return _error(500, "never sent: the connection is closed")


def _completion(model: str, message: Body, fault: str | None, usage: Body) -> Response:
    message = {"role": "assistant", **message}
    finish = message.pop("finish_reason", "tool_calls" if message.get("tool_calls") else "stop")
    if fault in IN_MESSAGE:
        message, finish = spoil(message, fault)
    choice = {"index": 0, "message": message, "finish_reason": finish}
    whole = {"id": "loopback", "object": "chat.completion", "created": 0, "model": model, "usage": usage}
    if fault == "no-choices":
        return _json({**whole, "choices": []})
    if fault == "error-200":
        return _json({"error": {"message": "the model behind is busy", "code": 503}})
    if fault == "not-http-json":
        return _raw(b"<html>Bad gateway</html>")
    content = json.dumps({**whole, "choices": [choice]}).encode()
    return _raw(content[: len(content) // 2] if fault == "cut-body" else content)


def _json(data: Body, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return _raw(json.dumps(data).encode(), status, headers)


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return _json({"error": {"message": message, "type": "loopback", "code": None}}, status, headers)


def _raw(content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import Response

    return Response(content, status, headers, media_type="application/json")


def _protocol(connections: dict[tuple[str, int], asyncio.Transport]) -> type[asyncio.Protocol]:
    """uvicorn's protocol, its connections within reach: no ASGI message closes one without a response."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Reachable(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            # Else a response in two pieces waits 40 ms for the client's acknowledgement of the first.
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.client is not None:
                connections[self.client] = transport

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self.client is not None:
                connections.pop(self.client, None)

    return Reachable


class _Prefixes:
    """Which beginnings of prompts were seen, in blocks of 16 tokens. Old ones are forgotten in bulk."""

    BLOCK, MOST = 64, 200_000

    def __init__(self) -> None:
        self._new: set[int] = set()
        self._old: set[int] = set()

    def usage(self, body: Body, messages: list[Body], said: Body) -> Body:
        prompt = json.dumps(body.get("tools") or "") + "".join(
            f"<{m.get('role')}>{m.get('content')}" for m in messages
        )
        written = f"{said.get('content') or ''}{said.get('tool_calls') or ''}"
        cached = self._seen(prompt)
        prompt_tokens, completion = max(1, len(prompt) // 4), max(1, len(written) // 4)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": prompt_tokens + completion,
            "prompt_tokens_details": {"cached_tokens": min(cached // 4, prompt_tokens)},
        }

    def _seen(self, prompt: str) -> int:
        """Characters at the beginning of `prompt` that were seen before; all of it is seen from now on."""
        if len(self._new) > self.MOST:
            self._old, self._new = self._new, set()
        mark, seen, going = 0, 0, True
        for start in range(0, len(prompt) - self.BLOCK + 1, self.BLOCK):
            mark = hash((mark, prompt[start : start + self.BLOCK]))
            going = going and (mark in self._new or mark in self._old)
            seen += self.BLOCK if going else 0
            self._new.add(mark)
        return seen
