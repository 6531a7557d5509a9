"""A simulated reasoning model, for `LoopbackServer`: it thinks before it answers, as real servers show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Body = dict[str, Any]
THOUGHT = "Let me see. "
"""Three tokens, at four characters per token."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """How the model thinks.

    tokens: spent before every answer; an answer whose token limit does not exceed this has no text.
    shown: where the thoughts appear: "reasoning_content" (vLLM, SGLang, DeepSeek), "reasoning" (OpenRouter),
        "text" (a `<think>` block in the content) or "usage" (OpenAI: only the number of tokens).
    switch: the field of a request that turns thinking off: chat_template_kwargs.enable_thinking = false, or
        reasoning_effort = "none"; None if nothing does. Other fields are ignored, as most servers do.
    """

    tokens: int = 1500
    shown: Literal["reasoning_content", "reasoning", "text", "usage"] = "reasoning_content"
    switch: Literal["enable_thinking", "reasoning_effort"] | None = "enable_thinking"

    def applies_to(self, body: Body) -> bool:
        """Return whether a request leaves thinking on."""
        template = body.get("chat_template_kwargs") or {}
        off = {
            "enable_thinking": template.get("enable_thinking") is False,
            "reasoning_effort": body.get("reasoning_effort") == "none",
        }
        return self.switch is None or not off[self.switch]

    def before(self, message: Body, usage: Body, body: Body) -> tuple[Body, Body]:
        """Return an answer and its usage with the thinking before it, cut off at the request's limit."""
        if not self.applies_to(body):
            return message, usage
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or 10**9
        spent, cut = min(self.tokens, limit), self.tokens >= limit
        thoughts = (THOUGHT * (spent // 3 + 1))[: spent * 4]
        text = message.get("content") or ""
        if cut:
            message = {"role": "assistant", "content": None, "finish_reason": "length"}
        if self.shown == "text":
            message = {
                **message,
                "content": f"<think>\n{thoughts}" + ("" if cut else f"\n</think>\n\n{text}"),
            }
        elif self.shown != "usage":
            message = {**message, self.shown: thoughts}
        completion = spent if cut else spent + usage["completion_tokens"]
        reported = {"completion_tokens_details": {"reasoning_tokens": spent}} if self.shown == "usage" else {}
        usage = {**usage, "completion_tokens": completion, **reported}
        return message, {**usage, "total_tokens": usage["prompt_tokens"] + completion}
