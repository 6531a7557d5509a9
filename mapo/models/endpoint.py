"""A model behind an OpenAI-compatible address, as a `Chat`.

A request is looked up in the cache, waits for the rate limits, is sent, and is retried where that can help
(`retries.py`). The API key comes from the environment and is only sent to the endpoint; it is removed from
everything that comes back.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from mapo.body_fields import check_body, merge_bodies
from mapo.errors import EndpointError, InputError
from mapo.models.cache import Cache
from mapo.models.chat import Answer, Request, ToolCall, Usage
from mapo.models.ledger import Ledger
from mapo.models.rate_limit import Limiter, Limits
from mapo.models.retries import (
    CHECK_URL,
    FIRST_PAUSE,
    CallFailure,
    error_message,
    http_failure,
    pause,
    retry_after,
    thinking_failure,
)
from mapo.models.secrets import scrub
from mapo.models.wire import (
    Dialect,
    JsonMode,
    bounded_answer,
    fallback,
    left_out,
    parse_response,
    plausible_usage,
    request_body,
    token_estimate,
)
from mapo.text import printable, without_thinking
from mapo.types import Message

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

DEFAULT_URL = "https://api.openai.com/v1"
_KEY_LIKE = re.compile(r"\b(sk-|Bearer\s+)[\w*.\-/+=]{4,}")
CALLS_PER_CLIENT = 8
"""Concurrent calls per HTTP client. A client scans all its connections on every call, so more calls get
another client."""

_UNKNOWN_MODEL = re.compile(
    r"model.{0,80}(not (found|exist|available)|unknown)|(unknown|no such) model", re.I
)
_log = logging.getLogger(__name__)


class Probe(NamedTuple):
    """The result of `Endpoint.probe`. `slow`: no token within the time limit. `others` is the number of
    models that the endpoint lists if the requested one is not among them, else 0."""

    slow: bool = False
    others: int = 0


class Endpoint:
    """A model at an address, called with retries.

    limits: may be a `Limiter` shared with other endpoints at the same address.
    json_mode: how a schema is requested: "schema", "object" (any JSON object), "text" (only in the prompt),
        or "auto", which tries them in this order when the endpoint refuses one, and remembers the result.
    body: fields that are added to the body of every request (`mapo.body_fields`).
    timeout: seconds for one attempt. `sleep` and `clock` are for tests.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        key_env: str = "OPENAI_API_KEY",
        timeout: float = 120.0,
        retries: int = 5,
        limits: Limits | Limiter | None = None,
        cache: Cache | None = None,
        ledger: Ledger | None = None,
        role: str = "policy",
        json_mode: JsonMode | Literal["auto"] = "auto",
        body: Mapping[str, Any] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not model:
            raise InputError(
                "no model is named", where="endpoint", fix="Give a model name that the endpoint lists"
            )
        if not (timeout > 0 and retries >= 0):
            raise InputError(
                f"timeout is {timeout} and retries is {retries}",
                where="endpoint",
                fix="Use a timeout above 0, and 0 or more retries",
            )
        self.base_url = _checked_url(base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_URL)
        self.key_env, self.timeout, self.retries, self.role = key_env, timeout, retries, role
        self.limiter = limits if isinstance(limits, Limiter) else Limiter(limits)
        self.cache = cache
        self.ledger = Ledger() if ledger is None else ledger
        self.left_out: set[str] = set()  # parameters left out of any answer so far, cached ones included
        self._model = model
        self._body = check_body(body or {})
        self._has_answered = False
        self._auto = json_mode == "auto"
        self._dialect = Dialect(json="schema" if json_mode == "auto" else json_mode)
        self._sleep, self._clock = sleep, clock
        self._clients: list[AsyncOpenAI] = []
        self._in_flight = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._key()

    def __repr__(self) -> str:
        return f"Endpoint({self._model!r}, {self.base_url!r}, role={self.role!r})"

    @property
    def name(self) -> str:
        return self._model

    @property
    def json_mode(self) -> JsonMode:
        """How a schema is currently requested."""
        return self._dialect.json

    async def reply(self, request: Request) -> Answer:
        """Answer a request, from the cache if possible. Raises EndpointError when all retries failed."""
        if self._body:
            request = replace(request, body=merge_bodies(self._body, request.body))
        if self.cache is None:
            answer, cached = await self._call(request), False
        else:
            answer, cached = await self.cache.answer(self._model, request, lambda: self._call(request))
        if cached:
            self._count(hits=1)
        self.left_out.update(answer.left_out)
        return answer

    async def models(self) -> tuple[str, ...]:
        """Return the models that the endpoint lists. One attempt, without limits and cache."""
        body = await self._send(lambda client: client.models.with_raw_response.list())
        if isinstance(body, CallFailure):
            raise self._error(body, 1)
        try:
            return tuple(self._scrubbed(str(model["id"])) for model in json.loads(body)["data"])
        except (ValueError, KeyError, TypeError, RecursionError):
            failure = CallFailure("the list of models could not be read", fix=CHECK_URL)
            raise self._error(failure, 1) from None

    async def probe(self) -> Probe:
        """Check with cheap requests that the endpoint answers: it lists the model or completes one token.

        A model that is listed is not called, so a wrong key is only noticed if the list needs a key. Raise
        EndpointError if it cannot be reached, refuses the key or does not know the model. One attempt per
        request, outside rate limits, cache and ledger.
        """
        listing = await self._send(lambda client: client.models.with_raw_response.list())
        if isinstance(listing, CallFailure) and listing.status is None:
            raise self._error(listing, 1)
        listed = set() if isinstance(listing, CallFailure) else _model_ids(listing)
        if self._model in listed:
            return Probe()
        body = request_body(Request((Message("user", "Hello"),), max_tokens=1), self._model, self._dialect)
        reply = await self._send(
            lambda client: client.chat.completions.with_raw_response.create(
                model=self._model, messages=[], extra_body=body
            )
        )
        if not isinstance(reply, CallFailure):
            return Probe(others=len(listed))
        unknown = reply.status in (400, 422) and _UNKNOWN_MODEL.search(reply.reason)
        if reply.status in (400, 422, 429) and not unknown:  # calls adapt the request, or wait for their turn
            return Probe(others=len(listed))
        if reply.status is None:
            return Probe(slow=True, others=len(listed))
        raise self._error(reply, 1)

    async def aclose(self) -> None:
        """Close the connections; a later call opens new ones."""
        clients, self._clients = self._clients, []
        for client in clients:
            await client.close()

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # ---- one call and its attempts

    async def _call(self, request: Request) -> Answer:
        retried, started = 0, time.perf_counter()
        while True:
            dialect = self._dialect
            result = await self._attempt(request, dialect, retry=retried > 0)
            if isinstance(result, Answer):
                self._has_answered = True
                self._count(calls=1)
                await self._record(request, started, retried)
                return result
            if self._adapt(dialect, request, result):
                continue
            # A policy that twice gives an empty reply is judged by that reply, but not one that has only been
            # cut off while thinking: its token limit is too low.
            judged = self.role == "policy" and (self._has_answered or not result.only_thinking)
            if result.empty_answer and judged and retried:
                self._count(calls=1)
                await self._record(request, started, retried)
                return result.empty_answer
            if result.final or retried >= (min(self.retries, 1) if result.only_thinking else self.retries):
                break
            retried += 1
            self._count(retries=1)
            seconds = pause(retried, result.retry_after)
            if result.status == 429:
                # The endpoint's other callers would be refused too.
                self.limiter.hold(result.retry_after or FIRST_PAUSE)
            _log.info("%s: %s; retrying in %.1f s", self._where, result.reason, seconds)
            await self._sleep(seconds)
        self._count(calls=1, failures=1)
        await self._record(request, started, retried, error=result.reason)
        raise self._error(result, retried + 1)

    async def _attempt(self, request: Request, dialect: Dialect, *, retry: bool) -> Answer | CallFailure:
        body = request_body(request, self._model, dialect)
        async with self.limiter.reserve(token_estimate(request), retry=retry) as reservation:
            started = time.perf_counter()
            # With extra_body the client does not transform every message, which takes 10 ms in a long
            # dialogue.
            response = await self._send(
                lambda client: client.chat.completions.with_raw_response.create(
                    model=self._model, messages=[], extra_body=body
                )
            )
            self._count(seconds=time.perf_counter() - started)
            if isinstance(response, CallFailure):
                return response
            try:
                answer = self._without_key(bounded_answer(parse_response(response), request))
            except ValueError as error:
                return CallFailure(self._scrubbed(str(error))[:1000], fix=CHECK_URL)
            usage = plausible_usage(answer.usage, request)
            answer = replace(answer, usage=usage, left_out=left_out(request, dialect))
            if usage.prompt or usage.completion:
                self.limiter.settle(reservation, usage.prompt + usage.completion)
        self._count(usage=usage)  # empty answers cost tokens too
        if without_thinking(answer.text).strip() or answer.tool_calls:
            return answer
        if answer.reply.finish == "length" and answer.thinking:
            return thinking_failure(answer, request.max_tokens, self.role)
        if answer.text.strip():
            return answer
        if answer.reply.finish == "length":
            reason = f"no text within max_tokens={request.max_tokens}"
            fix = "Raise max_tokens; the model may have spent all of it on thinking"
            return CallFailure(reason, fix=fix, empty_answer=answer)
        fix = "Try the prompt by hand; the model may refuse it"
        return CallFailure("an empty answer", fix=fix, empty_answer=answer)

    async def _send(self, call: Callable[[AsyncOpenAI], Awaitable[Any]]) -> bytes | CallFailure:
        """Make one HTTP call and return the body of the response."""
        import openai

        from mapo.models.bounded import BodyError

        client = self._connected()
        self._in_flight += 1
        try:
            with self.ledger.activity.waiting(self.role):
                async with asyncio.timeout(self.timeout):
                    response = await call(client)
            content: bytes = response.content
        except openai.APIStatusError as error:
            return self._http_failure(error)
        except (openai.APITimeoutError, TimeoutError):
            self.ledger.activity.add(self.role, timeouts=1)
            return CallFailure(
                f"no answer within {self.timeout:g} s", fix="Raise the timeout, or lower the concurrency"
            )
        except openai.APIConnectionError as error:
            if isinstance(error.__cause__, BodyError):
                return CallFailure(
                    self._scrubbed(str(error.__cause__)),
                    fix="Check that the base URL is that of a language model",
                )
            cause = self._scrubbed(str(error.__cause__ or "")) or "the connection failed"
            return CallFailure(f"no connection ({cause})", fix=f"Is a server running at {self.base_url}?")
        finally:
            self._in_flight -= 1
        return content

    def _http_failure(self, error: APIStatusError) -> CallFailure:
        return http_failure(
            error.status_code,
            self._scrubbed(error_message(error.body))[:1000],
            code=error.code,
            retry_after=retry_after(error.response.headers, self._clock()),
            key=self._key_source,
        )

    def _adapt(self, used: Dialect, request: Request, failure: CallFailure) -> bool:
        """Switch to another dialect if that may help, and return whether to send again. That is not counted
        as a retry."""
        if failure.status not in (400, 422):
            return False
        if self._dialect != used:  # a concurrent call has already switched
            return True
        other = fallback(used, request, failure.reason)
        if other is None or (other.json != used.json and not self._auto):
            return False
        _log.info("%s: %s; continuing with %s", self._where, failure.reason, other)
        self._dialect = other
        return True

    # ---- helpers

    def _without_key(self, answer: Answer) -> Answer:
        """Remove the key from an answer."""
        key = self._key()
        calls = tuple(ToolCall(scrub(c.name, key), scrub(c.arguments, key)) for c in answer.tool_calls)
        reply = replace(answer.reply, text=scrub(answer.reply.text, key))
        return replace(answer, reply=reply, tool_calls=calls)

    def _connected(self) -> AsyncOpenAI:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # connections belong to one event loop
            self._loop, self._clients = loop, []
        if len(self._clients) * CALLS_PER_CLIENT <= self._in_flight:
            from openai import AsyncOpenAI, DefaultAsyncHttpx2Client

            from mapo.models.bounded import ACCEPT, guard_response

            client = AsyncOpenAI(
                api_key=self._key() or "none",
                base_url=self.base_url,
                timeout=self.timeout,
                max_retries=0,
                http_client=DefaultAsyncHttpx2Client(
                    verify=_certificates(),
                    follow_redirects=False,
                    headers=ACCEPT,
                    event_hooks={"response": [guard_response]},
                ),
            )
            self._clients.append(client)
        self._clients = [*self._clients[1:], self._clients[0]]  # round robin
        return self._clients[-1]

    def _key(self) -> str:
        """Return the key from the environment; empty for servers without one. It is never stored."""
        key = os.environ.get(self.key_env, "").strip() if self.key_env else ""
        if not (key.isascii() and key.isprintable()):
            raise InputError(
                "the key contains invalid characters", where=self.key_env, fix="Set the variable again"
            )
        return key

    @property
    def _key_source(self) -> str:
        if not self.key_env:
            return ""
        return f"the environment variable {self.key_env}" + ("" if self._key() else ", which is not set")

    def _scrubbed(self, text: str) -> str:
        return printable(_KEY_LIKE.sub("***", scrub(text, self._key())))

    @property
    def _where(self) -> str:
        # The roles of an audit are named after their models.
        includes_model = f"{self.role} ".startswith(f"{self._model} ")
        name = self.role if includes_model else f"{self.role} {self._model}"
        return name if self.base_url in name else f"{name} at {self.base_url}"

    def _error(self, failure: CallFailure, attempts: int) -> EndpointError:
        suffix = f" (after {attempts} attempts)" if attempts > 1 else ""
        return EndpointError(f"{failure.reason}{suffix}", where=self._where, fix=failure.fix)

    async def _record(self, request: Request, started: float, retries: int, error: str = "") -> None:
        if self.cache is not None:
            seconds = time.perf_counter() - started
            await self.cache.record_call(
                self._model, request, role=self.role, seconds=seconds, retries=retries, error=error
            )

    def _count(self, *, usage: Usage | None = None, seconds: float = 0.0, **counts: int) -> None:
        self.ledger.add(self.role, self._model, usage=usage, seconds=seconds, **counts)


def _model_ids(content: bytes) -> set[str]:
    """Return the model names in a listing; none if it cannot be read."""
    try:
        return {str(model["id"]) for model in json.loads(content)["data"]}
    except (ValueError, KeyError, TypeError, RecursionError):
        return set()


@lru_cache
def _certificates() -> ssl.SSLContext:
    """Load the certificates once: that takes longer than everything else in opening a client."""
    return ssl.create_default_context()


def _checked_url(url: str) -> str:
    shown = re.sub(r"//[^/]*@", "//", url.partition("?")[0])  # keep keys in URLs out of messages too
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise InputError(
            "this is not a valid address",
            where=f"base URL '{shown}'",
            fix="Use an address like http://localhost:8000/v1",
        )
    if parts.username or parts.password or parts.query:
        raise InputError(
            "the address contains a user, password or query",
            where=f"base URL '{shown}'",
            fix="Put the key into the environment variable that key_env names",
        )
    return url.rstrip("/")
