"""Any model behind an OpenAI-compatible address, as a `Chat`.

A request passes the cache, waits for its turn, is sent, and is sent again where that can help
(`retries.py`). The key comes from the environment and goes nowhere but into the request: it is cut out of
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
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from mapo.errors import EndpointError, InputError
from mapo.models.cache import Cache
from mapo.models.chat import Answer, Request, Usage
from mapo.models.ledger import Ledger
from mapo.models.rate_limit import Limiter, Limits
from mapo.models.retries import CHECK_URL, Trouble, pause, refusal, retry_after, said_by
from mapo.models.wire import Dialect, JsonMode, body_of, left_out, read_body, simpler, token_estimate
from mapo.text import printable

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI

DEFAULT_URL = "https://api.openai.com/v1"
_KEY_LIKE = re.compile(r"\b(sk-|Bearer\s+)[\w*.\-/+=]{4,}")
LARGEST_BODY = 8 << 20
CALLS_A_CLIENT = 8
"""A client looks through all its connections at every call, so beyond these another one is opened."""

_log = logging.getLogger(__name__)


class Endpoint:
    """`limits` may be a `Limiter` shared with others who talk to the same address.

    `json_mode` is how a request's schema is asked for: "schema", "object" (any JSON), "text" (not at all),
    or "auto", which goes down that list when the endpoint refuses and remembers where it got to.
    `timeout` bounds one attempt as a whole, seconds; `sleep` and `clock` are for tests.
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
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not model:
            raise InputError("no model named", where="endpoint", fix="Give the name the endpoint lists")
        if not (timeout > 0 and retries >= 0):
            raise InputError(
                f"timeout is {timeout}, retries is {retries}", where="endpoint", fix="Both count up"
            )
        self.base_url = _checked_url(base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_URL)
        self.key_env, self.timeout, self.retries, self.role = key_env, timeout, retries, role
        self.limiter = limits if isinstance(limits, Limiter) else Limiter(limits)
        self.cache = cache
        self.ledger = Ledger() if ledger is None else ledger
        self.left_out: set[str] = set()  # of any answer so far, recorded ones too
        self._model = model
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
        """How a schema is asked for at present."""
        return self._dialect.json

    async def reply(self, request: Request) -> Answer:
        if self.cache is None:
            answer, known = await self._call(request), False
        else:
            answer, known = await self.cache.answer(self._model, request, lambda: self._call(request))
        if known:
            self._note(hits=1)
        self.left_out.update(answer.left_out)
        return answer

    async def models(self) -> tuple[str, ...]:
        """The models the endpoint lists. One attempt, outside limits and cache."""
        listed = await self._send(lambda client: client.models.with_raw_response.list())
        if isinstance(listed, Trouble):
            raise self._error(listed, 1)
        try:
            return tuple(str(model["id"]) for model in json.loads(listed)["data"])
        except (ValueError, KeyError, TypeError):
            raise self._error(Trouble("the list of models could not be read", fix=CHECK_URL), 1) from None

    async def aclose(self) -> None:
        """Close the connections; a later call opens new ones."""
        clients, self._clients = self._clients, []
        for client in clients:
            await client.close()

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # ---- one call, some attempts

    async def _call(self, request: Request) -> Answer:
        retried = 0
        while True:
            dialect = self._dialect
            outcome = await self._attempt(request, dialect)
            if isinstance(outcome, Answer):
                self._note(calls=1)
                return outcome
            if self._adapted(dialect, request, outcome):
                continue
            if outcome.said and self.role == "policy" and retried:
                # A policy that has nothing to say, twice, is to be judged for it, not excused.
                self._note(calls=1)
                return outcome.said
            if outcome.final or retried >= self.retries:
                break
            retried += 1
            self._note(retries=1)
            seconds = pause(retried, outcome.retry_after)
            _log.info("%s: %s; again in %.1f s", self._where, outcome.reason, seconds)
            await self._sleep(seconds)
        self._note(calls=1, failures=1)
        raise self._error(outcome, retried + 1)

    async def _attempt(self, request: Request, dialect: Dialect) -> Answer | Trouble:
        body = body_of(request, self._model, dialect)
        async with self.limiter.turn(token_estimate(request)) as turn:
            started = time.perf_counter()
            # As extra_body it skips the client's walk over every message, 10 ms in a long dialogue.
            sent = await self._send(
                lambda client: client.chat.completions.with_raw_response.create(
                    model=self._model, messages=[], extra_body=body
                )
            )
            self._note(seconds=time.perf_counter() - started)
            if isinstance(sent, Trouble):
                return sent
            try:
                answer = replace(self._without_key(read_body(sent)), left_out=left_out(request, dialect))
            except ValueError as error:
                return Trouble(self._scrubbed(str(error))[:1000], fix=CHECK_URL)
            used = answer.usage
            if used.prompt or used.completion:
                self.limiter.settle(turn, used.prompt + used.completion)
        self._note(usage=used)  # an empty answer is paid for too
        if answer.text.strip() or answer.tool_calls:
            return answer
        if answer.reply.finish == "length":
            cut = f"no text within max_tokens={request.max_tokens}"
            return Trouble(cut, fix="Raise max_tokens: the model may spend it all on thinking", said=answer)
        empty = "Try the model by hand: it may refuse this prompt"
        return Trouble("an empty answer", fix=empty, said=answer)

    async def _send(self, call: Callable[[AsyncOpenAI], Awaitable[Any]]) -> bytes | Trouble:
        """The body of the response."""
        import openai

        client = self._connected()
        self._in_flight += 1
        try:
            async with asyncio.timeout(self.timeout):
                response = await call(client)
            content: bytes = response.content
        except openai.APIStatusError as error:
            return self._refusal(error)
        except (openai.APITimeoutError, TimeoutError):
            return Trouble(
                f"no answer within {self.timeout:g} s", fix="Raise the time limit, or call less at once"
            )
        except openai.APIConnectionError as error:
            why = self._scrubbed(str(error.__cause__ or "")) or "the connection failed"
            return Trouble(f"no connection ({why})", fix=f"Is a server running at {self.base_url}?")
        finally:
            self._in_flight -= 1
        if len(content) > LARGEST_BODY:
            return Trouble(
                f"an answer of {len(content) >> 20} MB", fix="Is this a language model's endpoint?"
            )
        return content

    def _refusal(self, error: APIStatusError) -> Trouble:
        return refusal(
            error.status_code,
            self._scrubbed(said_by(error.body))[:1000],
            code=error.code,
            retry_after=retry_after(error.response.headers, self._clock()),
            key=f"the environment variable {self.key_env}" + ("" if self._key() else ", which is not set"),
        )

    def _adapted(self, used: Dialect, request: Request, outcome: Trouble) -> bool:
        """Whether the same request can be put differently from now on; that is no retry."""
        if outcome.status not in (400, 422):
            return False
        if self._dialect != used:  # another call found out first
            return True
        found = simpler(used, request, outcome.reason)
        if found is None or (found.json != used.json and not self._auto):
            return False
        _log.info("%s: %s; going on with %s", self._where, outcome.reason, found)
        self._dialect = found
        return True

    # ---- small things

    def _without_key(self, answer: Answer) -> Answer:
        """The key cut out of what was said, however the body spelt it."""
        secret = self._secret()
        if not secret:
            return answer
        calls = tuple(replace(c, arguments=c.arguments.replace(secret, "***")) for c in answer.tool_calls)
        reply = replace(answer.reply, text=answer.reply.text.replace(secret, "***"))
        return replace(answer, reply=reply, tool_calls=calls)

    def _connected(self) -> AsyncOpenAI:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # connections belong to one event loop
            self._loop, self._clients = loop, []
        if len(self._clients) * CALLS_A_CLIENT <= self._in_flight:
            from openai import AsyncOpenAI, DefaultAsyncHttpxClient

            client = AsyncOpenAI(
                api_key=self._key() or "none",
                base_url=self.base_url,
                timeout=self.timeout,
                max_retries=0,
                http_client=DefaultAsyncHttpxClient(verify=_certificates(), follow_redirects=False),
            )
            self._clients.append(client)
        self._clients = [*self._clients[1:], self._clients[0]]  # take turns
        return self._clients[-1]

    def _key(self) -> str:
        """Read where it is needed and kept nowhere; empty for servers that want none."""
        key = os.environ.get(self.key_env, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise InputError(
                "the key holds characters no key has", where=self.key_env, fix="Set the variable again"
            )
        return key

    def _secret(self) -> str:
        """The key where it is one: stand-ins like "none" or "EMPTY" are words that answers may hold."""
        key = self._key()
        return key if len(key) >= 8 else ""

    def _scrubbed(self, text: str) -> str:
        secret = self._secret()
        return printable(_KEY_LIKE.sub("***", text.replace(secret, "***") if secret else text))

    @property
    def _where(self) -> str:
        named = f"{self.role} ".startswith(f"{self._model} ")  # judges of an audit are called by their models
        who = self.role if named else f"{self.role} {self._model}"
        return who if self.base_url in who else f"{who} at {self.base_url}"

    def _error(self, trouble: Trouble, attempts: int) -> EndpointError:
        tried = f" (after {attempts} attempts)" if attempts > 1 else ""
        return EndpointError(f"{trouble.reason}{tried}", where=self._where, fix=trouble.fix)

    def _note(self, *, usage: Usage | None = None, seconds: float = 0.0, **counts: int) -> None:
        self.ledger.add(self.role, self._model, usage=usage, seconds=seconds, **counts)


@lru_cache
def _certificates() -> ssl.SSLContext:
    """Read once: loading them takes longer than everything else a client needs."""
    return ssl.create_default_context()


def _checked_url(url: str) -> str:
    shown = re.sub(r"//[^/]*@", "//", url.partition("?")[0])  # a key in a URL stays out of messages too
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fine = False
    if not fine:
        raise InputError("cannot be used", where=f"base URL '{shown}'", fix="Like http://localhost:8000/v1")
    if parts.username or parts.password or parts.query:
        raise InputError(
            "a user, password or query in the address",
            where=f"base URL '{shown}'",
            fix="Put the key into the environment variable that key_env names",
        )
    return url.rstrip("/")
