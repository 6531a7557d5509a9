from __future__ import annotations

import asyncio
import json
import sqlite3
import zlib
from pathlib import Path

import pytest

from mapo.models.cache import Cache
from mapo.models.chat import Request
from mapo.types import Message

REQUEST = Request((Message("system", "Judge."), Message("user", "The reply.")), session="a/1/judge", turn=2)


def record(path: Path, *requests: Request, error: str = "") -> list[tuple[object, ...]]:
    cache = Cache(path)
    for request in requests:
        asyncio.run(cache.record_call("m", request, role="judge", seconds=1.5, retries=1, error=error))
    cache.close()
    with sqlite3.connect(path) as database:
        return database.execute("SELECT * FROM calls").fetchall()


def test_a_call_is_stored_with_its_turn_timing_and_retries(tmp_path: Path) -> None:
    (row,) = record(tmp_path / "cache.sqlite", REQUEST, error="HTTP 500")
    assert row[:4] == ("a/1/judge", 2, "judge", "m")
    assert row[6:9] == (1.5, 1, "HTTP 500")


def test_a_message_is_stored_once(tmp_path: Path) -> None:
    rows = record(tmp_path / "cache.sqlite", REQUEST, REQUEST)
    with sqlite3.connect(tmp_path / "cache.sqlite") as database:
        texts = dict(database.execute("SELECT hash, body FROM texts").fetchall())
    messages = [json.loads(str(row[-1]))["messages"] for row in rows]
    assert len(texts) == 2
    assert [zlib.decompress(texts[name]) for _, name in messages[1]] == [b"Judge.", b"The reply."]


@pytest.mark.parametrize("mode", ["off", "replay"])
def test_nothing_is_stored_without_a_writable_cache(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "cache.sqlite"
    record(path)
    cache = Cache(path, mode)  # type: ignore[arg-type]
    asyncio.run(cache.record_call("m", REQUEST, role="judge", seconds=1.5, retries=0))
    cache.close()
    assert record(path) == []


def test_requests_outside_dialogues_are_not_stored(tmp_path: Path) -> None:
    assert record(tmp_path / "cache.sqlite", Request(REQUEST.messages)) == []
