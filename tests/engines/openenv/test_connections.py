"""Slow, silent and many clients of a served sandbox, over real sockets. Run by `make test-openenv`."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from base64 import b64encode
from contextlib import ExitStack, suppress
from dataclasses import replace
from urllib.request import urlopen

import pytest

pytest.importorskip("openenv", reason="openenv is not installed (make test-openenv)")

from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.sync.client import connect

from mapo.connections import ConnectionLimits
from mapo.engines.openenv import DialogueClient, PolicyReply
from mapo.engines.openenv.messages import MAX_REPLY
from support.openenv_server import RULES, sandbox, served
from support.sockets import drip, opened, read_until, rest_of, until

HASTY = ConnectionLimits(200, request_seconds=0.5)
PATIENT = ConnectionLimits(200, request_seconds=60)
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /mapo/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
TOO_LATE = b"The request did not arrive within 0.5 seconds."


def has_session(address):
    """Whether the server has room for one more session."""
    with connect(f"ws{address[4:]}/ws") as client:
        with suppress(ConnectionClosed):  # without room, it answers at once
            client.send(json.dumps({"type": "state"}))
        return json.loads(client.recv(timeout=30))["type"] == "state"


# ---- before a session


@pytest.mark.parametrize("token", ["", "a-token-beyond-loopback"])
def test_a_connection_without_a_request_is_closed(token):
    with served(sandbox(), limits=HASTY, token=token) as address, opened(address) as connection:
        answer = rest_of(connection)
    assert answer.startswith(b"HTTP/1.1 408 ") and TOO_LATE in answer


@pytest.mark.parametrize("token", ["", "a-token-beyond-loopback"])
def test_headers_that_arrive_byte_by_byte_are_cut_off(token):
    headers = itertools.chain(GET, b"X-Slow: ", itertools.repeat(ord("a"), 200))
    with served(sandbox(), limits=HASTY, token=token) as address, opened(address) as connection:
        assert drip(connection, headers).startswith(b"HTTP/1.1 408 ")


def test_a_body_that_arrives_byte_by_byte_is_cut_off(caplog):
    with served(sandbox(), limits=HASTY) as address, opened(address) as connection:
        connection.sendall(POST + b"Content-Length: 4000\r\n\r\n")
        assert TOO_LATE in drip(connection, b" " * 200)
    assert not caplog.records


def test_a_later_request_of_a_connection_has_the_same_limit():
    """Every byte restarts uvicorn's own limit for idle connections."""
    with served(sandbox(), limits=HASTY) as address, opened(address) as connection:
        for _ in range(3):
            connection.sendall(GET + b"\r\n")
            assert b"200 OK" in read_until(connection, b'healthy"}')
        assert b"408" in drip(connection, itertools.chain(GET, itertools.repeat(ord("a"), 200)))


def test_a_body_that_is_missing_after_an_answered_request_is_cut_off():
    """Its headers arrive before the answer to the first request, and nothing after it."""
    with served(sandbox(), limits=HASTY) as address, opened(address) as connection:
        connection.sendall(GET + b"\r\n" + POST + b"Content-Length: 4000\r\n\r\n")
        answer = rest_of(connection)
    assert b"200 OK" in answer and TOO_LATE in answer


def test_requests_in_time_are_answered():
    """Also one whose parts come one by one, and a second one that begins before the first is answered."""
    with served(sandbox(), limits=PATIENT) as address, opened(address) as connection:
        body = b'{"split": "scenarios"}'
        for part in (POST, b"Content-Length: %d\r\n" % len(body), b"\r\n", body[:5]):
            connection.sendall(part)
        connection.sendall(body[5:] + GET[:10])
        assert b"200 OK" in read_until(connection, b'"mapo"}')
        connection.sendall(GET[10:] + b"Connection: close\r\n\r\n")
        assert b"200 OK" in rest_of(connection)


def test_a_client_that_may_not_connect_cannot_keep_its_connection():
    people, token = sandbox(), "one-token-of-mine"
    with served(people, limits=PATIENT, token=token) as address, opened(address) as connection:
        connection.sendall(GET + b"\r\n")
        answer = rest_of(connection)
    assert answer.startswith(b"HTTP/1.1 401 ") and b"connection: close" in answer


