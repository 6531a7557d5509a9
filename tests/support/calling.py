"""An endpoint against a loopback server, for several tests."""

from __future__ import annotations

import asyncio

from mapo.models.chat import Answer, Request
from mapo.models.endpoint import Endpoint
from mapo.testing.server import LoopbackServer
from mapo.types import Message

HELLO = Request((Message("system", "Be kind."), Message("user", "Hello there")))
SCHEMA = {"type": "object", "properties": {"level": {"type": "integer"}}}
FORM = Request((Message("user", "Fill in the JSON form"),), schema=SCHEMA)

TRANSIENT = [
    *("408", "409", "425", "429", "429-retry-after", "500", "502", "503-retry-after"),
    *("drop", "hang", "not-http-json", "cut-body", "no-choices", "error-200", "empty", "null"),
]
FINAL = ["400", "401", "402", "403", "404", "405", "413", "422"]


class Sleeps(list):
    """Remembers how long it should have slept, and does not."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


def first(*faults: str):
    """These faults for the first calls, then none."""
    return lambda number, _: faults[number - 1] if number <= len(faults) else None


def ask(server: LoopbackServer | str, request: Request = HELLO, **kw) -> Answer:
    """One call by a fresh endpoint."""

    async def main():
        known = {"timeout": 5.0, "sleep": Sleeps(), "role": "judge"}
        url = server if isinstance(server, str) else server.base_url
        async with Endpoint("some-model", url, **{**known, **kw}) as chat:
            return await chat.reply(request)

    return asyncio.run(main())
