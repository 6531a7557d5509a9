"""From command-line options to who plays (`mapo.stage`)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from mapo.errors import InputError
from mapo.sandbox.chat import Sampling
from mapo.stage import Stage, Who


def stage_in(out: Path, *, cache_file: Path | None, prices: Path | None, **settings: Any) -> Stage:
    """The stage of a run in `out`: its ledger there, its cache too unless another is given."""
    from mapo.evals.folder import CACHE

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


def with_temperature(cast: dict[str, Who] | None, **given: float | None) -> dict[str, Who] | None:
    """The cast with these temperatures, as far as they were given."""
    for role, temperature in given.items():
        if temperature is None:
            continue
        if cast is None:
            raise InputError(f"--{role}-temperature, but plain code plays", fix="Give --agents-model")
        cast = {**cast, role: replace(cast[role], sampling=Sampling(temperature))}
    return cast
