"""Endpoint over real HTTP: what is retried, what is final, what goes out and comes back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from email.utils import formatdate

import pytest

from mapo.errors import EndpointError, InputError
from mapo.models.chat import Request, Tool, ToolCall
from mapo.models.endpoint import CALLS_PER_CLIENT, Endpoint
from mapo.models.ledger import Ledger
from mapo.models.rate_limit import Limiter, Limits
from mapo.testing.server import LoopbackServer
from mapo.types import Message
from support.calling import FINAL, FORM, HELLO, SCHEMA, TRANSIENT, Sleeps, ask, first


def test_an_answer_with_its_usage_and_the_ledger():
    ledger = Ledger({"some-model": (1.0, 0.5, 2.0)})
    with LoopbackServer(lambda body: f"You said {body['messages'][-1]['content']}", record=True) as server:
        answer = ask(server, HELLO, ledger=ledger, role="judge")
        again = ask(server, HELLO, ledger=ledger, role="judge")
    assert answer.text == "You said Hello there"
    assert answer.reply.finish == "stop"
    assert answer.usage.prompt > 0 and answer.usage.completion > 0
    assert again.usage.cached == 0  # shorter than one block
    [row] = ledger.as_rows()
    assert (row["role"], row["model"], row["calls"], row["retries"]) == ("judge", "some-model", 2, 0)
    assert row["prompt"] == 2 * answer.usage.prompt and row["seconds"] > 0
    assert ledger.total_cost == pytest.approx((row["prompt"] + 2 * row["completion"]) / 1e6)
    body = server.bodies[0]
    assert body["messages"][0] == {"role": "system", "content": "Be kind."}
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("some-model", 1.0, 1024)
    assert not {"tools", "response_format", "top_p"} & set(body)


def test_endpoints_that_take_no_temperature_are_asked_without():
    """As reasoning models do; found out once, remembered, and no retry spent on it."""
    server = LoopbackServer(record=True)
    server._unsupported = lambda body: "Unsupported value: 'temperature'" if "temperature" in body else ""
    with server:
        assert ask(server, retries=0).text == "I see."
    assert ["temperature" in body for body in server.bodies] == [True, False]


@pytest.mark.parametrize("fault", ["empty", "null"])
def test_a_policy_that_says_nothing_twice_is_taken_at_its_word(fault):
    """An empty reply of the policy is to be judged; of any other role it is a failure."""
    with LoopbackServer(fault=lambda *_: fault) as server:
        assert ask(server, role="policy").text == ""
    assert server.calls == 2


def test_redirects_are_refused():
    from starlette.responses import RedirectResponse

    server = LoopbackServer()

    async def elsewhere(number, request):
        return RedirectResponse("http://127.0.0.1:9/v1/chat/completions", status_code=307)

    server._respond = elsewhere
    with server, pytest.raises(EndpointError, match="307"):
        ask(server)


def test_a_listing_of_models_that_is_nested_too_deeply_is_not_read():
    async def use():
        endpoint = Endpoint("some-model", "http://127.0.0.1:9/v1")

        async def send(_):
            return b"[" * 100_000

        endpoint._send = send
        assert (await endpoint.probe()).others == 0
        with pytest.raises(EndpointError, match="list of models"):
            await endpoint.models()

    asyncio.run(use())


def test_cached_prompt_tokens_are_counted():
    long = Request((Message("user", "x" * 4000),))
    with LoopbackServer() as server:
        ask(server, long)
        usage = ask(server, long).usage
    assert usage.prompt >= usage.cached > 0.95 * usage.prompt


@pytest.mark.parametrize("fault", TRANSIENT)
def test_what_can_pass_is_tried_again(fault):
    sleeps, ledger = Sleeps(), Ledger()
    timeout = 0.3 if fault == "hang" else 5.0
    with LoopbackServer(lambda _: "Still here", fault=first(fault)) as server:
        answer = ask(server, sleep=sleeps, ledger=ledger, timeout=timeout)
    assert answer.text == "Still here"
    assert server.calls == 2 and server.faults[fault] == 1
    assert len(sleeps) == 1
    [row] = ledger.as_rows()
    assert (row["calls"], row["retries"], row["failures"]) == (1, 1, 0)


@pytest.mark.parametrize("fault", TRANSIENT)
def test_after_the_last_retry_the_error_says_what_where_and_how_often(fault):
    ledger = Ledger()
    timeout = 0.2 if fault == "hang" else 5.0
    with LoopbackServer(fault=lambda *_: fault) as server, pytest.raises(EndpointError) as caught:
        ask(server, retries=2, ledger=ledger, timeout=timeout)
    assert server.calls == 3
    text = str(caught.value)
    assert server.base_url in text and "some-model" in text and "after 3 attempts" in text
    assert caught.value.fix
    if fault[:3].isdigit():
        assert f"HTTP {fault[:3]}" in text
    assert ledger.as_rows()[0]["failures"] == 1


@pytest.mark.parametrize("fault", FINAL)
def test_a_refusal_is_final_at_once(fault):
    with LoopbackServer(fault=lambda *_: fault) as server, pytest.raises(EndpointError) as caught:
        ask(server, key_env="MAPO_NO_SUCH_KEY")
    assert server.calls == 1
    assert f"HTTP {fault}" in str(caught.value)
    fixes = {"401": "MAPO_NO_SUCH_KEY, which is not set", "402": "credit", "404": "/v1"}
    assert fixes.get(fault, "") in caught.value.fix and caught.value.fix


def test_nobody_listens():
    with LoopbackServer() as server:
        gone = server.base_url
    with pytest.raises(EndpointError, match="Is a server running"):
        ask(gone, retries=1)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("not-json", "I would rather tell you in my own words."),
        ("cut-json", '{"level'),
        ("wrong-schema", '{"something": "else"}'),
        ("bad-level", '{"level": 99}'),
    ],
)
def test_faults_of_form_are_answers_for_others_to_judge(fault, text):
    with LoopbackServer(lambda _: '{"level": 3}', fault=lambda *_: fault) as server:
        answer = ask(server, FORM)
    assert server.calls == 1
    assert answer.text.startswith(text[:6]) and (fault == "cut-json" or answer.text == text)


def test_a_reply_cut_by_the_limit_says_so():
    with LoopbackServer(lambda _: "a long story", fault=first("length")) as server:
        answer = ask(server)
    assert (answer.text, answer.reply.finish) == ("a long", "length")


def test_tools_go_out_and_calls_come_back():
    tool = Tool("release", "Release a memory", {"type": "object", "properties": {"n": {"type": "integer"}}})
    call = {"id": "1", "type": "function", "function": {"name": "release", "arguments": '{"n": 2}'}}
    request = Request((Message("user", "Go"),), tools=(tool,))
    faults = first("wrong-tool", "bad-arguments")
    with LoopbackServer(
        lambda _: {"content": None, "tool_calls": [call]}, fault=faults, record=True
    ) as server:
        wrong, bad, right = (ask(server, request) for _ in range(3))
    assert server.bodies[0]["tools"][0]["function"] == {
        "name": "release",
        "description": "Release a memory",
        "parameters": tool.parameters,
    }
    assert right.tool_calls == (ToolCall("release", '{"n": 2}'),) and right.text == ""
    assert wrong.tool_calls[0].name == "no_such_tool"
    assert bad.tool_calls == (ToolCall("release", "{not json"),)


def test_text_that_no_record_could_hold_is_replaced_both_ways():
    request = Request((Message("user", "lone \ud800 sign"),))
    with LoopbackServer(lambda _: "nul \x00 and \udc00 end", record=True) as server:
        answer = ask(server, request)
    assert answer.text == "nul \ufffd and \ufffd end"
    assert server.bodies[0]["messages"][0]["content"] == "lone \ufffd sign"


def test_strange_messages_are_read_with_care():
    parts = {"content": [{"type": "text", "text": "two "}, {"type": "text", "text": "parts"}, 7]}
    refusal = {"content": None, "refusal": "I will not."}
    objects = {"content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}, {}, None]}
    said = iter([parts, refusal, objects])
    with LoopbackServer(lambda _: next(said)) as server:
        assert ask(server).text == "two parts"
        assert ask(server).text == "I will not."
        assert ask(server).tool_calls == (ToolCall("f", '{"a": 1}'),)


# ---- waiting


def test_retry_after_is_respected():
    sleeps = Sleeps()
    with LoopbackServer(fault=first("429-retry-after"), retry_after="7") as server:
        ask(server, sleep=sleeps)
    assert sleeps == [7.0]


def test_retry_after_may_be_a_date():
    sleeps = Sleeps()
    date = formatdate(1_000_000_020, usegmt=True)
    with LoopbackServer(fault=first("503-retry-after"), retry_after=date) as server:
        ask(server, sleep=sleeps, clock=lambda: 1_000_000_000.0)
    assert sleeps == [20.0]


def test_quota_used_up_is_not_worth_waiting_for(monkeypatch):
    import mapo.testing.server as module

    plain = module._error
    monkeypatch.setattr(
        module,
        "_error",
        lambda *a: module._json(
            {"error": {"message": "over", "code": "insufficient_quota"}}, plain(*a).status_code
        ),
    )
    with LoopbackServer(fault=lambda *_: "429") as server, pytest.raises(EndpointError, match="credit"):
        ask(server)
    assert server.calls == 1


# ---- JSON, as far as the endpoint has it


@pytest.mark.parametrize(
    ("refuses", "settled", "calls"),
    [((), "schema", 1), (("json_schema",), "object", 2), (("json_schema", "json_object"), "text", 3)],
)
def test_auto_finds_the_strictest_mode_and_remembers_it(refuses, settled, calls):
    async def main(url):
        sleeps = Sleeps()
        async with Endpoint("m", url, sleep=sleeps, retries=0) as chat:
            await chat.reply(FORM)
            first = server.calls
            await chat.reply(FORM)
            return first, chat.json_mode, sleeps

    with LoopbackServer(lambda _: "{}", refuses=refuses, record=True) as server:
        first, mode, sleeps = asyncio.run(main(server.base_url))
    assert (first, mode, sleeps) == (calls, settled, [])
    assert server.calls == calls + 1
    asked = server.bodies[-1].get("response_format")
    if settled == "schema":
        assert asked["json_schema"] == {"name": "form", "strict": True, "schema": SCHEMA}
    else:
        assert asked == ({"type": "json_object"} if settled == "object" else None)


def test_many_calls_at_once_settle_on_one_mode():
    async def main(url):
        async with Endpoint("m", url, retries=0) as chat:
            answers = await asyncio.gather(*(chat.reply(FORM) for _ in range(20)))
            return chat.json_mode, len(answers)

    with LoopbackServer(lambda _: "{}", refuses=("json_schema",)) as server:
        assert asyncio.run(main(server.base_url)) == ("object", 20)


def test_a_mode_that_was_chosen_is_kept():
    with (
        LoopbackServer(refuses=("json_schema",)) as server,
        pytest.raises(EndpointError, match="json_schema"),
    ):
        ask(server, FORM, json_mode="schema")
    assert server.calls == 1


def test_a_refusal_for_another_reason_changes_no_mode():
    async def main(url):
        async with Endpoint("m", url) as chat:
            with pytest.raises(EndpointError, match="tools are not supported"):
                await chat.reply(Request(FORM.messages, schema=SCHEMA, tools=(Tool("f", "", {}),)))
            return chat.json_mode

    with LoopbackServer(refuses=("tools",)) as server:
        assert asyncio.run(main(server.base_url)) == "schema"


def test_endpoints_that_renamed_max_tokens():
    with LoopbackServer(refuses=("max_tokens",), record=True) as server:
        ask(server, json_mode="text")
    assert [b.get("max_completion_tokens") for b in server.bodies] == [None, 1024]


# ---- the rest


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://x/v1", "http://", "http://[::1/v1", "http://h:x/v1"]
)
def test_bad_addresses_are_refused_at_the_door(url):
    with pytest.raises(InputError, match="base URL"):
        Endpoint("m", url)


@pytest.mark.parametrize("kw", [{"timeout": 0}, {"retries": -1}, {"model": ""}])
def test_bad_settings_are_refused_at_the_door(kw):
    with pytest.raises(InputError):
        Endpoint(**{"model": "m", "base_url": "http://h/v1", **kw})


def test_the_address_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://example.test/v1/")
    assert Endpoint("m").base_url == "http://example.test/v1"
    monkeypatch.delenv("OPENAI_BASE_URL")
    assert Endpoint("m").base_url == "https://api.openai.com/v1"


def test_everybody_at_one_address_shares_its_limits():
    async def main(url):
        limiter = Limiter(Limits(concurrency=3))
        roles = [Endpoint("m", url, limits=limiter, role=role) for role in ("user", "judge", "director")]
        await asyncio.gather(*(chat.reply(HELLO) for chat in roles for _ in range(6)))
        for chat in roles:
            await chat.aclose()

    with LoopbackServer(latency=0.02) as server:
        asyncio.run(main(server.base_url))
    assert server.calls == 18 and server.peak == 3


def test_many_connections_are_spread_over_clients():
    async def main(url):
        async with Endpoint("m", url, limits=Limits(concurrency=100)) as chat:
            await asyncio.gather(*(chat.reply(HELLO) for _ in range(100)))
            return len(chat._clients)

    with LoopbackServer(latency=0.3) as server:
        clients = asyncio.run(main(server.base_url))
    assert 100 / CALLS_PER_CLIENT <= clients <= 100 / CALLS_PER_CLIENT + 1
    assert server.calls == 100 and server.peak > 64


def test_cancelling_a_call_frees_its_place():
    async def main(url):
        async with Endpoint("m", url, limits=Limits(concurrency=1)) as chat:
            hanging = asyncio.create_task(chat.reply(HELLO))
            while server.in_flight == 0:
                await asyncio.sleep(0.001)
            hanging.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hanging
            return await chat.reply(HELLO)

    with LoopbackServer(fault=first("hang")) as server:
        assert asyncio.run(main(server.base_url)).text == "I see."


def test_an_endpoint_may_be_used_in_one_event_loop_after_another():
    with LoopbackServer() as server:
        chat = Endpoint("m", server.base_url, limits=Limits(concurrency=1))

        async def some():
            answers = await asyncio.gather(*(chat.reply(HELLO) for _ in range(3)))
            await chat.aclose()
            return len(answers)

        assert [asyncio.run(some()), asyncio.run(some())] == [3, 3]


def test_models_are_listed():
    async def main(url, **kw):
        async with Endpoint("m", url, **kw) as chat:
            return await chat.models()

    with LoopbackServer(models=("a", "b")) as server:
        assert asyncio.run(main(server.base_url)) == ("a", "b")
        with pytest.raises(EndpointError, match="404"):
            asyncio.run(main(server.base_url + "/deeper"))


def test_the_openai_package_is_not_imported_before_it_is_needed():
    code = "import sys, mapo.models.endpoint as e; e.Endpoint('m'); print('openai' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_list_of_models_that_is_none(monkeypatch):
    async def main(url):
        async with Endpoint("m", url) as chat:
            return await chat.models()

    from mapo.testing.server import _raw

    monkeypatch.setattr("mapo.testing.server._json", lambda _: _raw(b"[]"))
    with LoopbackServer() as server, pytest.raises(EndpointError, match="list of models"):
        asyncio.run(main(server.base_url))


def test_all_tokens_spent_on_thinking():
    silent = {"content": "", "finish_reason": "length"}
    with LoopbackServer(lambda _: silent) as server, pytest.raises(EndpointError, match="Raise max_tokens"):
        ask(server, retries=1)
    assert server.calls == 2
