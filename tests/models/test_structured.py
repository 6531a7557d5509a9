"""Forms: what counts as JSON, and how often a model is asked again."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapo.errors import AnswerError, EndpointError, InputError
from mapo.models.chat import Answer, Request
from mapo.models.endpoint import Endpoint
from mapo.models.structured import ask, read_json
from mapo.testing.fakes import FakeChat
from mapo.testing.server import LoopbackServer
from mapo.types import Message, Reply

REQUEST = Request((Message("system", "Judge."), Message("user", "Fill in.")), schema={"type": "object"})


def level(data) -> int:
    """The form of these tests: {"level": 0..3}."""
    if not isinstance(data, dict) or set(data) != {"level"}:
        raise InputError("expected exactly the key level", where="form")
    if type(data["level"]) is not int or not 0 <= data["level"] <= 3:
        raise InputError(f"level {data['level']} is out of range 0..3", where="form")
    return data["level"]


def run(chat, **kw):
    return asyncio.run(ask(chat, REQUEST, level, **kw))


# ---- what counts


@pytest.mark.parametrize(
    "text",
    [
        '{"level": 2}',
        '  \n{"level": 2}\n ',
        '```json\n{"level": 2}\n```',
        '```\n{"level": 2}\n```',
        'Here it is:\n\n```JSON\n{\n "level": 2\n}\n```\n',
        '<think>level 1? no</think>{"level": 2}',
        'no opening tag, as some templates have it</think>\n\n{"level": 2}',
        '<think>first ```json\n{"level": 0}\n``` then</think>\n```json\n{"level": 2}\n```',
        '<think>the reply says </think>{"level": 0} hm</think>{"level": 2}',
    ],
)
def test_json_that_leaves_no_doubt(text):
    assert read_json(text) == {"level": 2}


@pytest.mark.parametrize(
    "text",
    [
        'The level is {"level": 2}',
        '{"level": 2} as I said',
        '{"level": 2}{"level": 3}',
        '{"level": 2}\n{"level": 2}',
        '```json\n{"level": 0}\n```\n```json\n{"level": 2}\n```',
        '```json\n{"level": 0}\n```\nThat is what the reply wants me to say.',
        '```python\n{"level": 2}\n```',
        '```json\n{"level": 2}',
        '<think>{"level": 2}',
        '<think>{"level": 2}</think>',
        '{"level": 2',
        "{'level': 2}",
        '{"level": 2,}',
        '{"level": NaN}',
        '{"level": -Infinity}',
        '{"level": 1e999}',
        '{"level": 2, "level": 3}',
        '{"a": {"level": 2, "level": 3}}',
        "[" * 100_000,
        '{"level": ' + "9" * 5000 + "}",
        "",
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(InputError):
        read_json(text)


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_every_json_comes_back_as_it_is(data):
    for written in (json.dumps(data), json.dumps(data, ensure_ascii=False)):
        for text in (written, f"```json\n{written}\n```", f"<think>hm</think>{written}"):
            try:
                read = read_json(text)
            except InputError:
                assert "</think>" in written  # a doubt: refused, never misread
            else:
                assert json.dumps(read).replace("\\ufffd", "") == json.dumps(data).replace("\\u0000", "")


def test_quoted_marks_inside_strings_are_only_text():
    evidence = '</think> ```json {"level": 3} ``` \u2028 ```'
    assert read_json(json.dumps({"evidence": evidence}, ensure_ascii=False)) == {"evidence": evidence}


def test_escapes_bring_back_nothing_that_cannot_be_stored():
    assert read_json('{"a\\u0000": ["\\ud800", "\\ud83d\\ude00"]}') == {"a\ufffd": ["\ufffd", "\U0001f600"]}


# ---- asking again


def test_a_good_answer_needs_one_call():
    chat = FakeChat(['{"level": 3}'])
    assert run(chat) == 3
    assert chat.requests == [REQUEST]


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("Level two, I think.", "not JSON"),
        ('{"level": 9}', "form: level 9 is out of range 0..3"),
        ('{"levle": 1}', "expected exactly the key level"),
        ("", "it was empty"),
        (Answer(Reply('{"level": 1}', "length")), "cut off after 1024 tokens"),
    ],
)
def test_the_model_sees_its_answer_and_its_error(bad, problem):
    chat = FakeChat([bad, '{"level": 1}'])
    assert run(chat) == 1
    first, second = chat.requests
    assert second.messages[:2] == first.messages
    assert second.schema == first.schema
    shown, told = second.messages[2:]
    text = bad if isinstance(bad, str) else bad.text
    assert (shown.role, shown.content) == ("assistant", text or "(nothing)")
    assert told.role == "user" and problem in told.content


def test_an_answer_without_end_does_not_fill_the_context():
    chat = FakeChat([Answer(Reply("so " * 50_000, "length")), '{"level": 1}'])
    assert run(chat) == 1
    assert sum(len(message.content) for message in chat.requests[1].messages) < 10_000


def test_it_gives_up_after_so_many_repairs():
    chat = FakeChat(["one", "two", '{"level": 7}', '{"level": 1}'], name="poor-model")
    with pytest.raises(AnswerError, match="poor-model: no usable answer in 3 attempts.*level 7 is out"):
        run(chat)
    assert len(chat.requests) == 3
    assert [len(r.messages) for r in chat.requests] == [2, 4, 6]


def test_no_repairs_means_one_call():
    chat = FakeChat(["no", '{"level": 1}'])
    with pytest.raises(AnswerError):
        run(chat, repairs=0)
    assert len(chat.requests) == 1


def test_long_problems_are_shortened():
    chat = FakeChat(['{"level": "' + "x" * 5000 + '"}', '{"level": 1}'])
    run(chat)
    assert len(chat.requests[1].messages[-1].content) < 800


def test_errors_of_the_endpoint_and_bugs_pass_through():
    with pytest.raises(EndpointError):
        run(FakeChat([EndpointError("down")]))
    with pytest.raises(KeyError):
        asyncio.run(ask(FakeChat(["{}"]), REQUEST, lambda data: data["missing"]))


@pytest.mark.parametrize(
    "fault", ["not-json", "cut-json", "wrong-schema", "bad-level", "length", "wrong-tool"]
)
def test_every_fault_of_form_is_repaired_over_http(fault):
    async def main(url):
        async with Endpoint("m", url) as chat:
            return await ask(chat, REQUEST, level)

    with LoopbackServer(lambda _: '{"level": 2}', fault=lambda n, _: fault if n == 1 else None) as server:
        assert asyncio.run(main(server.base_url)) == 2
    assert server.calls == 2


def test_a_model_that_never_learns_over_http():
    async def main(url):
        async with Endpoint("m", url) as chat:
            return await ask(chat, REQUEST, level)

    always = LoopbackServer(lambda _: '{"level": 2}', fault=lambda *_: "bad-level")
    with always as server, pytest.raises(AnswerError, match="level 99"):
        asyncio.run(main(server.base_url))
    assert server.calls == 3
