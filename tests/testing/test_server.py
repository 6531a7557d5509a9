"""The loopback server itself, spoken to over plain HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.error
import urllib.request

import pytest

from mapo.testing.faults import IN_MESSAGE, IN_TRANSPORT
from mapo.testing.server import LoopbackServer, _Prefixes

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def post(server: LoopbackServer, body=BODY, **headers) -> tuple[int, dict, dict]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"{server.base_url}/chat/completions", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return response.status, json.loads(response.read()), dict(response.headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read()), dict(error.headers)


async def raw_post(server: LoopbackServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request on a connection of its own, its response still to be read."""
    host, port = server.base_url.removesuffix("/v1").removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    data = json.dumps(BODY).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    return reader, writer


def said(server: LoopbackServer, body=BODY) -> dict:
    return post(server, body)[1]["choices"][0]


def test_it_answers_as_the_protocol_has_it():
    with LoopbackServer(lambda body: f"{len(body['messages'])} messages", record=True) as server:
        status, data, _ = post(server)
    assert status == 200 and data["object"] == "chat.completion" and data["model"] == "m"
    message = {"role": "assistant", "content": "1 messages"}
    assert data["choices"] == [{"index": 0, "message": message, "finish_reason": "stop"}]
    assert (
        data["usage"]["total_tokens"] == data["usage"]["prompt_tokens"] + data["usage"]["completion_tokens"]
    )
    assert server.bodies == [BODY] and server.calls == 1 and server.in_flight == 0


def test_models_are_listed():
    with (
        LoopbackServer(models=("a", "b")) as server,
        urllib.request.urlopen(f"{server.base_url}/models") as got,
    ):
        assert [m["id"] for m in json.loads(got.read())["data"]] == ["a", "b"]


def test_answers_may_be_async_and_latency_a_function():
    async def answer(_):
        await asyncio.sleep(0)
        return "later"

    seen = []
    with LoopbackServer(answer, latency=lambda body: seen.append(body) or 0.0) as server:
        assert said(server)["message"]["content"] == "later"
    assert seen == [BODY]


def test_512_calls_at_once():
    """Each is answered only when all are inside, so the server must truly carry them together."""
    count = 512

    async def together(_):
        if server.in_flight == count:
            inside.set()
        await inside.wait()
        return "all here"

    async def one():
        reader, writer = await raw_post(server)
        line = await reader.readline()
        writer.close()
        return line

    async def main():
        async with asyncio.timeout(20):
            return await asyncio.gather(*(one() for _ in range(count)))

    inside = asyncio.Event()
    with LoopbackServer(together) as server:
        lines = asyncio.run(main())
    assert set(lines) == {b"HTTP/1.1 200 OK\r\n"} and len(lines) == count
    assert server.peak == count and server.calls == count


# ---- faults


@pytest.mark.parametrize("fault", ["400", "429", "429-retry-after", "500", "503-retry-after"])
def test_statuses(fault):
    with LoopbackServer(fault=lambda *_: fault, retry_after="9") as server:
        status, data, headers = post(server, Authorization="Bearer k")
    assert status == int(fault[:3]) and "message" in data["error"]
    assert {k.lower(): v for k, v in headers.items()}.get("retry-after") == ("9" if "-" in fault else None)
    assert server.faults == {fault: 1}


def test_a_dropped_connection_carries_no_byte():
    with (
        LoopbackServer(fault=lambda *_: "drop") as server,
        pytest.raises((ConnectionError, OSError)) as caught,
    ):
        post(server)
    assert not isinstance(caught.value, urllib.error.HTTPError)


def test_a_hang_lasts_until_the_client_goes():
    async def main():
        reader, writer = await raw_post(server)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        hanging = server.in_flight
        writer.close()
        async with asyncio.timeout(2):
            while server.in_flight:
                await asyncio.sleep(0.005)
        return hanging

    with LoopbackServer(fault=lambda *_: "hang") as server:
        assert asyncio.run(main()) == 1


def test_closing_the_server_ends_a_hang():
    async def main():
        async with asyncio.timeout(5):
            reader, writer = await raw_post(server)
            while not server.in_flight:
                await asyncio.sleep(0.005)
            await asyncio.to_thread(server.__exit__)
            left = b""
            with contextlib.suppress(ConnectionError):
                left = await reader.read()
            writer.close()
            return left

    server = LoopbackServer(fault=lambda *_: "hang").__enter__()
    assert asyncio.run(main()) == b""
    assert not server._thread.is_alive()


@pytest.mark.parametrize("fault", ["not-http-json", "cut-body"])
def test_bodies_that_are_no_json(fault):
    with LoopbackServer(fault=lambda *_: fault) as server, pytest.raises(json.JSONDecodeError):
        post(server)


