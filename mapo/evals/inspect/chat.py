"""A model of inspect_ai as a `Chat`."""

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

from mapo.body_fields import check_body
from mapo.errors import EndpointError
from mapo.models.chat import Answer, Request, Tool, ToolCall, Usage
from mapo.models.wire import storable
from mapo.types import Message, Reply

_CUT = ("max_tokens", "model_length")


class InspectChat:
    """A `Chat` that calls a model through inspect, with inspect's connections, retries, limits and log.

    An empty answer is requested once more. After that, an empty reply of the policy is accepted and judged;
    for other roles it is an error.
    """

    def __init__(self, model: Model, role: str = "policy") -> None:
        self.model, self.role = model, role

    @property
    def name(self) -> str:
        return str(self.model)

    async def reply(self, request: Request) -> Answer:
        answer = await self._call(request)
        if not answer.text.strip() and not answer.tool_calls:
            answer = await self._call(request)
            if not answer.text.strip() and not answer.tool_calls and self.role != "policy":
                raise EndpointError("the answer is empty", where=f"{self.role} {self.name}")
        return answer

    async def _call(self, request: Request) -> Answer:
        messages = [_message(message) for message in request.messages]
        tools = [_tool(tool) for tool in request.tools]
        try:
            output = await self.model.generate(messages, tools=tools, config=_config(request))
        except LimitExceededError:
            raise
        except Exception as error:  # providers raise various types, after inspect's own retries
            raise EndpointError(str(error)[:1000], where=f"{self.role} {self.name}") from error
        return _answer(output)


def role_chat(role: str) -> InspectChat:
    """Return the model bound to a role with --model-role; raises if there is none."""
    return InspectChat(get_model(role=role, required=True), role)


def policy_chat(_name: str) -> InspectChat:
    """Return the model under test; a `ChatFactory`."""
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
    settings: dict[str, Any] = {"temperature": request.temperature, "max_tokens": request.max_tokens}
    if request.top_p != 1:
        settings["top_p"] = request.top_p
    if extra := {**({"min_p": request.min_p} if request.min_p else {}), **check_body(request.body)}:
        settings["extra_body"] = extra
    if request.schema is not None:
        schema = JSONSchema.model_validate(dict(request.schema))
        settings["response_schema"] = ResponseSchema(name="form", json_schema=schema)
    return GenerateConfig(**settings)


def _answer(output: ModelOutput) -> Answer:
    calls = output.message.tool_calls or [] if output.choices else []
    usage = output.usage
    return Answer(
        Reply(
            storable(_thinking(output) + output.completion),
            "length" if output.stop_reason in _CUT else "stop",
        ),
        tuple(ToolCall(call.function, _arguments(call.arguments)) for call in calls),
        Usage(usage.input_tokens, usage.input_tokens_cache_read or 0, usage.output_tokens)
        if usage
        else Usage(),
    )


def _thinking(output: ModelOutput) -> str:
    """Return reasoning that inspect removed from the text of a reply, in <think> tags. `mapo eval` parses
    such text, so it is restored here. Reasoning that the endpoint sent separately is not part of the
    reply."""
    content = output.message.content if output.choices else ""
    inline = [
        part.reasoning
        for part in (content if isinstance(content, list) else ())
        if isinstance(part, ContentReasoning) and part.internal == "think"
    ]
    return "".join(f"<think>\n{text}\n</think>\n\n" for text in inline)


def _arguments(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, default=str)
