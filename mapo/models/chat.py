"""The one seam to every language model.

Policy, user, director and judge all speak through `Chat.reply`. Real models are behind an
OpenAI-compatible endpoint (`endpoint.py`) or sampled locally (`mapo.sampling`); fakes for tests are in
`mapo.testing`. An implementation retries what can be retried and raises `EndpointError` when it gives up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from mapo.types import Message, Reply


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is the model's own text, untrusted and perhaps not even JSON."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the endpoint counts them; `cached` is the part of `prompt` it had in its prefix cache."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One call. `schema` asks for JSON of that shape. All calls of one role in one dialogue share
    `session`, by which a sampler may keep its cache; `nonce` tells calls apart that are otherwise equal
    (repeats of a scenario), so that a recorded answer is not given twice. `seed` is the chance in a locally
    sampled reply: the same seed after the same words gives the same reply. `min_p` drops tokens less likely
    than that part of the likeliest; it is for endpoints, and one that does not know it goes without."""

    messages: tuple[Message, ...]
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 1024
    schema: Mapping[str, Any] | None = None
    tools: tuple[Tool, ...] = ()
    session: str = ""
    nonce: str = ""
    seed: int = 0
    min_p: float = 0.0


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a role's model is sampled, where that is not left to the role: None is the role's own way."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None

    def of(self, request: Request) -> Request:
        """The request, sampled this way."""
        return replace(
            request,
            temperature=request.temperature if self.temperature is None else self.temperature,
            top_p=self.top_p or request.top_p,
            max_tokens=self.max_tokens or request.max_tokens,
        )

    def __str__(self) -> str:
        told = {"temperature": self.temperature, "top_p": self.top_p, "max_tokens": self.max_tokens}
        return ", ".join(f"{name} {value:g}" for name, value in told.items() if value is not None)


OWN_WAY = Sampling()


@dataclass(frozen=True, slots=True)
class Answer:
    reply: Reply
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    left_out: tuple[str, ...] = ()
    """Parameters of the request that the endpoint refused, so that it was asked without."""

    @property
    def text(self) -> str:
        return self.reply.text


class Chat(Protocol):
    """Anything that answers. `name` identifies the model in records."""

    @property
    def name(self) -> str: ...

    async def reply(self, request: Request) -> Answer: ...


@runtime_checkable
class Closing(Protocol):
    """A Chat that holds something for one dialogue alone (a cache), and is told when that is over."""

    def end_dialogue(self) -> None: ...


Talker = Callable[[str], Chat]
"""Opens a conversation with a model: the conversation's name -> the `Chat` that answers in it."""
