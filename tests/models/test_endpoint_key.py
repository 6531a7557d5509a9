"""The key: sent to the endpoint, never told to anybody else."""

from __future__ import annotations

import logging

import pytest

from mapo.errors import EndpointError, InputError
from mapo.models.cache import Cache
from mapo.models.chat import Request
from mapo.models.endpoint import Endpoint
from mapo.models.ledger import Ledger
from mapo.testing.server import LoopbackServer
from mapo.types import Message
from support.calling import FINAL, TRANSIENT, ask

SECRET = "sk-test-0123456789abcdefSECRET"


def test_the_key_is_sent_and_never_told(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MAPO_TEST_KEY", f" {SECRET}\n")
    caplog.set_level(logging.DEBUG)
    told = []
    ledger = Ledger()
    cache = Cache(tmp_path / "cache.sqlite")
    kw = {"key_env": "MAPO_TEST_KEY", "retries": 1, "ledger": ledger, "cache": cache}

    def echo(_):
        return f"Your key is {SECRET}, isn't it?"

    def provoke(**more):
        with pytest.raises((EndpointError, InputError)) as caught:
            ask(**{**kw, **more})
        error = caught.value
        told.extend([str(error), repr(error), error.problem, error.fix, repr(error.__cause__)])
        told.append(repr(error.__context__))

    with LoopbackServer(echo, key=SECRET) as server:
        answer = ask(server, **kw)
        for fault in [*TRANSIENT, *FINAL]:
            server.fault = lambda *_, fault=fault: fault
            request = Request((Message("user", fault),))
            provoke(server=server, request=request, timeout=0.2 if fault == "hang" else 5.0)
        told.append(repr(Endpoint("m", server.base_url, key_env="MAPO_TEST_KEY").__dict__))
    provoke(server=server.base_url, request=Request((Message("user", "closed"),)))
    provoke(server=f"http://{SECRET}@localhost/v1")
    provoke(server=f"http://localhost/v1?key={SECRET}")
    provoke(server=f"ftp://u:{SECRET}@localhost/v1")
    with LoopbackServer(key=SECRET[::-1]) as other:
        provoke(server=other, request=Request((Message("user", "wrong key"),)))
    assert "MAPO_TEST_KEY" in told[-6]
    cache.close()
    ledger.flush(tmp_path / "ledger.json")

    assert answer.text == "Your key is ***, isn't it?"
    written = [path.read_bytes() for path in tmp_path.iterdir()]
    assert len(written) >= 2
    for text in [*told, caplog.text, repr(ledger.as_rows())]:
        assert SECRET not in text and SECRET[8:20] not in text
    assert not any(SECRET.encode() in data for data in written)
    assert len(told) > 6 * len(TRANSIENT)


def test_half_masked_keys_in_messages_go_too(monkeypatch):
    """Some endpoints quote a key's first and last letters in a 401."""
    monkeypatch.setenv("MAPO_TEST_KEY", SECRET)
    chat = Endpoint("m", "http://localhost/v1", key_env="MAPO_TEST_KEY")
    assert (
        chat._scrubbed("Incorrect API key provided: sk-test-****CRET.") == "Incorrect API key provided: ***"
    )


def test_short_stand_ins_for_keys_leave_answers_alone(monkeypatch):
    monkeypatch.setenv("MAPO_TEST_KEY", "none")
    with LoopbackServer(lambda _: "There is none.") as server:
        assert ask(server, key_env="MAPO_TEST_KEY").text == "There is none."


def test_a_key_that_cannot_be_a_header_is_refused_without_showing_it(monkeypatch):
    monkeypatch.setenv("MAPO_TEST_KEY", "sk-secret\nX: y")
    with pytest.raises(InputError) as caught:
        Endpoint("m", "http://localhost/v1", key_env="MAPO_TEST_KEY")
    assert "secret" not in str(caught.value) and "MAPO_TEST_KEY" in str(caught.value)


def test_a_key_echoed_in_another_spelling_is_cut_out_too(monkeypatch):
    """JSON may spell a slash or a letter as an escape: what counts is what was said."""
    from starlette.responses import Response

    key = "sk-very/secret-key-1234"
    monkeypatch.setenv("MAPO_TEST_KEY", key)
    server = LoopbackServer()

    async def escaped(number, request):
        text = key.replace("/", "\\/").replace("s", "\\u0073")
        choice = '{"message": {"content": "Your key: KEY"}, "finish_reason": "stop"}'.replace("KEY", text)
        body = f'{{"choices": [{choice}]}}'
        return Response(body, media_type="application/json")

    server._respond = escaped
    with server:
        assert ask(server, key_env="MAPO_TEST_KEY").text == "Your key: ***"


def test_the_name_of_a_tool_call_is_scrubbed_too(monkeypatch):
    monkeypatch.setenv("MAPO_TEST_KEY", SECRET)
    call = {"id": "1", "type": "function", "function": {"name": f"send_{SECRET}", "arguments": f'"{SECRET}"'}}
    with LoopbackServer(lambda _: {"content": "I see.", "tool_calls": [call]}) as server:
        [made] = ask(server, key_env="MAPO_TEST_KEY").tool_calls
    assert (made.name, made.arguments) == ("send_***", '"***"')


def test_an_endpoint_without_a_key_variable_gets_no_key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    with (
        LoopbackServer(key=SECRET) as server,
        pytest.raises(EndpointError, match="No key was sent"),
    ):
        ask(server, key_env="")
