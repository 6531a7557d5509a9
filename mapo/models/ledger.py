"""What talking to models cost so far: calls, tokens, seconds and money, per role and model.

Endpoints report here; progress lines and reports read. `flush` keeps a snapshot on disk, `load` goes on
from one, so that a resumed run shows what it cost in all. What came after the last snapshot stands in a
journal beside it, a line for everything reported, so that a kill loses nothing that was counted. Each line
has a number, and the snapshot says up to which it knows them: none counts twice. Without a price a cost is
unknown, never zero.
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
from mapo.models.chat import Usage
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
        self._lock = threading.RLock()
        self._journal: Path | None = None
        self._entries = 0

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
        used = usage or Usage()
        numbers = {"calls": calls, "hits": hits, "retries": retries, "failures": failures}
        numbers |= {"prompt": used.prompt, "cached": used.cached, "completion": used.completion}
        with self._lock:
            self._count(role, model, {**numbers, "seconds": seconds})
            if self._journal is not None:
                self._write_down(self._journal, role, model, {**numbers, "seconds": seconds})

    def _count(self, role: str, model: str, numbers: Mapping[str, float]) -> None:
        counts = self._counts.setdefault((role, model), Counts())
        for name, number in numbers.items():
            if type(number) not in (int, float) or number < 0:
                raise ValueError(f"a count of {role} is no number")
            setattr(counts, name, getattr(counts, name) + number)
        self._entries += 1

    def _write_down(self, journal: Path, role: str, model: str, numbers: Mapping[str, float]) -> None:
        line = [self._entries, role, model, {name: n for name, n in numbers.items() if n}]
        try:
            if not journal.parent.exists():
                journal.parent.mkdir(parents=True)
            with open(journal, "ab") as file:
                file.write(json.dumps(line).encode() + b"\n")
        except OSError as error:
            raise StoreError(
                f"cannot be written ({error.strerror})", where=str(journal), fix="Free some space"
            ) from None

    def as_rows(self) -> list[dict[str, Any]]:
        """One row per role and model, sorted; `cost` is None where the model has no price."""
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
        """The state of the ledger as one JSON file, replaced as a whole; its journal begins anew."""
        with self._lock:
            data = {"schema": SCHEMA, "entries": self._entries, "rows": self.as_rows()}
            write_atomic(path, json.dumps(data, indent=1) + "\n")
            if self._journal == _journal_of(path):
                self._journal.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path, prices: Mapping[str, Price] | None = None, *, journal: bool = False) -> Ledger:
        """Go on from a snapshot and the journal after it; absent files are an empty ledger. With `journal`,
        what is reported from now on is written down at once."""
        ledger = cls(prices)
        try:
            if path.exists():
                ledger._read(json.loads(path.read_bytes()))
            if (file := _journal_of(path)).exists():
                ledger._read_journal(file.read_bytes())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordError(
                f"not a ledger ({error})", where=str(path), fix="Remove the file to count from zero"
            ) from None
        if journal:
            ledger._journal = _journal_of(path)
            if ledger._journal.exists():
                ledger.flush(path)  # a torn line shall not be gone on from
        return ledger

    def _read(self, data: Mapping[str, Any]) -> None:
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema is {data['schema']!r}, not '{SCHEMA}'")
        for row in data["rows"]:
            self._count(str(row["role"]), str(row["model"]), {f.name: row[f.name] for f in fields(Counts)})
        self._entries = int(data.get("entries", 0))

    def _read_journal(self, content: bytes) -> None:
        """The lines after the snapshot; a kill may have torn the last one."""
        for line in content.split(b"\n")[:-1]:
            number, role, model, numbers = json.loads(line)
            if number > self._entries:
                self._count(role, model, numbers)
                self._entries = number


def _journal_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-journal")
