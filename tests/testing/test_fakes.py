"""FakeChat, for tests of whatever talks to a model."""

from __future__ import annotations

import asyncio

import pytest

from mapo.errors import EndpointError
from mapo.models.chat import Answer, Request, ToolCall
from mapo.testing.fakes import FakeChat
from mapo.types import Message, Reply

REQUEST = Request((Message("user", "hi"),))


def reply(chat: FakeChat) -> Answer:
    return asyncio.run(chat.reply(REQUEST))


def test_from_a_list():
    whole = Answer(Reply("cut", "length"), (ToolCall("f", "{}"),))
    chat = FakeChat(["one", whole, EndpointError("down")], name="me")
    assert reply(chat).text == "one"
    assert reply(chat) is whole
    with pytest.raises(EndpointError, match="down"):
        reply(chat)
    with pytest.raises(LookupError, match="no answer left for request 4"):
        reply(chat)
    assert chat.requests == [REQUEST] * 4 and chat.name == "me"


def test_from_a_function_and_an_async_one():
    async def later(request):
        return request.messages[-1].content.upper()

    assert reply(FakeChat(lambda request: request.messages[-1].content)).text == "hi"
    assert reply(FakeChat(later)).text == "HI"


def test_one_text_is_no_list_of_answers():
    with pytest.raises(TypeError, match="list"):
        FakeChat("hello")