def test_bodies_without_a_message():
    with LoopbackServer(fault=lambda n, _: ("no-choices", "error-200")[n - 1]) as server:
        assert post(server)[1]["choices"] == []
        status, data, _ = post(server)
    assert status == 200 and "choices" not in data and data["error"]["message"]


FORM = '{"C": {"progress": {"level": 1, "evidence": "e"}}, "list": [{"level": 0}]}'
SPOILT = {
    "empty": "",
    "null": None,
    "length": FORM[: len(FORM) // 2],
    "cut-json": FORM[: len(FORM) // 2],
    "not-json": "I would rather tell you in my own words.",
    "wrong-schema": '{"something": "else"}',
    "bad-level": '{"C": {"progress": {"level": 99, "evidence": "e"}}, "list": [{"level": 99}]}',
}


@pytest.mark.parametrize("fault", SPOILT)
def test_texts_that_are_spoilt(fault):
    with LoopbackServer(lambda _: FORM, fault=lambda *_: fault) as server:
        choice = said(server)
    assert choice["message"]["content"] == SPOILT[fault]
    assert choice["finish_reason"] == ("length" if fault == "length" else "stop")


def test_tool_calls_that_are_spoilt():
    call = {"id": "1", "type": "function", "function": {"name": "wait", "arguments": "{}"}}
    faults = [None, "wrong-tool", "bad-arguments"]
    with LoopbackServer(lambda _: {"tool_calls": [call]}, fault=lambda n, _: faults[n - 1]) as server:
        plain, wrong, bad = (said(server) for _ in range(3))
    functions = [c["message"]["tool_calls"][0]["function"] for c in (plain, wrong, bad)]
    assert [f["name"] for f in functions] == ["wait", "no_such_tool", "wait"]
    assert functions[2]["arguments"] == "{not json"
    assert {c["finish_reason"] for c in (plain, wrong, bad)} == {"tool_calls"}


def test_every_documented_fault_is_known_and_tested():
    tested = {*SPOILT, "wrong-tool", "bad-arguments", "not-http-json", "cut-body", "no-choices", "error-200"}
    assert {*IN_MESSAGE, *IN_TRANSPORT} == tested | {"drop", "hang"}


# ---- refusals


@pytest.mark.parametrize(
    ("refuses", "extra", "words"),
    [
        ("json_schema", {"response_format": {"type": "json_schema"}}, "response_format"),
        ("json_object", {"response_format": {"type": "json_object"}}, "response_format"),
        ("tools", {"tools": []}, "tools"),
        ("max_tokens", {"max_tokens": 5}, "max_completion_tokens"),
        ("temperature", {"temperature": 0.0}, "'temperature' is not supported"),
        ("", {"stream": True}, "stream"),
    ],
)
def test_what_it_does_not_know_it_refuses(refuses, extra, words):
    with LoopbackServer(refuses=(refuses,)) as server:
        assert post(server)[0] == 200
        status, data, _ = post(server, {**BODY, **extra})
    assert status == 400 and words in data["error"]["message"]


@pytest.mark.parametrize("body", [b"not json", b"[]", b"{}"])
def test_what_is_no_request_it_refuses(body):
    with LoopbackServer() as server:
        assert post(server, body)[0] == 400


def test_a_key_may_be_wanted():
    with LoopbackServer(key="k") as server:
        assert post(server)[0] == 401
        assert post(server, Authorization="Bearer k")[0] == 200


def test_a_bug_in_the_answer_function_is_shown():
    with LoopbackServer(lambda body: body["no such key"]) as server:
        status, data, _ = post(server)
    assert status == 500 and "no such key" in data["error"]["message"]
    assert [type(e) for e in server.errors] == [KeyError]


def test_an_unknown_fault_is_shown():
    with LoopbackServer(fault=lambda *_: "meteor") as server:
        status, data, _ = post(server)
    assert status == 500 and "meteor" in data["error"]["message"]


# ---- usage


def messages(*texts: str) -> list[dict]:
    return [{"role": "user", "content": text} for text in texts]


def cached(prefixes: _Prefixes, *texts: str) -> tuple[int, int]:
    usage = prefixes.usage({}, messages(*texts), {"content": "ok"})
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def test_cached_is_the_beginning_an_earlier_prompt_shared():
    prefixes = _Prefixes()
    assert cached(prefixes, "a" * 4000)[1] == 0
    prompt, known = cached(prefixes, "a" * 4000, "b" * 4000)
    assert 960 <= known <= 1010 and prompt > 2000  # the first half, to a block of 16 tokens
    assert cached(prefixes, "c" + "a" * 4000)[1] == 0  # equal text elsewhere does not count


def test_old_prefixes_are_forgotten():
    prefixes = _Prefixes()
    prefixes.MOST = 10
    cached(prefixes, "a" * 1000)
    for letter in "bcd":
        cached(prefixes, letter * 1000)
    assert cached(prefixes, "a" * 1000)[1] == 0
    assert len(prefixes._new) + len(prefixes._old) < 100
