"""A local HTTP server that speaks the OpenAI protocol, with configurable latency and faults.

    with LoopbackServer(lambda body: "I hear you.", latency=0.2) as server:
        chat = Endpoint("any", server.base_url)

For tests and benchmarks of any code that talks to models. It runs in its own thread and handles many hundred
concurrent calls. Usage numbers are estimates: four characters per token; the part of a prompt that an earlier
prompt started with counts as cached, as on a server with a prefix cache. Needs the extra `testing`: pip
install '.[testing]'.
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
from mapo.testing.thinking import Thinking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

Body = dict[str, Any]
ServerAnswer = str | dict[str, Any]
"""The text of the answer, or the complete message (may have `tool_calls` and `finish_reason`)."""

AnswerFunction = Callable[[Body], ServerAnswer | Awaitable[ServerAnswer]]
Fault = Callable[[int, Body], str | None]


MODELS = ("loopback", "policy", "user", "director", "judge", "model", "m")
"""Models that a server lists by default, so that preflight checks of usual test names need no completion."""


class LoopbackServer:
    """The server, used as a context manager.

    `answer` maps a request body to the answer. `fault` selects a fault for a call (`mapo.testing.faults`).
    `refuses` lists unsupported features ("json_schema", "json_object", "tools", "max_tokens", "temperature"):
    requests that use them get status 400. With `key`, calls without that API key get status 401. `record`
    keeps the request bodies in `bodies`. With `thinking`, the model thinks before every answer.
    """

    def __init__(
        self,
        answer: AnswerFunction = lambda _: "I see.",
        *,
        latency: float | Callable[[Body], float] = 0.0,
        fault: Fault = lambda _number, _body: None,
        refuses: Collection[str] = (),
        models: tuple[str, ...] = MODELS,
        key: str | None = None,
        retry_after: str = "1",
        record: bool = False,
        thinking: Thinking | None = None,
    ) -> None:
        self.answer, self.latency, self.fault, self.refuses = answer, latency, fault, refuses
        self.models, self.key, self.retry_after, self.record = models, key, retry_after, record
        self.thinking = thinking
        self.calls, self.in_flight, self.peak = 0, 0, 0
        self.faults: Counter[str] = Counter()
        self.bodies: list[Body] = []
        self.errors: list[Exception] = []
        """Exceptions of the functions passed to the server; the client gets status 500."""
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
        self._loop.call_soon_threadsafe(self._close_connections)
        self._thread.join(10)
        self._socket.close()

    def _close_connections(self) -> None:
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
            return _error(500, f"a function passed to the server failed: {error!r}")
        finally:
            self.in_flight -= 1

    async def _respond(self, number: int, request: Request) -> Response:
        authorization = request.headers.get("authorization", "")
        if self.key is not None and authorization != f"Bearer {self.key}":
            return _error(401, f"Incorrect API key provided: {authorization}")
        try:
            body = json.loads(await request.body())
            messages = body["messages"]
        except (ValueError, KeyError, TypeError):
            return _error(400, "the request is not a chat completion")
        if self.record:
            self.bodies.append(body)
        if problem := self._unsupported(body):
            return _error(400, problem)
        fault = self.fault(number, body)
        if fault is not None:
            if not known(fault):
                raise ValueError(f"unknown fault '{fault}'")
            self.faults[fault] += 1
        await asyncio.sleep(self.latency(body) if callable(self.latency) else self.latency)
        if fault and (status := STATUS.fullmatch(fault)):
            headers = {"Retry-After": self.retry_after} if status[2] else {}
            # Servers may leak the key like this; clients must not pass it on.
            return _error(int(status[1]), f"simulated failure (Authorization: {authorization})", headers)
        if fault in ("drop", "hang"):
            return await self._drop_connection(fault, request)
        result = self.answer(body)
        answer = await result if inspect.isawaitable(result) else result
        message: Body = {"role": "assistant", "content": answer} if isinstance(answer, str) else answer
        usage = self._prefixes.usage(body, messages, message)
        if self.thinking is not None:
            message, usage = self.thinking.before(message, usage, body)
        return _completion(body["model"], message, fault, usage)

    def _unsupported(self, body: Body) -> str:
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

    async def _drop_connection(self, fault: str, request: Request) -> Response:
        transport = self._connections[request.scope["client"]]
        if fault == "hang":
            tasks = [asyncio.ensure_future(request.receive()), asyncio.ensure_future(self._closing.wait())]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
        transport.abort()
        return _error(500, "never sent: the connection is closed")


def _completion(model: str, message: Body, fault: str | None, usage: Body) -> Response:
    message = {"role": "assistant", **message}
    finish = message.pop("finish_reason", "tool_calls" if message.get("tool_calls") else "stop")
    if fault in IN_MESSAGE:
        message, finish = spoil(message, fault)
    choice = {"index": 0, "message": message, "finish_reason": finish}
    envelope = {"id": "loopback", "object": "chat.completion", "created": 0, "model": model, "usage": usage}
    if fault == "no-choices":
        return _json({**envelope, "choices": []})
    if fault == "error-200":
        return _json({"error": {"message": "the model behind is busy", "code": 503}})
    if fault == "not-http-json":
        return _raw(b"<html>Bad gateway</html>")
    content = json.dumps({**envelope, "choices": [choice]}).encode()
    return _raw(content[: len(content) // 2] if fault == "cut-body" else content)


def _json(data: Body, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return _raw(json.dumps(data).encode(), status, headers)


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return _json({"error": {"message": message, "type": "loopback", "code": None}}, status, headers)


def _raw(content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    from starlette.responses import Response

    return Response(content, status, headers, media_type="application/json")


def _protocol(connections: dict[tuple[str, int], asyncio.Transport]) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with access to its connections, because ASGI cannot close one without a
    response.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class TrackedProtocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            # Otherwise a response in two packets waits 40 ms for the acknowledgement of the first.
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.client is not None:
                connections[self.client] = transport

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self.client is not None:
                connections.pop(self.client, None)

    return TrackedProtocol


class _Prefixes:
    """A simulated prefix cache in blocks of 16 tokens. Old blocks are evicted in bulk."""

    BLOCK, MOST = 64, 200_000

    def __init__(self) -> None:
        self._new: set[int] = set()
        self._old: set[int] = set()

    def usage(self, body: Body, messages: list[Body], answer: Body) -> Body:
        prompt = json.dumps(body.get("tools") or "") + "".join(
            f"<{m.get('role')}>{m.get('content')}" for m in messages
        )
        written = f"{answer.get('content') or ''}{answer.get('tool_calls') or ''}"
        cached = self._cached_prefix(prompt)
        prompt_tokens, completion = max(1, len(prompt) // 4), max(1, len(written) // 4)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": prompt_tokens + completion,
            "prompt_tokens_details": {"cached_tokens": min(cached // 4, prompt_tokens)},
        }

    def _cached_prefix(self, prompt: str) -> int:
        """Return the length of the cached prefix of `prompt` in characters, and add the prompt to
        the cache.
        """
        if len(self._new) > self.MOST:
            self._old, self._new = self._new, set()
        digest, cached, matching = 0, 0, True
        for start in range(0, len(prompt) - self.BLOCK + 1, self.BLOCK):
            digest = hash((digest, prompt[start : start + self.BLOCK]))
            matching = matching and (digest in self._new or digest in self._old)
            cached += self.BLOCK if matching else 0
            self._new.add(digest)
        return cached