def test_silent_connections_give_way_to_requests_and_sessions(caplog):
    """The oldest is closed first, a session never."""
    few = replace(PATIENT, connections=5)
    with served(sandbox(), limits=few, sessions=2) as address, ExitStack() as stack:
        env = stack.enter_context(DialogueClient(address).sync())
        env.reset()
        silent = [stack.enter_context(opened(address)) for _ in range(4)]
        with urlopen(f"{address}/health", timeout=30) as answer:
            assert answer.status == 200
        refused = rest_of(silent[0])
        assert refused.startswith(b"HTTP/1.1 503 ") and b"too many connections" in refused
        stack.enter_context(opened(address))
        stack.enter_context(opened(address))
        assert b"503" in rest_of(silent[1])
        assert env.step(PolicyReply(reply="What happened then?")).observation.turn == 1
        assert has_session(address)
    assert [r.message for r in caplog.records] == [
        "more than 5 connections are open; closing those whose clients are slowest"
    ]


# ---- in a session


def test_a_session_without_a_first_message_ends():
    """Although its client is there: it answers pings and the closing of the connection."""
    with served(sandbox(), sessions=1, first=0.5) as address, connect(f"ws{address[4:]}/ws") as client:
        with pytest.raises(ConnectionClosed, match=r"nothing was received for 0\.5 seconds"):
            client.recv(timeout=30)
        assert until(lambda: has_session(address))


def test_a_first_message_that_arrives_byte_by_byte_ends_the_session():
    message = Frame(Opcode.TEXT, json.dumps({"type": "state", "data": "a" * 400}).encode())
    with served(sandbox(), sessions=1, first=0.5) as address, connect(f"ws{address[4:]}/ws") as client:
        for byte in message.serialize(mask=True):
            if client.protocol.close_rcvd:
                break
            client.socket.sendall(bytes([byte]))
            time.sleep(0.02)
        assert client.protocol.close_rcvd.reason == "nothing was received for 0.5 seconds"
        assert until(lambda: has_session(address))
        client.socket.shutdown(socket.SHUT_RDWR)  # the frame has no end, so the connection cannot have one


def test_a_client_that_thinks_for_long_keeps_its_dialogue():
    with served(sandbox(), limits=HASTY, first=0.5) as address, DialogueClient(address).sync() as env:
        env.reset()
        time.sleep(1.5)  # longer than the limits for requests and first messages
        assert env.step(PolicyReply(reply="What happened then?")).observation.turn == 1


class Played:
    """A sandbox whose turns can be awaited."""

    def __init__(self):
        self.sandbox = sandbox(rules=replace(RULES, max_turns=1000, min_turns=1000))
        self.turn, count = threading.Event(), self.sandbox.count
        self.sandbox.count = lambda turn: (count(turn), self.turn.set())

    def wait(self):
        played = self.turn.wait(1)
        self.turn.clear()
        return played


def test_a_client_that_never_reads_loses_its_session():
    """It asks for more and more, until its answers fill all buffers."""
    played = Played()
    limits = replace(PATIENT, unread_seconds=0.5)
    with served(played.sandbox, sessions=1, limits=limits) as address, opened(address, 4096) as client:
        upgrade = f"Upgrade: websocket\r\nSec-WebSocket-Key: {b64encode(bytes(16)).decode()}\r\n"
        client.sendall(GET.replace(b"health", b"ws") + upgrade.encode())
        client.sendall(b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\r\n")
        read_until(client, b"\r\n\r\n")

        def send(**message):
            client.sendall(Frame(Opcode.TEXT, json.dumps(message).encode()).serialize(mask=True))

        send(type="reset")
        with suppress(ConnectionError):
            while True:
                send(type="step", data={"reply": "a" * MAX_REPLY})
                if not played.wait():
                    break
        assert until(lambda: has_session(address))


def test_requests_whose_answers_are_not_read_end_the_connection():
    limits = replace(PATIENT, unread_seconds=0.5)
    requests = (GET.replace(b"health", b"schema") + b"\r\n") * 2_000_000  # more than buffers hold
    with (
        served(sandbox(), limits=limits) as address,
        opened(address, 4096) as connection,
        pytest.raises(ConnectionError),
    ):
        connection.sendall(requests)
