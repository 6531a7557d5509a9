"""The cache: what is equal, who pays, and what survives."""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace

import pytest

from mapo.errors import EndpointError, InputError, StoreError
from mapo.models.cache import Cache, key_of
from mapo.models.chat import Answer, Request, Sampling, Tool, Usage
from mapo.types import Message, Reply

REQUEST = Request(
    (Message("user", "hello"),), schema={"a": 1, "b": [1, 2]}, tools=(Tool("f", "d", {"x": 1}),)
)


class Paid:
    """Counts calls and answers with their number."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self) -> Answer:
        self.calls += 1
        await asyncio.sleep(0)
        return Answer(Reply(f"answer {self.calls}"), usage=Usage(10, 5, 2))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "cache.sqlite"


def get(path, mode, call, request=REQUEST, model="m", times=1):
    async def main():
        cache = Cache(path, mode)
        try:
            return [await cache.answer(model, request, call) for _ in range(times)]
        finally:
            cache.close()

    return asyncio.run(main())


# ---- what is equal


def test_the_key_is_pinned():
    """Changing it makes every recorded run worthless: do so on purpose."""
    asked = (
        '{"max_tokens":1024,"messages":[["user","hello"]],"model":"m","nonce":"","schema":{"a":1,"b":[1,2]},'
        '"temperature":1.0,"tools":[{"description":"d","name":"f","parameters":{"x":1}}],"top_p":1.0}'
    )
    assert key_of("m", REQUEST) == hashlib.sha256(asked.encode()).hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        {"messages": (Message("user", "hello!"),)},
        {"messages": (Message("system", "hello"),)},
        {"temperature": 0.5},
        {"top_p": 0.5},
        {"max_tokens": 7},
        {"schema": None},
        {"tools": ()},
        {"nonce": "2"},
        {"min_p": 0.1},
        {"body": {"top_k": 1}},
    ],
)
def test_whatever_shapes_an_answer_changes_the_key(change):
    assert key_of("m", replace(REQUEST, **change)) != key_of("m", REQUEST)


def test_body_fields_are_part_of_the_key_whatever_their_order():
    """A request without them has the key it had before there were any: see the pinned one."""
    keys = [key_of("m", replace(REQUEST, body=body)) for body in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {})]
    assert keys[0] == keys[1]
    assert keys[2] == key_of("m", REQUEST)


def test_sampling_without_body_fields_keeps_the_key():
    assert key_of("m", Sampling(temperature=1.0).of(REQUEST)) == key_of("m", REQUEST)


def test_what_does_not_shape_it_does_not():
    same = replace(REQUEST, session="other", schema={"b": [1, 2], "a": 1}, temperature=1)
    assert key_of("m", same) == key_of("m", REQUEST)
    assert key_of("n", REQUEST) != key_of("m", REQUEST)


# ---- modes


def test_record_pays_once_even_across_runs(path):
    paid = Paid()
    [(first, known), (second, again)] = get(path, "record", paid, times=2)
    [(third, later)] = get(path, "record", paid)
    assert first == second == third and first.usage == Usage(10, 5, 2)
    assert (known, again, later, paid.calls) == (False, True, True, 1)


def test_replay_uses_only_what_is_there(path):
    paid = Paid()
    get(path, "record", paid)
    [(answer, known)] = get(path, "replay", paid)
    assert (answer.text, known) == ("answer 1", True)
    with pytest.raises(EndpointError, match="no recorded answer"):
        get(path, "replay", paid, model="other")
    assert paid.calls == 1


def test_refresh_pays_once_for_each_request_and_keeps_that(path):
    paid = Paid()
    get(path, "record", paid)
    answers = get(path, "refresh", paid, times=3)
    assert [(a.text, known) for a, known in answers] == [
        ("answer 2", False),
        ("answer 2", True),
        ("answer 2", True),
    ]
    assert get(path, "replay", paid)[0][0].text == "answer 2"


def test_off_keeps_nothing(path):
    paid = Paid()
    get(path, "off", paid, times=3)
    assert paid.calls == 3 and not path.exists()
    assert len(Cache(path, "off")) == 0


def test_unknown_modes_and_missing_records_are_refused(path):
    with pytest.raises(InputError, match="mode"):
        Cache(path, "sometimes")  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="there is no such cache"):
        Cache(path, "replay")
    assert not path.exists()


# ---- in flight


def test_equal_requests_in_flight_wait_for_the_first(path):
    paid = Paid()

    async def main():
        cache = Cache(path)
        found = await asyncio.gather(*(cache.answer("m", REQUEST, paid) for _ in range(20)))
        size = len(cache)
        cache.close()
        return found, size

    found, size = asyncio.run(main())
    assert {a.text for a, _ in found} == {"answer 1"} and paid.calls == 1 and size == 1
    assert sorted(known for _, known in found) == [False] + [True] * 19


def test_a_failure_is_shared_and_not_kept(path):
    calls = []

    async def fails() -> Answer:
        calls.append(1)
        await asyncio.sleep(0)
        raise EndpointError("down")

    async def main():
        cache = Cache(path)
        tasks = [cache.answer("m", REQUEST, fails) for _ in range(5)]
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        answer, _ = await cache.answer("m", REQUEST, Paid())
        cache.close()
        return errors, answer

    errors, answer = asyncio.run(main())
    assert [type(e) for e in errors] == [EndpointError] * 5 and len(calls) == 1
    assert answer.text == "answer 1"


def test_when_the_first_gives_up_one_of_those_waiting_takes_over(path):
    async def forever() -> Answer:
        await asyncio.Event().wait()
        raise AssertionError

    async def main():
        cache, paid = Cache(path), Paid()
        first = asyncio.create_task(cache.answer("m", REQUEST, forever))
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(cache.answer("m", REQUEST, paid)) for _ in range(3)]
        await asyncio.sleep(0)
        first.cancel()
        found = await asyncio.gather(*waiting)
        cache.close()
        return found, first.cancelled(), paid.calls

    found, cancelled, calls = asyncio.run(main())
    assert cancelled and calls == 1
    assert [a.text for a, _ in found] == ["answer 1"] * 3


# ---- the file


def test_what_another_process_kept_first_is_what_counts(path):
    async def main():
        mine, other = Cache(path), Cache(path)

        async def overtaken() -> Answer:
            await other.answer("m", REQUEST, Paid())
            return Answer(Reply("too late"))

        answer, _ = await mine.answer("m", REQUEST, overtaken)
        mine.close()
        other.close()
        return answer.text

    assert asyncio.run(main()) == "answer 1"


def test_a_file_that_is_no_database(path):
    path.parent.mkdir()
    path.write_bytes(b"this is no database" * 100)
    with pytest.raises(StoreError, match="Remove the file") as caught:
        Cache(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes().startswith(b"this is no database")


def test_a_damaged_page_is_reported(path):
    for n in range(200):
        get(path, "record", Paid(), replace(REQUEST, nonce=str(n)))
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(StoreError, match="Remove the file"):
        get(path, "replay", Paid(), replace(REQUEST, nonce="7"))


def test_a_damaged_answer_is_reported(path):
    get(path, "record", Paid())
    with sqlite3.connect(path) as database:
        database.execute("UPDATE answers SET answer = '{\"reply\": 3}'")
    database.close()
    with pytest.raises(StoreError, match="cannot be used"):
        get(path, "record", Paid())


def test_somebody_elses_database_is_left_alone(path):
    path.parent.mkdir()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE history (url)")
    database.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="not a cache of mapo"):
        Cache(path)
    assert path.read_bytes() == before


def test_a_newer_cache_is_left_alone(path):
    get(path, "record", Paid())
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(StoreError, match="newer"):
        Cache(path)


def test_a_folder_is_no_cache(tmp_path):
    with pytest.raises(StoreError, match="cannot be opened"):
        Cache(tmp_path)


@pytest.mark.parametrize(
    ("pragma", "fix"), [("max_page_count=1", "Free some disk space"), ("query_only=1", "writable path")]
)
def test_a_disk_that_refuses(path, pragma, fix):
    async def main():
        cache = Cache(path)
        try:
            cache._database.execute(f"PRAGMA {pragma}")
            for n in range(100):
                await cache.answer("m", replace(REQUEST, nonce=str(n)), Paid())
        finally:
            cache.close()

    with pytest.raises(StoreError, match=fix):
        asyncio.run(main())


def test_a_file_held_by_another_process(path, monkeypatch):
    monkeypatch.setattr("mapo.models.cache.LOCK_TIMEOUT_S", 0.05)
    cache, other = Cache(path), sqlite3.connect(path)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError, match="Another process holds a lock"):
        asyncio.run(cache.answer("m", REQUEST, Paid()))
    other.close()
    cache.close()


def test_a_closed_or_absent_cache_says_so(path):
    with pytest.raises(StoreError, match="the cache is off"):
        Cache(path, "off")._run("SELECT 1")


WRITER = """
import asyncio, sys
from mapo.models.cache import Cache
from mapo.models.chat import Answer, Request
from mapo.types import Message, Reply

