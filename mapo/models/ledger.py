"""Ledger of model calls: calls, tokens, seconds and cost, per role and model.

Endpoints add to it; progress lines and reports read it. `flush` writes a snapshot to disk and `load`
continues from one, so that a resumed run shows its total cost. Entries after the last snapshot are in a
journal next to it, one numbered line each, so that a killed run loses no counts. The snapshot stores the
number of its last entry, so no line is counted twice. Without a price, a cost is unknown, never zero.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from mapo.errors import InputError, RecordError, StoreError
from mapo.models.activity import Activity
from mapo.models.chat import Usage
from mapo.store import JOURNAL, write_atomic
from mapo.untrusted import open_regular, parse_json, read_file

SCHEMA = "mapo.ledger/1"
MAX_COUNT = 2**53
"""The largest number that all programs read exactly from JSON."""
MAX_JOURNAL_BYTES = 1 << 30
"""A call takes about 250 bytes."""

Price = tuple[float, float, float]
"""Per million tokens: prompt, cached prompt, completion."""


@dataclass(slots=True)
class Counts:
    """Totals of one role and model. `calls` went to the endpoint, successful or not; `hits` were answered
    from the cache; `retries` are attempts after the first of a call; `failures` are calls given up."""

    calls: int = 0
    hits: int = 0
    retries: int = 0
    failures: int = 0
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    seconds: float = 0.0


def cost_of(counts: Mapping[str, float], price: Price) -> float:
    """Return the cost of the tokens in `counts`."""
    prompt, cached, completion = price
    uncached = counts["prompt"] - counts["cached"]
    return (uncached * prompt + counts["cached"] * cached + counts["completion"] * completion) / 1e6


class Ledger:
    """Counts of calls by role and model, with prices by model."""

    def __init__(self, prices: Mapping[str, Price] | None = None) -> None:
        for model, price in (prices or {}).items():
            if len(price) != 3 or not all(math.isfinite(p) and p >= 0 for p in price):
                raise InputError(
                    f"price {price!r} is not valid",
                    where=f"prices, {model}",
                    fix="Give three numbers per million tokens: prompt, cached prompt, completion",
                )
        self.prices = dict(prices or {})
        self._counts: dict[tuple[str, str], Counts] = {}
        self._lock = threading.RLock()
        self._journal: Path | None = None
        self._entries = 0
        self.activity = Activity()
        """Calls of this session, for progress displays."""

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
        """Add to the counts of a role and model."""
        self.activity.add(role, calls=calls, retries=retries, seconds=seconds)
        tokens = usage or Usage()
        numbers = {"calls": calls, "hits": hits, "retries": retries, "failures": failures}
        numbers |= {"prompt": tokens.prompt, "cached": tokens.cached, "completion": tokens.completion}
        with self._lock:
            self._count(role, model, {**numbers, "seconds": seconds})
            if self._journal is not None:
                self._append(self._journal, role, model, {**numbers, "seconds": seconds})

    def _count(self, role: str, model: str, numbers: Mapping[str, float]) -> None:
        counts = self._counts.setdefault((role, model), Counts())
        for name, number in numbers.items():
            if type(number) not in (int, float) or not 0 <= number <= MAX_COUNT:
                raise ValueError(f"a count of {role} is not a number from 0 to {MAX_COUNT}")
            setattr(counts, name, getattr(counts, name) + number)
        self._entries += 1

    def _append(self, journal: Path, role: str, model: str, numbers: Mapping[str, float]) -> None:
        line = [self._entries, role, model, {name: n for name, n in numbers.items() if n}]
        try:
            if not journal.parent.exists():
                journal.parent.mkdir(parents=True)
            with open_regular(journal, "ab", links=False) as file:
                file.write(json.dumps(line).encode() + b"\n")
        except OSError as error:
            raise StoreError(
                f"cannot be written ({error.strerror})", where=str(journal), fix="Free some disk space"
            ) from None

    def as_rows(self) -> list[dict[str, Any]]:
        """Return one row per role and model, sorted; `cost` is None if the model has no price."""
        with self._lock:
            return [
                {"role": role, "model": model, **asdict(counts), "cost": self._cost(model, counts)}
                for (role, model), counts in sorted(self._counts.items())
            ]

    @property
    def total_calls(self) -> int:
        with self._lock:
            return sum(counts.calls for counts in self._counts.values())

    @property
    def total_cost(self) -> float | None:
        """The cost of all calls; None if a model that was called has no price."""
        costs = [row["cost"] for row in self.as_rows() if row["calls"]]
        return None if None in costs else math.fsum(costs)

    def _cost(self, model: str, counts: Counts) -> float | None:
        return cost_of(asdict(counts), self.prices[model]) if model in self.prices else None

    def flush(self, path: Path) -> None:
        """Write a snapshot to `path`, replacing the file atomically, and clear its journal."""
        with self._lock:
            data = {"schema": SCHEMA, "entries": self._entries, "rows": self.as_rows()}
            data |= {"prices": self.prices} if self.prices else {}
            write_atomic(path, json.dumps(data, indent=1) + "\n")
            if self._journal == _journal_of(path):
                self._journal.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path, prices: Mapping[str, Price] | None = None, *, journal: bool = False) -> Ledger:
        """Load a snapshot and its journal; if the files do not exist, return an empty ledger. With `journal`,
        later entries are appended to the journal as they are added."""
        ledger = cls(prices)
        try:
            if path.exists():
                ledger._read(parse_json(read_file(path)))
            if (file := _journal_of(path)).exists():
                ledger._read_journal(read_file(file, MAX_JOURNAL_BYTES))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordError(
                f"this is not a ledger ({error})", where=str(path), fix="Remove the file to count from zero"
            ) from None
        if journal:
            ledger._journal = _journal_of(path)
            if ledger._journal.exists():
                ledger.flush(path)  # never append to a truncated line
        return ledger

    def _read(self, data: Mapping[str, Any]) -> None:
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema is {data['schema']!r}, not '{SCHEMA}'")
        for row in data["rows"]:
            self._count(str(row["role"]), str(row["model"]), {f.name: row[f.name] for f in fields(Counts)})
        self._entries = int(data.get("entries", 0))

    def _read_journal(self, content: bytes) -> None:
        """Count the lines after the snapshot. The last one may be truncated if the process was killed."""
        for line in content.split(b"\n")[:-1]:
            number, role, model, numbers = parse_json(line)
            if number > self._entries:
                self._count(role, model, numbers)
                self._entries = number


def _journal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}{JOURNAL}")
