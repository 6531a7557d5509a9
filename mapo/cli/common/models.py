"""The model session of a command, and messages about its models."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mapo.cli.common.messages import say
from mapo.errors import InputError
from mapo.players.session import ModelSession
from mapo.players.spec import ModelSpec
from mapo.untrusted import read_file


def session_in(out: Path, *, cache_file: Path | None, prices: Path | None, **settings: Any) -> ModelSession:
    """Return a session with its ledger in `out`, and its cache there unless `cache_file` is given."""
    from mapo.store import RunDir

    return ModelSession(
        cache=cache_file or RunDir(out).cache_of(),
        ledger_file=RunDir(out).ledger_of(),
        prices=read_prices(prices),
        **settings,
    )


def read_prices(file: Path | None) -> dict[str, Any]:
    """Read a JSON file of prices per million tokens: {"model": [prompt, cached, completion]}."""
    if file is None:
        return {}
    form = 'Expected {"model": [prompt, cached, completion]}, prices per million tokens'
    try:
        data = json.loads(read_file(file))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"the file cannot be read as JSON ({error})", where=str(file), fix=form) from None
    if not isinstance(data, dict) or not all(isinstance(v, list) and len(v) == 3 for v in data.values()):
        raise InputError("the file is not a table of prices", where=str(file), fix=form)
    return {model: tuple(map(float, price)) for model, price in data.items()}


def say_default_addresses(models: Iterable[ModelSpec]) -> None:
    """Print the address of each model for which no base URL was given."""
    for spec in dict.fromkeys(models):
        if spec.address is not None and not spec.base_url:
            reason = "from OPENAI_BASE_URL" if os.environ.get("OPENAI_BASE_URL") else "no base URL was given"
            say(f"{spec.model} is called at {spec.address} ({reason})")
