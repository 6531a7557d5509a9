"""Requests to bodies, bodies to answers."""

from __future__ import annotations

import json
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapo.errors import InputError
from mapo.models.chat import Answer, Request, Tool, ToolCall, Usage
from mapo.models.wire import (
    MAX_TOKEN_CHARS,
    MIN_ANSWER_CHARS,
    Dialect,
    bounded_answer,
    dump_answer,
    fallback,
    load_answer,
    parse_response,
    plausible_usage,
    request_body,
    storable,
)
from mapo.types import Message, Reply


def test_usage_that_makes_no_sense_counts_as_nothing():
    def used(usage):
        return parse_response(
            json.dumps({"choices": [{"message": {"content": "x"}}], "usage": usage}).encode()
        ).usage

    assert used(None) == used([1]) == used({"prompt_tokens": "many", "completion_tokens": -4}) == Usage()
    details = {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 9}, "completion_tokens": True}
    assert used(details) == Usage(prompt=5, cached=5, completion=0)


@pytest.mark.parametrize(
    "body",
    [
        *[b"", b"[]", b"3", b"null", b"{}", b"\xff", b'{"choices": []}', b'{"choices": {"0": 1}}'],
        *[b'{"choices": [3]}', b'{"choices": [{"message": "text"}]}', b'{"error": "busy"}', b"[" * 100_000],
    ],
)
def test_a_body_without_an_answer_says_so(body):
    with pytest.raises(ValueError, match="the response"):
        parse_response(body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda x: st.lists(x) | st.dictionaries(st.text(), x),
)


@given(
    message=st.dictionaries(st.sampled_from(["content", "refusal", "tool_calls"]), json_values),
    usage=json_values,
)
def test_whatever_a_message_holds_there_is_an_answer(message, usage):
    body = {"choices": [{"message": message, "finish_reason": usage}], "usage": usage}
    answer = parse_response(json.dumps(body).encode())
    answer.text.encode()
    assert load_answer(dump_answer(answer)) == answer


def test_answers_survive_being_kept():
    reply = Reply("a \ud800 \x00 b", "length", (1, 2), (3,), (-0.1, -1e-9))
    answer = Answer(reply, (ToolCall("f", "{"),), Usage(3, 2, 1))
    assert load_answer(dump_answer(answer)) == answer


def test_schemas_may_be_any_mapping():
    schema = MappingProxyType({"type": "object"})
    request = Request((Message("user", "x"),), schema=schema, tools=(Tool("f", "d", schema),))
    assert json.dumps(request_body(request, "m", Dialect()))


def test_only_complaints_about_the_way_it_was_put_make_it_simpler():
    form, plain = Request((), schema={}), Request(())
    assert fallback(Dialect(), form, "unknown response_format") == Dialect(json="object")
    assert fallback(Dialect(json="text"), form, "unknown response_format") is None
    assert fallback(Dialect(), plain, "unknown response_format") is None
    assert fallback(Dialect(), form, "context too long") is None


def test_an_endpoint_that_does_not_know_min_p_goes_without():
    asked = Request((), min_p=0.1)
    assert request_body(asked, "m", Dialect())["min_p"] == 0.1
    assert "min_p" not in request_body(Request(()), "m", Dialect())
    found = fallback(Dialect(), asked, "Unrecognized request argument supplied: min_p")
    assert found == Dialect(min_p=False) and "min_p" not in request_body(asked, "m", found)
    assert fallback(found, asked, "Unrecognized request argument supplied: min_p") is None


def test_body_fields_are_added_to_the_body():
    request = Request((Message("user", "x"),), body={"chat_template_kwargs": {"enable_thinking": False}})
    body = request_body(request, "m", Dialect())
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert body["messages"] == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize("field", ["messages", "model", "api_key"])
def test_body_fields_that_replace_or_reveal_something_are_refused(field):
    with pytest.raises(InputError, match=f"'{field}'"):
        request_body(Request((), body={field: "x"}), "m", Dialect())


def test_storable():
    assert storable("good \U0001f600 \u2028") == "good \U0001f600 \u2028"
    assert storable("\x00\udfff") == "\ufffd\ufffd"


@pytest.mark.parametrize("claimed", [10**400, 10**9, 250_000])
def test_claimed_usage_is_limited_by_what_the_request_makes_plausible(claimed):
    request = Request((Message("user", "x" * 4000),), max_tokens=1000)
    usage = plausible_usage(Usage(claimed, claimed, claimed), request)
    assert usage.prompt == usage.cached == usage.completion <= 110_000
    assert plausible_usage(Usage(3000, 100, 2000), request) == Usage(3000, 100, 2000)


def test_deeply_nested_content_parts_are_no_text():
    content = '"x"'
    for _ in range(400):
        content = f'[{{"text": {content}}}]'
    assert parse_response(f'{{"choices": [{{"message": {{"content": {content}}}}}]}}'.encode()).text == ""


def test_an_answer_longer_than_max_tokens_can_be_is_cut():
    """A server that ignores the limit must not fill every later prompt."""
    request = Request((Message("user", "Hi"),), max_tokens=2000)
    limit = 2000 * MAX_TOKEN_CHARS
    long = bounded_answer(Answer(Reply("a" * (limit + 1))), request)
    assert (len(long.text), long.reply.finish) == (limit, "length")
    assert bounded_answer(Answer(Reply("a" * limit)), request).reply == Reply("a" * limit, "stop")
    short = bounded_answer(Answer(Reply("a" * 5000)), Request(request.messages, max_tokens=10))
    assert short.reply == Reply("a" * 5000, "stop")
    calls = bounded_answer(
        Answer(Reply(""), (ToolCall("n" * 10**6, "a" * 10**6),) * 1000), request
    ).tool_calls
    assert len(calls) < 100 and all(len(c.name) < 1000 and len(c.arguments) == limit for c in calls)
    assert limit > MIN_ANSWER_CHARS
