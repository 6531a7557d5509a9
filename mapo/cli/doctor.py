"""mapo doctor: checks of the installation, the machine and a model, before a run is started."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from mapo.cli.common.options import FIELDS
from mapo.errors import MapoError
from mapo.text import printable

if TYPE_CHECKING:
    from mapo.models.endpoint import Endpoint
    from mapo.models.thinking import ThinkingProbe


class Check(NamedTuple):
    """The result of one check. "warn": something works less well or is not available; "FAIL": something
    that was asked for does not work."""

    area: Literal["package", "machine", "model", "endpoint"]
    name: str
    status: Literal["ok", "warn", "FAIL"]
    message: str


MIN_MEMORY_GIB, MIN_DISK_GIB = 3, 5
"""Needed to train the embedded model, and for a few checkpoints of a real one."""
_GIB = 2**30


def doctor(
    model: Annotated[
        str | None,
        typer.Option(help="Also check this model: one at --base-url, or local:FOLDER (roles and speed)."),
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="Address of the model's endpoint.")] = None,
    key_env: Annotated[
        str, typer.Option(help="Environment variable with the endpoint's key.")
    ] = "OPENAI_API_KEY",
    body: Annotated[str | None, typer.Option(help=f"Further fields of its requests: {FIELDS}.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Timeout per call, in seconds.")] = 60.0,
) -> None:
    """Check the installation, the machine and, with --model, a model: an endpoint's latency, thinking, JSON
    and tools; the roles that a local model can play, and its speed.

    Exit status: 0 if everything needed works, also with warnings; 1 if a check failed.
    """
    import asyncio

    from mapo.body_fields import body_option

    checks = [*_installation(), *machine_checks()]
    if model and model.startswith("local:"):
        checks += _local_model(model.removeprefix("local:"))
    elif model:
        checks += asyncio.run(_endpoint(model, base_url, key_env, timeout, body_option(body, "--body")))
    for check in checks:
        typer.echo(f"{check.status:4}  {check.area:9} {check.name:15} {printable(check.message)}")
    failed, warnings = (sum(c.status == status for c in checks) for status in ("FAIL", "warn"))
    if failed or warnings:
        typer.echo(f"\n{_count(failed, 'failed check')}, {_count(warnings, 'warning')}.")
    if failed:
        raise typer.Exit(1)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _installation() -> list[Check]:
    import platform

    from mapo import __version__
    from mapo.scenarios.sets import load_scenarios

    version = f"mapo {__version__}, Python {platform.python_version()}"
    try:
        n = len(load_scenarios("builtin:all"))
        scenarios = Check("package", "scenarios", "ok", f"{n} built-in scenarios, files intact")
    except MapoError as error:
        scenarios = Check("package", "scenarios", "FAIL", str(error))
    return [Check("package", "version", "ok", version), scenarios]


def machine_checks(runs: Path = Path("runs")) -> list[Check]:
    """Look up torch and its devices, memory, and disk space for runs. A problem is only a warning: a machine
    that cannot train can still evaluate endpoints."""
    return [*_torch(), _memory(), _disk(runs)]


def _torch() -> list[Check]:
    from mapo.local_model.requirements import require_torch

    try:
        require_torch()
        from mapo.local_model.devices import devices, version

        return [
            Check("machine", "torch", "ok", version()),
            Check("machine", "devices", "ok", "; ".join(devices())),
        ]
    except MapoError as error:
        message = f"local models and training are not available: {error}"
    except (ImportError, OSError, RuntimeError) as error:  # installed but broken: a library or a driver
        message = f"torch is installed but does not work ({type(error).__name__}: {error})"
    return [Check("machine", "torch", "warn", message)]


def _memory() -> Check:
    from mapo.local_model.memory import host_memory

    amounts = host_memory()
    if amounts is None:
        return Check("machine", "memory", "ok", "unknown on this system")
    available, total = (amount / _GIB for amount in amounts)
    message = f"{available:.1f} GiB available of {total:.1f} GiB"
    if available >= MIN_MEMORY_GIB:
        return Check("machine", "memory", "ok", message)
    message += f"; training the embedded model needs {MIN_MEMORY_GIB} GiB"
    return Check("machine", "memory", "warn", message)


def _disk(runs: Path) -> Check:
    """Check the free space for runs, in the nearest folder that exists."""
    target = runs.resolve()
    try:
        folder = next(each for each in (target, *target.parents) if each.exists())
        free = shutil.disk_usage(folder).free / _GIB
    except OSError as error:
        return Check("machine", "disk", "warn", f"{target}: {error.strerror}")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        message = f"{folder} is not writable; choose another folder for runs with --out"
        return Check("machine", "disk", "warn", message)
    message = f"{free:.1f} GiB free in {target}"
    if free >= MIN_DISK_GIB:
        return Check("machine", "disk", "ok", message)
    message += f"; a few checkpoints of a real model need {MIN_DISK_GIB} GiB"
    return Check("machine", "disk", "warn", message)


def _local_model(source: str) -> list[Check]:
    """Check which roles a local model can play, and how fast."""
    template = _chat_template(source)
    if template.status == "FAIL":
        return [template]
    from mapo.players.capabilities import measured_speed, role_capabilities

    capabilities = [*role_capabilities(source), measured_speed(source)]
    return [template, *(Check("model", *capability) for capability in capabilities)]


def _chat_template(source: str) -> Check:
    """Check a model folder's tokenizer and chat template."""
    from mapo.local_model.requirements import require_torch

    try:
        require_torch()
        from mapo.players.preflight import check_models
        from mapo.players.spec import ModelSpec
        from mapo.sampling.local import check_template

        check_models(
            [ModelSpec(f"local:{source}")]
        )  # at once, where the library would try the hub for a minute
        template = check_template(source)
    except MapoError as error:
        return Check("model", "chat template", "FAIL", str(error))
    return Check("model", "chat template", "ok" if template.append_only else "warn", template.description)


