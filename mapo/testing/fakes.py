"""A chat that needs no model, for tests of whatever talks to one."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator

from mapo.models.chat import Answer, Request
from mapo.types import Reply

Said = str | Answer | Exception
"""What a fake gives: a text, a whole answer (tool calls, a cut), or an error to raise."""

Answers = Iterable[Said] | Callable[[Request], Said | Awaitable[Said]]


class FakeChat:
    """Answers from a list in turn, or from a function of the request (async or not).

    `requests` holds what it was asked. A list that runs out raises LookupError: the test is wrong then,
    and no code under test should take that for a model's failure.
    """

    def __init__(self, answers: Answers, *, name: str = "fake") -> None:
        self._name = name
        self._function: Callable[[Request], Said | Awaitable[Said]] | None = None
        self._list: Iterator[Said] = iter(())
        if isinstance(answers, str):
            raise TypeError("give a list of answers, or a function")
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
        said = self._function(request) if self._function else self._next()
        if inspect.isawaitable(said):
            said = await said
        if isinstance(said, Exception):
            raise said
        return said if isinstance(said, Answer) else Answer(Reply(said))

    def _next(self) -> Said:
        for said in self._list:
            return said
        raise LookupError(f"{self._name} was asked {len(self.requests)} times and has no more answers")