async def main(path, name, count):
    cache = Cache(path)
    for n in range(count):
        async def call():
            return Answer(Reply(f"{name} {n} " + "x" * 500))
        await cache.answer(name, Request((Message("user", str(n)),)), call)
        print(n, flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def write(path, name: str, count: int) -> subprocess.Popen:
    args = [sys.executable, "-c", WRITER, str(path), name, str(count)]
    return subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_kill_9_loses_nothing_that_was_acknowledged(path):
    with write(path, "writer", 10**9) as writer:
        lines = [writer.stdout.readline() for _ in range(300)]
        os.kill(writer.pid, signal.SIGKILL)
        lines += writer.stdout.read().splitlines(keepends=True)
        writer.wait()
        assert writer.returncode == -signal.SIGKILL, writer.stderr.read()
    done = [int(line) for line in lines if line.endswith("\n")]
    assert done == list(range(len(done))) and len(done) >= 300

    async def main():
        cache, paid = Cache(path), Paid()
        for n in done:
            answer, known = await cache.answer("writer", Request((Message("user", str(n)),)), paid)
            assert known and answer.text.startswith(f"writer {n} ")
        cache.close()
        return paid.calls

    assert asyncio.run(main()) == 0
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    database.close()


def test_several_processes_share_one_file(path):
    """All open it at once, while it does not exist yet."""
    writers = [write(path, f"w{n % 2}", 60) for n in range(4)]
    for writer in writers:
        _, error = writer.communicate(timeout=30)
        assert writer.returncode == 0, error
    cache = Cache(path)
    assert len(cache) == 2 * 60
    cache.close()


def test_whoever_opens_a_new_file_beside_others_waits_for_its_turn(path, monkeypatch):
    """SQLite answers "locked" at once where two change a new file to WAL."""
    prepare, tries = Cache._prepare, []

    def crowded(self, database):
        tries.append(database)
        if len(tries) < 3:
            database.execute("BEGIN")
            raise sqlite3.OperationalError("database is locked")
        prepare(self, database)

    monkeypatch.setattr(Cache, "_prepare", crowded)
    cache = Cache(path)
    assert len(tries) == 3 and len(cache) == 0
    cache.close()
    tries.clear()
    monkeypatch.setattr("mapo.models.cache.LOCK_TIMEOUT_S", -1.0)
    with pytest.raises(StoreError, match="locked"):
        Cache(path)
    assert len(tries) == 1


@pytest.mark.parametrize(
    "answer",
    [
        '{"reply": {"text": 7}, "tool_calls": [], "usage": {}}',
        '{"reply": {"text": "x", "finish": "maybe"}, "tool_calls": [], "usage": {}}',
        '{"reply": {"text": "x"}, "tool_calls": [{"name": 1, "arguments": ""}], "usage": {}}',
        '{"reply": {"text": "x"}, "tool_calls": [], "usage": {"prompt": "many"}}',
        '{"reply": {"text": "x"}, "tool_calls": [], "usage": {"prompt": -1}}',
        '{"reply": [], "tool_calls": [], "usage": {}}',
        "[" * 100_000,
        "7",
    ],
)
def test_a_stored_answer_of_wrong_types_is_one_clear_error(tmp_path, answer):
    path = tmp_path / "cache.sqlite"
    Cache(path).close()
    request = Request((Message("user", "x"),))
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO answers VALUES (?, ?, ?)", (key_of("m", request), "m", answer))
    database.close()
    cache = Cache(path)
    with pytest.raises(StoreError, match="the cache cannot be used"):
        asyncio.run(cache.answer("m", request, None))
    cache.close()


def test_a_locked_database_does_not_stop_other_work(tmp_path):
    cache = Cache(tmp_path / "cache.sqlite")
    other = sqlite3.connect(tmp_path / "cache.sqlite", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    ticks = []

    async def call():
        return Answer(Reply("x"))

    async def tick():
        while len(ticks) < 10:
            ticks.append(1)
            await asyncio.sleep(0.01)
        other.execute("COMMIT")

    async def play():
        return await asyncio.gather(cache.answer("m", Request((Message("user", "x"),)), call), tick())

    (answer, cached), _ = asyncio.run(play())
    assert answer.text == "x" and not cached and len(ticks) == 10
    cache.close()
    other.close()


def test_a_failing_disk_is_no_reason_to_remove_the_answers(tmp_path):
    """A limit on the size of files, for example, shows up as an I/O error; the file is intact."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    cache = Cache(tmp_path / "cache.sqlite")
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
        with pytest.raises(StoreError, match="earlier answers are kept"):  # noqa: PT012
            for number in range(100):
                cache._put(str(number), "m", Answer(Reply("x" * 10_000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert 0 < len(cache) < 100
    cache.close()
