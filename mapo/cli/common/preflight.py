"""Checks and an estimate that a command prints before it loads a model or calls one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mapo.cli.common.messages import say
from mapo.errors import EndpointError

if TYPE_CHECKING:
    from mapo.planning.estimate import Estimate
    from mapo.players.spec import ModelSpec


def preflight(
    models: Mapping[str, ModelSpec],
    *,
    device: str = "auto",
    estimate: Estimate | None = None,
    cache_mode: str = "record",
    cache: Path | None = None,
) -> None:
    """Check that the models of a run (by role) can be used, and print what the run will call at most.

    Raise InputError or EndpointError, with the role, the first cause and a fix, if one cannot be used. With
    `cache_mode` "replay" no endpoint is called. If the file `cache` exists, it may hold every answer, which
    only playing the run shows: the fix then names that mode. Inside of an event loop, use `preflight_async`.
    """
    asyncio.run(preflight_async(models, device=device, estimate=estimate, cache_mode=cache_mode, cache=cache))


async def preflight_async(
    models: Mapping[str, ModelSpec],
    *,
    device: str = "auto",
    estimate: Estimate | None = None,
    cache_mode: str = "record",
    cache: Path | None = None,
) -> None:
    """Do what `preflight` does, inside of an event loop."""
    from mapo.players.preflight import check_endpoints, check_models, enumeration

    warnings = check_models(models.values(), device)
    remote = {role: spec for role, spec in models.items() if spec.address is not None}
    if remote and cache_mode != "replay":
        addresses = list(dict.fromkeys(spec.address or "" for spec in remote.values()))
        say(f"preflight: checking {enumeration(remote)} at {enumeration(addresses)}")
        try:
            warnings += await check_endpoints(remote)
        except EndpointError as error:
            if cache_mode != "record" or cache is None or not cache.exists():
                raise
            fix = f"{error.fix}{' ' if error.fix.endswith('?') else '. '}" if error.fix else ""
            raise EndpointError(
                error.problem,
                where=error.where,
                fix=f"{fix}If {cache} holds every answer, --cache replay runs without the endpoint",
            ) from None
    for warning in warnings:
        say(f"warning: {warning}")
    if estimate is not None and estimate.text:
        say(f"estimate: {estimate.text}")
