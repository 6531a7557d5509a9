"""Responses that are too large, compressed to be, or doubled, from a server on raw sockets."""

import asyncio
import gzip
import json
import subprocess
import sys
import threading
import zlib
from contextlib import contextmanager

import pytest

from mapo.errors import EndpointError
from mapo.models.chat import Request
from mapo.models.endpoint import Endpoint
from mapo.types import Message


def completion(text):
    message = {"role": "assistant", "content": text}
    return json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()


def response(body, status="200 OK", **headers):
    lines = {"Content-Type": "application/json", "Content-Length": len(body)} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    head = f"HTTP/1.1 {status}\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return head.encode() + b"\r\n" + body


@contextmanager
def raw_server(write):
    """Serve connections; `write(writer, number)` answers the request with that number."""
    numbers, ready, state = iter(range(10**9)), threading.Event(), {}

    async def handle(reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                await reader.readexactly(int(length[0].split(b":")[1]) if length else 0)
                await write(writer, next(numbers))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def serve():
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        state["port"], state["loop"], state["stop"] = (
            server.sockets[0].getsockname()[1],
            asyncio.get_running_loop(),
            asyncio.Event(),
        )
        ready.set()
        await state["stop"].wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield f"http://127.0.0.1:{state['port']}/v1"
    finally:
        state["loop"].call_soon_threadsafe(state["stop"].set)
        thread.join(10)


def ask(url, calls=1, pause=0.0, **options):
    async def all_calls():
        answers = []
        async with Endpoint("m", url, timeout=20, retries=0, **options) as chat:
            for n in range(calls):
                answers.append(await chat.reply(Request((Message("user", f"{n}"),))))
                await asyncio.sleep(pause)
        return answers

    return [answer.text for answer in asyncio.run(all_calls())]


async def endless(writer, _number, status="200 OK"):
    writer.write(f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    while True:
        writer.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
        await writer.drain()


def test_an_endless_body_is_cut_off():
    with raw_server(endless) as url, pytest.raises(EndpointError, match="larger than 4 MB"):
        ask(url)


def test_only_the_beginning_of_an_endless_error_is_read():
    with (
        raw_server(lambda writer, number: endless(writer, number, "400 Bad Request")) as url,
        pytest.raises(EndpointError, match="HTTP 400"),
    ):
        ask(url)


def test_endless_headers_are_refused():
    async def write(writer, _number):
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X-Filler: " + b"x" * 60000 + b"\r\n")
            await writer.drain()

    with raw_server(write) as url, pytest.raises(EndpointError, match="no connection"):
        ask(url)


def test_decompressed_bytes_count():
    bomb = gzip.compress(b" " * (64 << 20))

    async def write(writer, _number):
        writer.write(response(bomb, Content_Encoding="gzip"))

    with raw_server(write) as url, pytest.raises(EndpointError, match="larger than 4 MB"):
        ask(url)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_compressed_answer_is_read_although_it_was_not_requested(encoding):
    compress = {"gzip": gzip.compress, "deflate": zlib.compress}[encoding]

    async def write(writer, _number):
        writer.write(response(compress(completion("I see.")), Content_Encoding=encoding))

    with raw_server(write) as url:
        assert ask(url, calls=2) == ["I see.", "I see."]


@pytest.mark.parametrize(
    ("headers", "match"),
    [
        ({"Content_Encoding": "br"}, "compressed as 'br'"),
        ({"Content_Encoding": "gzip"}, "cannot be decompressed"),
    ],
)
def test_an_unreadable_compression_is_an_error(headers, match):
    async def write(writer, _number):
        writer.write(response(completion("I see."), **headers))

    with raw_server(write) as url, pytest.raises(EndpointError, match=match):
        ask(url)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
def test_a_second_response_does_not_answer_the_next_call(chunked, at_once):
    def framed(body):
        if not chunked:
            return response(body)
        chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks

    async def write(writer, number):
        parts = [framed(completion(f"{name} {number}")) for name in ("right", "stray")]
        for part in [b"".join(parts)] if at_once else parts:
            writer.write(part)
            await writer.drain()

    with raw_server(write) as url:
        # A second response in a packet of its own can only be recognised once it has arrived.
        texts = ask(url, calls=20, pause=0.0 if at_once else 0.05)
        assert texts == [f"right {number}" for number in range(20)]


def test_connections_are_kept_between_ordinary_calls():
    ports = set()

    async def write(writer, _number):
        ports.add(writer.get_extra_info("peername"))
        writer.write(response(completion("I see.")))

    with raw_server(write) as url:
        ask(url, calls=10)
    assert len(ports) == 1


MEMORY = """
import asyncio, re, sys
from mapo.errors import EndpointError
from mapo.models.chat import Request
from mapo.models.endpoint import Endpoint
from mapo.types import Message

async def call(chat, number):
    try:
        await chat.reply(Request((Message("user", str(number)),)))
    except EndpointError:
        return 1

async def main():
    async with Endpoint("m", sys.argv[1], timeout=60, retries=0) as chat:
        return sum(await asyncio.gather(*(call(chat, number) for number in range(32))))

failed = asyncio.run(main())
# not ru_maxrss, which starts with that of the process that started this one
print(failed, int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024)
"""


@pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error"])
def test_memory_stays_bounded_with_many_calls_to_an_endless_endpoint(status):
    with raw_server(lambda writer, number: endless(writer, number, status)) as url:
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, url], capture_output=True, text=True, timeout=120, check=True
        )
    failed, megabytes = map(int, done.stdout.split())
    assert failed == 32
    assert megabytes < 300
