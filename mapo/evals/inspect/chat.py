"""A model of inspect's as a `Chat`, so that everything that talks to models can talk to it."""

from __future__ import annotations

import json
from typing import Any

from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    ContentReasoning,
    GenerateConfig,
    Model,
    ModelOutput,
    ResponseSchema,
    get_model,
)
from inspect_ai.tool import ToolInfo, ToolParams
from inspect_ai.util import JSONSchema, LimitExceededError

from mapo.errors import EndpointError
from mapo.models.chat import Answer, Request, Tool, ToolCall, Usage
from mapo.models.wire import storable
from mapo.types import Message, Reply

_CUT = ("max_tokens", "model_length")


class InspectChat:
    """Answers through inspect: its connections, retries, limits and log.

    The policy may say nothing: it is asked once more, then judged for it. Of any other role an empty answer
    is a failure.
    """

    def __init__(self, model: Model, role: str = "policy") -> None:
        self.model, self.role = model, role

    @property
    def name(self) -> str:
        return str(self.model)

    async def reply(self, request: Request) -> Answer:
        answer = await self._ask(request)
        if not answer.text.strip() and not answer.tool_calls:
            answer = await self._ask(request)
            if not answer.text.strip() and not answer.tool_calls and self.role != "policy":
                raise EndpointError("an empty answer", where=f"{self.role} {self.name}")
        return answer

    async def _ask(self, request: Request) -> Answer:
        messages = [_message(message) for message in request.messages]
        tools = [_tool(tool) for tool in request.tools]
        try:
            output = await self.model.generate(messages, tools=tools, config=_config(request))
        except LimitExceededError:
            raise
        except Exception as error:  # whatever a provider raises, after inspect's own retries
            raise EndpointError(str(error)[:1000], where=f"{self.role} {self.name}") from error
        return _answer(output)


def player(role: str) -> InspectChat:
    """The model bound to a role (--model-role); nobody else stands in for it."""
    return InspectChat(get_model(role=role, required=True), role)


def talker(_: str) -> InspectChat:
    """The model under test, for any conversation."""
    return InspectChat(get_model())


def _message(message: Message) -> ChatMessage:
    if message.role == "system":
        return ChatMessageSystem(content=message.content)
    if message.role == "assistant":
        return ChatMessageAssistant(content=message.content)
    return ChatMessageUser(content=message.content)


def _tool(tool: Tool) -> ToolInfo:
    return ToolInfo(
        name=tool.name,
        description=tool.description,
        parameters=ToolParams.model_validate(dict(tool.parameters)),
    )


def _config(request: Request) -> GenerateConfig:
    given: dict[str, Any] = {"temperature": request.temperature, "max_tokens": request.max_tokens}
    if request.top_p != 1:
        given["top_p"] = request.top_p
    if request.min_p:
        given["extra_body"] = {"min_p": request.min_p}
    if request.schema is not None:
        shape = JSONSchema.model_validate(dict(request.schema))
        given["response_schema"] = ResponseSchema(name="form", json_schema=shape)
    return GenerateConfig(**given)


def _answer(output: ModelOutput) -> Answer:
    calls = output.message.tool_calls or [] if output.choices else []
    used = output.usage
    return Answer(
        Reply(
            storable(_thinking(output) + output.completion),
            "length" if output.stop_reason in _CUT else "stop",
        ),
        tuple(ToolCall(call.function, _arguments(call.arguments)) for call in calls),
        Usage(used.input_tokens, used.input_tokens_cache_read or 0, used.output_tokens) if used else Usage(),
    )


def _thinking(output: ModelOutput) -> str:
    """What a model thought without_thinking in its reply and inspect took out of it: it was said, and is
    read. Thinking that the endpoint sent apart was not."""
    content = output.message.content if output.choices else ""
    inline = [
        part.reasoning
        for part in (content if isinstance(content, list) else ())
        if isinstance(part, ContentReasoning) and part.internal == "think"
    ]
    return "".join(f"<think>\n{thought}\n</think>\n\n" for thought in inline)


def _arguments(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, default=str)
