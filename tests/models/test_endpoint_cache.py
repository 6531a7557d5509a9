"""Endpoint and cache together: recorded runs repeat, nothing is paid twice."""

from __future__ import annotations

import asyncio

import pytest

from mapo.errors import EndpointError, StoreError
from mapo.models.cache import Cache
from mapo.models.chat import Request
from mapo.models.endpoint import Endpoint
from mapo.models.ledger import Ledger
from mapo.testing.server import LoopbackServer
from mapo.types import Message
from support.calling import HELLO, ask


def test_a_recorded_run_repeats_offline_bit_for_bit(tmp_path):
    counted = iter(range(1000))
    requests = [Request((Message("user", f"line {n}"),), nonce=str(n % 2)) for n in range(5)]
    tool = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}

    def answer(body):
        number = next(counted)
        return {"content": f"Antwort {number} — 好 \udc80", "tool_calls": [tool] * (number == 3)}

    async def run(url, mode, ledger):
        cache = Cache(tmp_path / "c.sqlite", mode)
        async with Endpoint("m", url, cache=cache, ledger=ledger, retries=0) as chat:
            answers = [await chat.reply(request) for request in requests]
        cache.close()
        return answers

    with LoopbackServer(answer, fault=lambda n, _: "length" if n == 2 else None) as server:
        recorded = asyncio.run(run(server.base_url, "record", Ledger()))
    ledger = Ledger()
    replayed = asyncio.run(run(server.base_url, "replay", ledger))  # the server is gone
    assert replayed == recorded and repr(replayed) == repr(recorded)
    assert recorded[1].reply.finish == "length" and recorded[3].tool_calls
    assert [(row["calls"], row["hits"], row["prompt"]) for row in ledger.as_rows()] == [(0, 5, 0)]
    requests.append(Request((Message("user", "never asked"),)))
    with pytest.raises(EndpointError, match="no recorded answer"):
        asyncio.run(run(server.base_url, "replay", ledger))


def test_equal_calls_in_flight_are_paid_once(tmp_path):
    async def main(url):
        ledger, cache = Ledger(), Cache(tmp_path / "c.sqlite")
        async with Endpoint("m", url, cache=cache, ledger=ledger) as chat:
            answers = await asyncio.gather(*(chat.reply(HELLO) for _ in range(10)))
        cache.close()
        return answers, ledger.as_rows()[0]

    numbers = iter(range(100))
    with LoopbackServer(lambda _: f"answer {next(numbers)}", latency=0.05) as server:
        answers, row = asyncio.run(main(server.base_url))
    assert {a.text for a in answers} == {"answer 0"}
    assert server.calls == 1 and (row["calls"], row["hits"]) == (1, 9)


def test_a_broken_cache_is_no_endpoint_error(tmp_path):
    cache = Cache(tmp_path / "c.sqlite")
    cache.close()
    with LoopbackServer() as server, pytest.raises(StoreError, match="cache"):
        ask(server, cache=cache)
    assert server.calls == 0
