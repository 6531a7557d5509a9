"""What every page needs: the index, the templates, and how values are written."""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from mapo.text import printable
from mapo.view.index import bench, queries
from mapo.view.index.facts import when
from mapo.view.index.files import RunFiles
from mapo.view.index.index import Index


@dataclass(slots=True)
class Site:
    index: Index
    stamp: str
    templates: jinja2.Environment = field(default_factory=lambda: _templates())
    kept: tuple[int, list[dict[str, Any]]] | None = None
    """The sets of all runs, and the index's version they are of."""


def page(request: Request, name: str, status: int = 200, **values: Any) -> Response:
    site: Site = request.app.state.site
    body = site.templates.get_template(name).render(
        path=request.url.path,
        stamp=site.stamp,
        root=printable(site.index.root.name),
        version=site.index.version,
        busy=site.index.busy,
        **values,
    )
    return HTMLResponse(body.encode("utf-8", "replace"), status)


def as_json(data: object) -> Response:
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Response(text.encode(), media_type="application/json")


@contextmanager
def reading(request: Request) -> Iterator[sqlite3.Connection]:
    with request.app.state.site.index.reading() as db:
        yield db


def run_asked(request: Request, db: sqlite3.Connection, key: str) -> tuple[dict[str, Any], RunFiles]:
    """The run an address names: its row and its files."""
    files = request.app.state.site.index.runs.get(key)
    row = queries.run_named(db, key)
    if row is None or files is None:
        raise HTTPException(404, "no such run: it is gone, or was never there")
    return row, files


def all_sets(request: Request, db: sqlite3.Connection) -> list[dict[str, Any]]:
    """Every set of dialogues that has a score; computed again when the index has changed."""
    site: Site = request.app.state.site
    version = site.index.version
    if site.kept is None or site.kept[0] != version:
        site.kept = (version, bench.sets(db))
    return site.kept[1]


# ---- what was asked


class Asked:
    """The query of an address. What cannot be read is left out and noted."""

    def __init__(self, request: Request) -> None:
        self._given = request.query_params
        self.notes: list[str] = []

    def text(self, name: str) -> str:
        return self._given.get(name, "")[:500].encode("utf-8", "replace").decode().strip()

    def texts(self, name: str) -> list[str]:
        return list(dict.fromkeys(v for v in self._given.getlist(name) if v))

    def number(self, name: str) -> float | None:
        text = self.text(name)
        try:
            value = float(text) if text else None
        except ValueError:
            value = math.nan
        if value is not None and not math.isfinite(value):
            self.notes.append(f"{name} is no number: left out")
            return None
        return value

    def whole(self, name: str) -> int | None:
        value = self.number(name)
        if value is not None and (value != int(value) or abs(value) >= 2**53):
            self.notes.append(f"{name} is no whole number: left out")
            return None
        return None if value is None else int(value)


# ---- templates


def _templates() -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("mapo.view", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {"num": num, "signed": signed, "when": when, "ago": ago, "part": part_name, "short": short}
    env.globals |= {"address": address, "spark": spark, "bar": bar}
    return env


def address(path: str, *names: object, **query: object) -> str:
    """A path with each name as one part of it, and a query of what is not empty."""
    whole = "/".join([path.rstrip("/"), *(quote(str(name), safe="~:") for name in names)]) or "/"
    asked = [(k, v) for k, v in query.items() if v not in ("", None)]
    told = urlencode(asked, doseq=True, errors="replace")
    return f"{whole}?{told}" if told else whole


def num(value: float | None, digits: int = 2) -> str:
    """A number people can read: few digits, powers of ten where it is huge or tiny."""
    if value is None:
        return "–"
    if isinstance(value, int) and abs(value) < 1e15:
        return f"{value:,}".replace("-", "−")
    if value and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.2e}".replace("-", "−")
    return f"{value:,.{digits}f}".replace("-", "−")


def signed(value: float | None, digits: int = 2) -> str:
    told = num(value, digits)
    return f"+{told}" if value is not None and value > 0 else told


def short(text: str, most: int = 200) -> str:
    """The beginning of a text that may be of any length."""
    return text if len(text) <= most else f"{text[:most]}…"


def ago(seconds: float) -> str:
    gone = max(0.0, time.time() - seconds)
    for name, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if gone >= length:
            return f"{gone / length:.0f} {name} ago"
    return "just now"


def part_name(part: str) -> str:
    """A set of dialogues as people call it."""
    name, _, step = part.rpartition("_")
    if name == "validation" and step.isdecimal():
        return f"validation, step {int(step)}"
    return {"train": "training", "before": "test before", "after": "test after", "empa": "evaluation"}.get(
        part, part
    )


def spark(values: list[float], width: int = 96, height: int = 24) -> str:
    """The points of a small line."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    dx = (width - 4) / (len(values) - 1)
    return " ".join(
        f"{2 + i * dx:.1f},{height - 3 - (v - low) / span * (height - 6):.1f}" for i, v in enumerate(values)
    )


def bar(value: float, largest: float) -> tuple[float, float]:
    """Where a bar from the middle of 0..100 begins, and how long it is."""
    share = max(-1.0, min(1.0, value / largest)) if largest else 0.0
    return (50.0 if share >= 0 else 50.0 + 50.0 * share), abs(50.0 * share)
