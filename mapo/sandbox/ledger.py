"""What talking to models cost so far: calls, tokens, seconds and money, per role and model.

Endpoints report here; progress lines and reports read. `flush` keeps a snapshot on disk, `load` goes on
from one, so that a resumed run shows what it cost in all. Without a price a cost is unknown, never zero.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from mapo.errors import InputError, RecordError
from mapo.sandbox.chat import Usage
from mapo.store import write_atomic

SCHEMA = "mapo.ledger/1"

Price = tuple[float, float, float]
"""Per million tokens: prompt, cached prompt, completion."""


@dataclass(slots=True)
class Counts:
    """`calls` went to the endpoint (whatever their outcome), `hits` were answered from the cache,
    `retries` are attempts after the first of a call, `failures` calls that were given up."""

    calls: int = 0
    hits: int = 0
    retries: int = 0
    failures: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    seconds: float = 0.0


class Ledger:
    def __init__(self, prices: Mapping[str, Price] | None = None) -> None:
        for model, price in (prices or {}).items():
            if len(price) != 3 or not all(math.isfinite(p) and p >= 0 for p in price):
                raise InputError(
                    f"price {price!r} cannot be used",
                    where=f"prices, {model}",
                    fix="Three numbers per million tokens: prompt, cached prompt, completion",
                )
        self.prices = dict(prices or {})
        self._counts: dict[tuple[str, str], Counts] = {}
        self._lock = threading.Lock()

    def add(
        self,
        role: str,
        model: str,
        *,
        calls: int = 0,
        hits: int = 0,
        retries: int = 0,
        failures: int = 0,
        usage: Usage | None = None,
        seconds: float = 0.0,
    ) -> None:
        with self._lock:
            counts = self._counts.setdefault((role, model), Counts())
            counts.calls += calls
            counts.hits += hits
            counts.retries += retries
            counts.failures += failures
            counts.seconds += seconds
            if usage is not None:
                counts.prompt += usage.prompt
                counts.cached += usage.cached
                counts.completion += usage.completion

    def as_rows(self) -> list[dict[str, Any]]:
        """One row per role and model, sorted; `cost` is None where the model has no price."""
        with self._lock:
            return [
                {"role": role, "model": model, **asdict(counts), "cost": self._cost(model, counts)}
                for (role, model), counts in sorted(self._counts.items())
            ]

    @property
    def total_cost(self) -> float | None:
        """The cost of everything so far; None where something was used that has no price."""
        costs = [row["cost"] for row in self.as_rows() if row["calls"]]
        return None if None in costs else math.fsum(costs)

    def _cost(self, model: str, counts: Counts) -> float | None:
        if model not in self.prices:
            return None
        prompt, cached, completion = self.prices[model]
        fresh = counts.prompt - counts.cached
        return (fresh * prompt + counts.cached * cached + counts.completion * completion) / 1e6

    def flush(self, path: Path) -> None:
        """The state of the ledger as one JSON file, replaced as a whole."""
        write_atomic(path, json.dumps({"schema": SCHEMA, "rows": self.as_rows()}, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path, prices: Mapping[str, Price] | None = None) -> Ledger:
        """Go on from a snapshot; an absent file is an empty ledger."""
        ledger = cls(prices)
        if not path.exists():
            return ledger
        names = [field.name for field in fields(Counts)]
        try:
            data = json.loads(path.read_bytes())
            if data["schema"] != SCHEMA:
                raise ValueError(f"schema is {data['schema']!r}, not '{SCHEMA}'")
            for row in data["rows"]:
                counts = Counts(**{name: row[name] for name in names})
                if not all(type(n) in (int, float) and n >= 0 for n in asdict(counts).values()):
                    raise ValueError(f"a count of {row['role']} is no number")
                ledger._counts[str(row["role"]), str(row["model"])] = counts
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RecordError(
                f"not a ledger ({error})", where=str(path), fix="Remove the file to count from zero"
            ) from None
        return ledger
