"""The interface to every language model.

Policy, user, director and judge are all called through `Chat.reply`. Implementations: an OpenAI-compatible
endpoint (`endpoint.py`), a locally sampled model (`mapo.sampling`), and fakes for tests (`mapo.testing`). An
implementation retries transient failures and raises `EndpointError` when it gives up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from mapo.body_fields import check_body, check_effort, compact_body, merge_bodies
from mapo.types import Message, Reply


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call; `parameters` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call in an answer. `arguments` is text written by the model: untrusted, perhaps not JSON."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the endpoint counts them; `cached` is the part of `prompt` that was in its prefix cache."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0


ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
"""The schema of any JSON object. Endpoints are asked for their plain JSON mode."""


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a model.

    schema: the JSON schema that the answer must follow, or ANY_OBJECT.
    session: shared by all calls of one role in one dialogue; a sampler keeps its KV cache by it.
    nonce: distinguishes calls that are otherwise equal (repeats of a scenario) in the answer cache.
    seed: for locally sampled replies; the same seed after the same messages gives the same reply.
    min_p: drops tokens less likely than this fraction of the most likely one. Endpoints only; it is omitted
        for endpoints that do not support it.
    body: further fields of an endpoint's request body (`mapo.body_fields`), such as chat_template_kwargs.
    limit_in_key: max_tokens in the key of the answer cache where it differs: raising the default of a role
        must not make recorded runs worthless.
    """

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
    turn: int | None = None
    """The turn of the dialogue that the call belongs to, 0 before the first; None outside a dialogue."""
    body: Mapping[str, Any] = field(default_factory=dict, hash=False)
    limit_in_key: int | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters that override those of a role's requests; None keeps the request's value.

    `body` holds further fields of the request body. They are added to those of the request. One of them,
    `reasoning_effort`, can also be given by its name.
    """

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    reasoning_effort: str | None = None
    body: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        effort = self.body.get("reasoning_effort") if self.reasoning_effort is None else self.reasoning_effort
        named = {} if effort is None else {"reasoning_effort": check_effort(effort)}
        object.__setattr__(self, "reasoning_effort", effort)
        object.__setattr__(self, "body", {**check_body(self.body), **named})

    def of(self, request: Request) -> Request:
        """Return the request with these parameters."""
        return replace(
            request,
            temperature=request.temperature if self.temperature is None else self.temperature,
            top_p=self.top_p or request.top_p,
            max_tokens=self.max_tokens or request.max_tokens,
            body=merge_bodies(request.body, self.body),
            limit_in_key=None if self.max_tokens else request.limit_in_key,
        )

    def __str__(self) -> str:
        values = {"temperature": self.temperature, "top_p": self.top_p, "max_tokens": self.max_tokens}
        parts = [f"{name} {value:g}" for name, value in values.items() if value is not None]
        parts += [f"reasoning_effort {self.reasoning_effort}"] if self.reasoning_effort else []
        rest = {name: value for name, value in self.body.items() if name != "reasoning_effort"}
        parts += [f"body {compact_body(rest)}"] if rest else []
        return ", ".join(parts)


DEFAULT_SAMPLING = Sampling()
"""Overrides nothing."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's reply with its tool calls and token counts."""

    reply: Reply
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    left_out: tuple[str, ...] = ()
    """Parameters of the request that the endpoint refused and that were therefore not sent."""
    thinking: int = field(default=0, compare=False)
    """Tokens that the model spent on thinking, as reported or estimated; unknown (0) in a cached answer."""

    @property
    def text(self) -> str:
        return self.reply.text


class Chat(Protocol):
    """A model that answers requests. `name` identifies it in records."""

    @property
    def name(self) -> str: ...

    async def reply(self, request: Request) -> Answer: ...


@runtime_checkable
class DialogueChat(Protocol):
    """A Chat with resources for one dialogue (a KV cache), released by `end_dialogue`."""

    def end_dialogue(self) -> None: ...


FILLER = "?"
"""The token that stands in place of an answer in a form that is read out; see `ReadRequest`."""


@dataclass(frozen=True, slots=True)
class Place:
    """One answer to be read out of a model: the text before it, and the possible answers.

    Each option must be a single token after the label.
    """

    label: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """One forward pass of a model that generates no text.

    The form is the beginning of the assistant's answer to `messages`: each label, followed by a filler in
    place of the answer. The filler keeps every answer hidden from the next ones, so one pass reads all of
    them. `session` and `turn` are those of `Request`.
    """

    messages: tuple[Message, ...]
    places: tuple[Place, ...]
    session: str = ""
    turn: int | None = None


class Reader(Protocol):
    """A model whose answers can be read out. `name` identifies it in records."""

    @property
    def name(self) -> str: ...

    async def read(self, request: ReadRequest) -> tuple[tuple[float, ...], ...]:
        """Return, for each place, the log-probabilities of its options, normalised over the options."""


ChatFactory = Callable[[str], Chat]
"""Opens a conversation with a model: maps the conversation's name to the `Chat` that answers in it."""