async def _endpoint(
    model: str, base_url: str | None, key_env: str, timeout: float, body: dict[str, Any]
) -> list[Check]:
    from mapo.models.endpoint import Endpoint
    from mapo.models.thinking import LONG, probe_thinking

    async with Endpoint(model, base_url, key_env=key_env, timeout=timeout, retries=1, body=body) as endpoint:
        listed = await _listed(endpoint, model)
        try:
            probe = await probe_thinking(endpoint)
        except MapoError as error:
            return [listed, Check("endpoint", "replies", "FAIL", str(error))]
        checks = [listed, _replies(probe), _thinking(probe)]
        if probe.finishes:
            limit = LONG if probe.thinking else 64
            checks += [await _json(endpoint, limit), await _tools(endpoint, limit)]
        return checks


async def _listed(endpoint: Endpoint, model: str) -> Check:
    try:
        models = await endpoint.models()
    except MapoError as error:
        return Check("endpoint", "models listed", "warn", str(error))
    listed = _count(len(models), "model")
    if model in models:
        return Check("endpoint", "models listed", "ok", f"{listed}, including '{model}'")
    return Check("endpoint", "models listed", "warn", f"{listed}, but '{model}' is not among them")


def _replies(probe: ThinkingProbe) -> Check:
    if probe.finishes:
        return Check("endpoint", "replies", "ok", f"{probe.seconds:.2f} s, {probe.tokens} tokens")
    return Check("endpoint", "replies", "FAIL", f"no text within {probe.tokens} tokens")


def _thinking(probe: ThinkingProbe) -> Check:
    """Say how long the model thinks, and what to set for a run."""
    from mapo.sandbox.cast import MAX_TOKENS

    if not probe.thinking:
        return Check("endpoint", "thinking", "ok", "none")
    spends = f"{'' if probe.finishes else 'more than '}{probe.thinking:,} tokens before one word"
    needs = f"As policy it needs at least --max-tokens {probe.needed} (default: 512)"
    if probe.needed > MAX_TOKENS:
        options = ", ".join(f"--{role}-max-tokens" for role in ("user", "director", "judge"))
        needs += f"; in other roles as many (default: {MAX_TOKENS}; {options})"
    switch = "Nothing that was tried switches it off"
    if probe.switch:
        effect = f"shortens it to {probe.thinking_left:,}" if probe.thinking_left else "switches it off"
        switch = f"--body {probe.switch} {effect} (--agents-body for the other roles)"
    return Check("endpoint", "thinking", "warn", f"{spends}. {needs}. {switch}")


async def _json(endpoint: Endpoint, max_tokens: int) -> Check:
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
        await ask(endpoint, Request((Message("user", text),), max_tokens=max_tokens, schema=schema), parse)
    except MapoError as error:
        message = f"not usable, so the model can be a policy but not a judge: {error}"
        return Check("endpoint", "json schema", "warn", message)
    if endpoint.json_mode == "schema":
        return Check("endpoint", "json schema", "ok", "answers follow the schema")
    how = "as any JSON object" if endpoint.json_mode == "object" else "in the prompt only"
    message = f"not supported; JSON is requested {how}, so more answers may have to be repeated"
    return Check("endpoint", "json schema", "warn", message)


async def _tools(endpoint: Endpoint, max_tokens: int) -> Check:
    from mapo.models.chat import Request, Tool
    from mapo.types import Message

    tool = Tool("go_on", "Let the dialogue continue.", {"type": "object", "properties": {}})
    try:
        answer = await endpoint.reply(
            Request((Message("user", "Call the function go_on."),), max_tokens=max_tokens, tools=(tool,))
        )
    except MapoError as error:
        message = f"not supported; a director answers in JSON instead ({error})"
        return Check("endpoint", "tool calls", "warn", message)
    if any(call.name == "go_on" for call in answer.tool_calls):
        return Check("endpoint", "tool calls", "ok", "a director can act through tool calls")
    return Check("endpoint", "tool calls", "warn", "none returned; a director answers in JSON instead")
