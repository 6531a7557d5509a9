"""mapo doctor, with and without an endpoint."""

from __future__ import annotations

from mapo.testing.server import LoopbackServer
from support.command import mapo


def test_doctor_without_a_model():
    done = mapo("doctor")
    assert done.returncode == 0 and "192 built in" in done.stdout
    told = [line.split()[1:3] for line in done.stdout.splitlines()]
    assert [name for area, name in told if area == "machine"] == ["torch", "devices", "memory", "disk"]


def test_doctor_finds_what_an_endpoint_can_do():
    def answer(body):
        if "tools" in body:
            call = {"id": "1", "type": "function", "function": {"name": "go_on", "arguments": "{}"}}
            return {"content": None, "tool_calls": [call]}
        return '{"level": 1}' if "response_format" in body else "Hello."

    with LoopbackServer(answer, models=("m",)) as server:
        done = mapo("doctor", "--model", "m", "--base-url", server.base_url)
    assert done.returncode == 0 and done.stdout.count("ok    endpoint") == 4, done.stdout


def test_doctor_tells_what_is_missing():
    with LoopbackServer(
        lambda _: "Hello.", models=("other",), refuses=("json_schema", "json_object")
    ) as server:
        done = mapo("doctor", "--model", "m", "--base-url", server.base_url)
    assert done.returncode == 0
    assert "'m' is not among them" in done.stdout and "JSON form instead" in done.stdout
    assert done.stdout.count("FAIL") == 3


def test_doctor_fails_where_nothing_answers():
    done = mapo("doctor", "--model", "m", "--base-url", "http://127.0.0.1:9/v1")
    assert done.returncode == 1 and "no connection" in done.stdout and "json schema" not in done.stdout
