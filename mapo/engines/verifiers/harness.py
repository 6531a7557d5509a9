"""The program of the policy: one call of the model per turn, made in this process.

verifiers' own chat program (`null`) starts a process for every turn, and a dialogue has many.
"""

from __future__ import annotations

import ssl
from functools import cache
from typing import Any

import verifiers.v1 as vf
from openai import APIConnectionError, APIStatusError, AsyncOpenAI, DefaultAsyncHttpx2Client
from pydantic import Field
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.errors import MODEL_TRANSPORT_ERROR_EXIT_CODE
from verifiers.v1.harnesses.utils.compaction import is_context_overflow


class EmpaHarnessConfig(vf.HarnessConfig):
    """Settings of the calls."""

    timeout: float = Field(default=600.0, gt=0)
    """Longest wait for one attempt at a reply, in seconds."""
    retries: int = Field(default=2, ge=0, le=100)
    """Further attempts after a failed call."""


class EmpaHarness(vf.Harness[EmpaHarnessConfig]):
    """A chat without tools."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Ask for one reply. verifiers receives the call at `endpoint`, adds the sampling parameters and
        records the reply in the trace. Without a reply because the context is full, the exchange ends."""
        del trace, runtime, mcp_urls
        system, prompt = self.resolve_prompt(data)
        turns = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt or ())
        messages = [vf.SystemMessage(content=system), *turns] if system else turns
        client = AsyncOpenAI(
            api_key=secret,
            base_url=endpoint,
            timeout=self.config.timeout,
            max_retries=self.config.retries,
            http_client=DefaultAsyncHttpx2Client(verify=_certificates(), trust_env=False),
        )
        async with client:
            try:
                wire: Any = [message_to_wire(message) for message in messages]
                await client.chat.completions.create(model=ctx.model, messages=wire)
            except APIStatusError as error:
                return vf.ProgramResult(0 if is_context_overflow(error) else 1, "", str(error))
            except APIConnectionError as error:
                return vf.ProgramResult(MODEL_TRANSPORT_ERROR_EXIT_CODE, "", str(error))
        return vf.ProgramResult(0, "", "")


@cache
def _certificates() -> ssl.SSLContext:
    """Return the certificates of the system, which take long to load."""
    return ssl.create_default_context()
