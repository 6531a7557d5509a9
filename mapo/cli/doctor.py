"""mapo doctor: is everything there, and does an endpoint do what a role needs, before money is spent?"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mapo.errors import MapoError
from mapo.text import printable

if TYPE_CHECKING:
    from mapo.models.endpoint import Endpoint

Check = tuple[str, bool, str]
"""What was checked, whether it is fine, and what to say about it."""

MACHINE = "machine"
"""The area whose failures are only warnings: a machine that cannot train can still evaluate."""
MEMORY, DISK = 3, 5
"""GiB needed to train the embedded model, and for a few checkpoints of a real one."""
_GIB = 2**30
_CGROUPS = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""By cgroup version, the files with a container's memory limit and usage, and its reclaimable part."""


def doctor(
    model: Annotated[
        str | None, typer.Option(help="Also check this model (local:FOLDER: its chat template) ...")
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="... at this endpoint.")] = None,
    key_env: Annotated[str, typer.Option(help="Environment variable with its key.")] = "OPENAI_API_KEY",
    timeout: Annotated[float, typer.Option(min=0.1, help="Timeout of a call, in seconds.")] = 60.0,
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


def machine_checks(runs: Path = Path("runs")) -> list[Check]:
    """Check torch and its devices, memory, and disk space for runs. Looked up, not measured."""
    return [*_torch(), _memory(), _disk(runs)]


def _torch() -> list[Check]:
    from mapo.local_model.requirements import require_torch

    try:
        require_torch()
        from mapo.local_model.devices import devices, version

        return [("torch", True, version()), ("devices", True, "; ".join(devices()))]
    except MapoError as error:
        return [("torch", False, f"no training here: {error}")]
    except (ImportError, OSError, RuntimeError) as error:  # installed, and broken: a library, a driver
        return [("torch", False, f"cannot be used ({type(error).__name__}: {error})")]


def _memory() -> Check:
    found = memory()
    if found is None:
        return "memory", True, "unknown on this system"
    available, total = (amount / _GIB for amount in found)
    little = f"; little: training the embedded model takes {MEMORY} GiB" if available < MEMORY else ""
    return "memory", not little, f"{available:.1f} GiB available of {total:.1f}{little}"


def memory(root: Path = Path("/")) -> tuple[int, int] | None:
    """Return available and total bytes, within the limits of a container; None if the system does not say."""
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
        told = {name: int(rest.split()[0]) * 1024 for name, _, rest in (x.partition(":") for x in lines)}
        found = [(told["MemAvailable"], told["MemTotal"]), *_limits(root)]
    except (OSError, ValueError, KeyError, IndexError):
        return None
    return min(left for left, _ in found), min(limit for _, limit in found)


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield what is left of each memory limit of a container, and the limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for _, kind, path in (line.split(":", 2) for line in lines):
        base = root / "sys/fs/cgroup" / kind
        own = base / path.lstrip("/")
        above = own.parents[: len(own.parts) - len(base.parts)]  # a limit anywhere on the way down holds
        for folder in (own, *above) if kind in _CGROUPS else ():
            limit, used, idle = _CGROUPS[kind]
            try:
                most, now = (int((folder / name).read_text(encoding="ascii")) for name in (limit, used))
                stat = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
            except (OSError, ValueError):  # no limit, or not seen from here
                continue
            yield most - now + sum(int(x.split()[1]) for x in stat if x.split()[0] == idle), most


def _disk(runs: Path) -> Check:
    """Check the free space where runs go: in the nearest folder that exists."""
    place = runs.resolve()
    try:
        there = next(folder for folder in (place, *place.parents) if folder.exists())
        free = shutil.disk_usage(there).free / _GIB
    except OSError as error:
        return "disk", False, f"{place}: {error.strerror}"
    if not there.is_dir() or not os.access(there, os.W_OK):
        return "disk", False, f"{there} cannot be written to; say where runs go: --out"
    little = "; little: checkpoints of a real model take that much" if free < DISK else ""
    return "disk", not little, f"{free:.1f} GiB free for {place}{little}"


def _local(source: str) -> list[Check]:
    """Check a model folder's tokenizer and chat template."""
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
