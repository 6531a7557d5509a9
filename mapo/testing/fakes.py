"""A fake chat model for tests."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator

from mapo.models.chat import Answer, Request
from mapo.types import Reply

FakeAnswer = str | Answer | Exception
"""An answer of a FakeChat: a text, a complete Answer (tool calls, truncation), or an error to raise."""

Answers = Iterable[FakeAnswer] | Callable[[Request], FakeAnswer | Awaitable[FakeAnswer]]


class FakeChat:
    """A chat that answers from a list in order, or from a function of the request (async or not).

    `requests` records what was asked. If the list runs out, LookupError is raised, which code under test
    cannot mistake for a model's failure.
    """

    def __init__(self, answers: Answers, *, name: str = "fake") -> None:
        self._name = name
        self._function: Callable[[Request], FakeAnswer | Awaitable[FakeAnswer]] | None = None
        self._list: Iterator[FakeAnswer] = iter(())
        if isinstance(answers, str):
            raise TypeError("pass a list of answers or a function, not a string")
        if callable(answers):
            self._function = answers
        else:
            self._list = iter(answers)
        self.requests: list[Request] = []

    @property
    def name(self) -> str:
        return self._name

    async def reply(self, request: Request) -> Answer:
        self.requests.append(request)
        answer = self._function(request) if self._function else self._next()
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Answer) else Answer(Reply(answer))

    def _next(self) -> FakeAnswer:
        for answer in self._list:
            return answer
        raise LookupError(f"{self._name} has no answer left for request {len(self.requests)}")
