"""mapo doctor: is everything there, and does an endpoint do what a role needs, before money is spent?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from mapo.cli.machine import Check, machine_checks
from mapo.errors import MapoError
from mapo.text import printable

if TYPE_CHECKING:
    from mapo.models.endpoint import Endpoint

MACHINE = "machine"
"""Whatever is to be said of it is a warning: what it cannot do may not be wanted."""


def doctor(
    model: Annotated[
        str | None, typer.Option(help="Also check this model (local:FOLDER: its chat template) ...")
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="... at this endpoint.")] = None,
    key_env: Annotated[str, typer.Option(help="Environment variable with its key.")] = "OPENAI_API_KEY",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds a call may take.")] = 60.0,
) -> None:
    """Check the installation, the machine and, with --model, an endpoint: models, latency, JSON, tool calls.

    Exit status: 0 all well, warnings or not; 1 something that every role needs does not work.
    """
    import asyncio

    checks = [("package", *check) for check in _installation()]
    checks += [(MACHINE, *check) for check in machine_checks()]
    if model and model.startswith("local:"):
        checks += [("model", *check) for check in _local(model.removeprefix("local:"))]
    elif model:
        checks += [
            ("endpoint", *check) for check in asyncio.run(_endpoint(model, base_url, key_env, timeout))
        ]
    for area, name, fine, told in checks:
        bad = "warn" if area == MACHINE else "FAIL"
        typer.echo(f"{'ok  ' if fine else bad}  {area:9} {name:22} {printable(told)}")
    optional = {"json schema", "tool calls", "models listed"}
    if not all(fine for area, name, fine, _ in checks if area != MACHINE and name not in optional):
        raise typer.Exit(1)


def _installation() -> list[Check]:
    import platform

    from mapo import __version__
    from mapo.scenarios.sets import load_scenarios

    found: list[Check] = [("version", True, f"mapo {__version__}, Python {platform.python_version()}")]
    try:
        found.append(
            ("scenarios", True, f"{len(load_scenarios('builtin:all'))} built in, as in their manifest")
        )
    except MapoError as error:
        found.append(("scenarios", False, str(error)))
    return found


def _local(source: str) -> list[Check]:
    """Whether a model's folder can be trained: its tokenizer, and what its chat template does."""
    from mapo.local_model.requirements import require_torch

    try:
        require_torch()
        from mapo.sampling.local import template_check

        return [("chat template", True, template_check(source))]
    except MapoError as error:
        return [("chat template", False, str(error))]


async def _endpoint(model: str, base_url: str | None, key_env: str, timeout: float) -> list[Check]:
    from mapo.models.endpoint import Endpoint

    async with Endpoint(model, base_url, key_env=key_env, timeout=timeout, retries=1) as endpoint:
        found = [await _listed(endpoint, model)]
        replies, *rest = [await check(endpoint) for check in (_replies, _json, _tools)]
        return [*found, replies, *(rest if replies[1] else [])]


async def _listed(endpoint: Endpoint, model: str) -> Check:
    try:
        models = await endpoint.models()
    except MapoError as error:
        return "models listed", False, str(error)
    there = model in models
    return (
        "models listed",
        there,
        f"{len(models)} models" + ("" if there else f", '{model}' is not among them"),
    )


async def _replies(endpoint: Endpoint) -> Check:
    from mapo.models.chat import Request
    from mapo.types import Message

    began = time.monotonic()
    try:
        answer = await endpoint.reply(Request((Message("user", "Say hello in one word."),), max_tokens=16))
    except MapoError as error:
        return "replies", False, str(error)
    spent = time.monotonic() - began
    return "replies", True, f"{spent:.2f} s, {answer.usage.completion} tokens"


async def _json(endpoint: Endpoint) -> Check:
    from mapo.errors import InputError
    from mapo.models.chat import Request
    from mapo.models.structured import ask
    from mapo.types import Message

    schema = {
        "type": "object",
        "properties": {"level": {"type": "integer", "enum": [0, 1, 2]}},
        "required": ["level"],
        "additionalProperties": False,
    }

    def parse(data: object) -> int:
        if not isinstance(data, dict) or data.get("level") not in (0, 1, 2):
            raise InputError("'level' must be 0, 1 or 2")
        return int(data["level"])

    text = 'Answer with JSON of this form: {"level": 1}'
    try:
        await ask(endpoint, Request((Message("user", text),), max_tokens=64, schema=schema), parse)
    except MapoError as error:
        return "json schema", False, str(error)
    return "json schema", True, f"forms come back in shape (asked for as: {endpoint.json_mode})"


async def _tools(endpoint: Endpoint) -> Check:
    from mapo.models.chat import Request, Tool
    from mapo.types import Message

    tool = Tool("go_on", "Let the talk go on.", {"type": "object", "properties": {}})
    try:
        answer = await endpoint.reply(
            Request((Message("user", "Call the function go_on."),), max_tokens=64, tools=(tool,))
        )
    except MapoError as error:
        return "tool calls", False, str(error)
    if any(call.name == "go_on" for call in answer.tool_calls):
        return "tool calls", True, "the director can act through functions"
    return "tool calls", False, "none came back; the director will use its JSON form instead"
