"""Slow, silent, unread and many connections to the viewer, over real sockets."""

from __future__ import annotations

import itertools
import logging
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from urllib.request import urlopen

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from mapo.connections import ConnectionLimits
from mapo.listening import listening
from mapo.view.app import make_app
from mapo.view.serve import LIMITS, server_of
from support.sockets import drip, opened, read_until, rest_of, until

PATIENT = ConnectionLimits(100, request_seconds=600, unread_seconds=600, stop_seconds=600)
HASTY = replace(PATIENT, request_seconds=0.5)
GET = b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n"
LARGE = b"GET /large HTTP/1.1\r\nHost: localhost\r\n"
SIZE = 30_000_000
"""The bytes of a page that no socket's buffers hold."""


def served(index, limits):
    """Serve the viewer, with a large page beside its own."""
    large = Route("/large", lambda request: Response(bytes(SIZE)))
    return served_app(Starlette(routes=[large, Mount("/", make_app(index))]), limits)


@contextmanager
def served_app(app, limits):
    """Serve until the block is left; yields the server and its address. Nothing may be left behind."""
    threads = threading.active_count()
    listener = listening("127.0.0.1", 0)
    server = server_of(app, limits)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        listener.close()
    assert not thread.is_alive()
    assert until(lambda: threading.active_count() <= threads)
    assert not server.server_state.connections


def is_served(address):
    with urlopen(f"{address}/api/version", timeout=30) as answer:
        return answer.status == 200


def unread(address, request=LARGE):
    """Return a connection that asks for more than the buffers hold, and has read the first byte."""
    connection = opened(address, 4096)
    connection.sendall(request + b"\r\n")
    connection.recv(1)
    return connection


def is_cut_off(connection):
    """Read what is left; whether the connection ends before the answer does."""
    received = 1
    with suppress(ConnectionError):
        while part := connection.recv(65536):
            received += len(part)
    return received < SIZE


def test_a_silent_connection_is_closed(index):
    with served(index, HASTY) as (_, address), opened(address) as connection:
        answer = rest_of(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_request_that_arrives_byte_by_byte_is_cut_off(index):
    endless = itertools.chain(GET, b"X-Slow: ", itertools.repeat(ord("a"), 600))
    with served(index, HASTY) as (_, address), opened(address) as connection:
        assert b"did not arrive within 0.5 seconds" in drip(connection, endless)


def test_a_body_that_arrives_byte_by_byte_is_cut_off(index):
    """No page reads a body, so the request is answered before it is complete."""
    with served(index, HASTY) as (server, address), opened(address) as connection:
        connection.sendall(GET + b"Content-Length: 4000\r\n\r\n")
        read_until(connection, b"}")
        with suppress(ConnectionError):
            drip(connection, b" " * 600)
        assert until(lambda: not server.server_state.connections)


def test_requests_in_time_share_a_connection(index):
    with served(index, PATIENT) as (_, address), opened(address) as connection:
        for _ in range(3):
            connection.sendall(GET[:20])
            connection.sendall(GET[20:] + b"\r\n")
            assert b"200 OK" in read_until(connection, b"}")


def test_slow_clients_do_not_delay_others(index):
    with served(index, PATIENT) as (_, address), ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(opened(address))
            stack.enter_context(opened(address)).sendall(GET[:20])
            stack.enter_context(unread(address))
        assert is_served(address)


@pytest.mark.parametrize("last", [b"", b"Connection: close\r\n"])
def test_an_answer_that_is_not_read_is_cut_off(index, last):
    limits = replace(PATIENT, unread_seconds=0.5)
    with served(index, limits) as (server, address), unread(address, LARGE + last) as connection:
        assert until(lambda: not server.server_state.connections)
        assert is_cut_off(connection)


def test_an_answer_that_is_read_is_complete(index):
    with served(index, LIMITS) as (_, address), urlopen(f"{address}/large", timeout=30) as answer:
        assert len(answer.read()) == SIZE


def test_the_server_stops_while_an_answer_is_not_read(index):
    with ExitStack() as stack:
        with served(index, replace(PATIENT, stop_seconds=0.5)) as (_, address):
            connection = stack.enter_context(unread(address))
            stack.enter_context(opened(address))
            stack.enter_context(opened(address)).sendall(GET[:20])
        assert is_cut_off(connection)


# ---- more connections than the limit


def silent(address):
    return opened(address)


def idle(address):
    connection = opened(address)
    connection.sendall(GET + b"\r\n")
    read_until(connection, b"}")
    return connection


def closing(address):
    """An answer that is not read, on a connection that the server closes after it."""
    return unread(address, LARGE + b"Connection: close\r\n")


@pytest.mark.parametrize("kind", [silent, idle, unread, closing])
def test_others_are_served_while_slow_clients_take_all_connections(index, kind):
    with served(index, replace(PATIENT, connections=4)) as (server, address), ExitStack() as stack:
        server.config.timeout_keep_alive = 600
        for _ in range(8):
            stack.enter_context(kind(address))
            assert is_served(address)
        assert until(lambda: len(server.server_state.connections) <= 4)


def test_the_client_that_waits_longest_makes_room(index, caplog):
    with (
        caplog.at_level(logging.WARNING, "mapo"),
        served(index, replace(PATIENT, connections=3)) as (server, address),
        ExitStack() as stack,
    ):
        server.config.timeout_keep_alive = 600
        slow = [stack.enter_context(kind(address)) for kind in (idle, silent, idle)]
        for connection in slow:
            stack.enter_context(silent(address))
            assert b"too many connections" in rest_of(connection)
    assert [r.message for r in caplog.records] == [
        "more than 3 connections are open; closing those whose clients are slowest"
    ]


def test_a_newcomer_is_refused_while_all_others_are_being_answered():
    asked, go = threading.Semaphore(0), threading.Event()

    def slow(request):
        asked.release()
        go.wait(60)
        return PlainTextResponse("done")

    app = Starlette(routes=[Route("/api/version", slow)])
    with served_app(app, replace(PATIENT, connections=2)) as (_, address), ExitStack() as stack:
        busy = [stack.enter_context(opened(address)) for _ in range(2)]
        for connection in busy:
            connection.sendall(GET + b"\r\n")
            assert asked.acquire(timeout=30)
        with opened(address) as connection:
            assert rest_of(connection).startswith(b"HTTP/1.1 503 ")
        go.set()
        assert all(b"200 OK" in read_until(connection, b"done") for connection in busy)


def test_hundreds_of_connections_at_once(index):
    with served(index, replace(PATIENT, connections=16)) as (server, address), ExitStack() as stack:
        clients = [stack.enter_context(opened(address)) for _ in range(300)]
        assert is_served(address)
        assert until(lambda: len(server.server_state.connections) <= 16)
        assert all(b" 503 " in rest_of(connection) for connection in clients[:200])
