"""From command-line options to who plays (`mapo.players.stage`)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mapo.cli.common.messages import say
from mapo.errors import InputError
from mapo.models.chat import Sampling
from mapo.players.stage import Stage
from mapo.players.who import Panel, Who, read_judges


def stage_in(out: Path, *, cache_file: Path | None, prices: Path | None, **settings: Any) -> Stage:
    """The stage of a run in `out`: its ledger there, its cache too unless another is given."""
    from mapo.runs.claim import CACHE

    return Stage(
        cache=cache_file or out / CACHE,
        ledger_file=out / "ledger.json",
        prices=read_prices(prices),
        **settings,
    )


def read_prices(file: Path | None) -> dict[str, Any]:
    """{"model": [prompt, cached, completion]} per million tokens."""
    if file is None:
        return {}
    try:
        data = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read ({error})", where=str(file), fix="A JSON file of prices") from None
    if not isinstance(data, dict) or not all(isinstance(v, list) and len(v) == 3 for v in data.values()):
        raise InputError(
            "not a table of prices",
            where=str(file),
            fix='{"model": [prompt, cached, completion]} per million tokens',
        )
    return {model: tuple(map(float, price)) for model, price in data.items()}


Cast = dict[str, Who | Panel] | None
"""Who plays user, director and judge; None for plain code."""


def with_panel(cast: dict[str, Who] | None, named: str | None) -> Cast:
    """The cast with these judges, NAME or NAME@URL with commas between. Those without an address of their own
    are where the judge would be, and only there goes its key."""
    if named is None:
        return dict(cast) if cast is not None else None
    if cast is None:
        raise InputError("--judge-panel, but plain code plays", fix="Give --agents-model")
    judge = cast["judge"]
    members = tuple(
        replace(who, base_url=judge.base_url, key_env=judge.key_env) if who.base_url is None else who
        for who in read_judges(named.split(","))
    )
    if len(members) < 2:
        raise InputError(f"--judge-panel is '{named}'", fix="Two judges or more; one is --judge-model")
    return {**cast, "judge": Panel(members)}


def with_temperature(cast: Cast, **given: float | None) -> Cast:
    """The cast with these temperatures, as far as they were given."""
    for role, temperature in given.items():
        if temperature is None:
            continue
        if cast is None:
            raise InputError(f"--{role}-temperature, but plain code plays", fix="Give --agents-model")
        cast = {**cast, role: _sampled(cast[role], Sampling(temperature))}
    return cast


def _sampled(player: Who | Panel, sampling: Sampling) -> Who | Panel:
    if isinstance(player, Who):
        return replace(player, sampling=sampling)
    return replace(player, members=tuple(replace(who, sampling=sampling) for who in player.members))


def tell_where(everyone: Iterable[Who]) -> None:
    """Who is asked at an address that nobody gave."""
    for who in dict.fromkeys(everyone):
        if who.address is not None and not who.base_url:
            given = "from OPENAI_BASE_URL" if os.environ.get("OPENAI_BASE_URL") else "no base URL was given"
            say(f"{who.model} is asked at {who.address} ({given})")
