"""What every page needs: the index, the templates, URL parameters, and how values are displayed."""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import jinja2
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from mapo.show.numbers import num, signed
from mapo.text import plural, printable
from mapo.types import Direction, ending_label
from mapo.view.index import queries, sets
from mapo.view.index.context import world_in
from mapo.view.index.facts import when
from mapo.view.index.files import RunFiles
from mapo.view.index.index import Index


@dataclass(slots=True)
class ViewState:
    """The state shared by all requests."""

    index: Index
    static_version: str
    templates: jinja2.Environment = field(default_factory=lambda: _templates())
    cached_sets: tuple[int, list[dict[str, Any]]] | None = None
    """The sets of all runs, with the version of the index they were computed from."""


def page(request: Request, name: str, status: int = 200, **values: Any) -> Response:
    state: ViewState = request.app.state.view
    body = state.templates.get_template(name).render(
        path=request.url.path,
        static_version=state.static_version,
        root=printable(state.index.root.name),
        version=state.index.version,
        busy=state.index.busy,
        **values,
    )
    return HTMLResponse(body.encode("utf-8", "replace"), status)


def as_json(data: object) -> Response:
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return Response(text.encode(), media_type="application/json")


@contextmanager
def reading(request: Request) -> Iterator[sqlite3.Connection]:
    with request.app.state.view.index.reading() as db:
        yield db


def requested_run(request: Request, db: sqlite3.Connection, key: str) -> tuple[dict[str, Any], RunFiles]:
    """Return the row and the files of the run that a URL names."""
    files = request.app.state.view.index.runs.get(key)
    row = queries.run_named(db, key)
    if row is None or files is None:
        raise HTTPException(404, "There is no such run. It may have been deleted.")
    return row, files


def all_sets(request: Request, db: sqlite3.Connection) -> list[dict[str, Any]]:
    """Return every evaluation set that has a score, cached until the index changes."""
    state: ViewState = request.app.state.view
    version = state.index.version
    if state.cached_sets is None or state.cached_sets[0] != version:
        state.cached_sets = (version, sets.sets(db))
    return state.cached_sets[1]


# ---- URL parameters


class Params:
    """The query of a URL. Values that cannot be used are ignored and noted."""

    def __init__(self, request: Request) -> None:
        self._query = request.query_params
        self.notes: list[str] = []

    def text(self, name: str) -> str:
        return self._query.get(name, "")[:500].encode("utf-8", "replace").decode().strip()

    def texts(self, name: str) -> list[str]:
        return list(dict.fromkeys(v for v in self._query.getlist(name) if v))

    def number(self, name: str) -> float | None:
        text = self.text(name)
        try:
            value = float(text) if text else None
        except ValueError:
            value = math.nan
        if value is not None and not math.isfinite(value):
            self.notes.append(f"{name} is not a number and was ignored")
            return None
        return value

    def integer(self, name: str) -> int | None:
        value = self.number(name)
        if value is not None and (value != int(value) or abs(value) >= 2**53):
            self.notes.append(f"{name} is not an integer and was ignored")
            return None
        return None if value is None else int(value)


def ordered(
    rows: Sequence[dict[str, Any]],
    sort: str,
    columns: dict[str, Callable[[dict[str, Any]], Any]],
) -> list[dict[str, Any]]:
    """Sort rows by "COLUMN" (descending) or "COLUMN-up"; rows without a value come last."""
    column = columns.get(sort.removesuffix("-up"))
    if column is None:
        return list(rows)
    known = [row for row in rows if column(row) not in (None, "")]
    rest = [row for row in rows if column(row) in (None, "")]
    return sorted(known, key=column, reverse=not sort.endswith("-up")) + rest


def _references(contexts: Collection[dict[str, Any]]) -> str:
    """Return the reference scores of the worlds of a list; with several judges, of each one."""
    worlds = {world: c["reference"] for c in contexts if c["reference"] and (world := world_in(c))}
    if len({world.domain for world in worlds}) == len(worlds):
        return " ".join(worlds.values())
    return " ".join(f"Judge {world.judge}: {text}" for world, text in worlds.items())


def list_notice(contexts: Collection[dict[str, Any]]) -> str:
    """Return the notice above a list of scores of which some come from scripted roles, or from models
    with prompts of their own; else empty."""
    scripted = [c for c in contexts if c["notice"]]
    notes = " ".join(dict.fromkeys(f"{c['prompts_note']}." for c in contexts if c["prompts_note"]))
    if not scripted:
        return notes
    names = " or ".join(dict.fromkeys(c["domain"] or "conversation" for c in scripted))
    references = _references(scripted)
    notice = f"Scores marked “test world” come from scripted roles: test world, not a measure of {names}."
    return " ".join(filter(None, (notice, references, notes)))


# ---- templates


def _templates() -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("mapo.view", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "num": num,
        "signed": signed,
        "moved": moved,
        "when": when,
        "ago": ago,
        "part": part_name,
        "short": short,
    }
    env.filters |= {"duration": duration, "kind": kind_name, "ending": ending_label, "plural": plural}
    env.filters |= {"condition": condition, "direction": direction_label, "sentence": sentence}
    env.globals |= {"address": address, "spark": spark, "bar": bar}
    return env


def address(path: str, *segments: object, **query: object) -> str:
    """Return a URL with quoted segments and a query of the values that are not empty."""
    location = "/".join([path.rstrip("/"), *(quote(str(name), safe="~:") for name in segments)]) or "/"
    pairs = [(k, v) for k, v in query.items() if v not in ("", None)]
    text = urlencode(pairs, doseq=True, errors="replace")
    return f"{location}?{text}" if text else location


def moved(value: float | None) -> str:
    """Format a movement on an axis, which is mostly a whole number."""
    return signed(value, 0 if value is not None and float(value).is_integer() else 2)


def sentence(text: str) -> str:
    """Return a note with a capital first letter."""
    return text[:1].upper() + text[1:]


def direction_label(direction: Direction, titles: Mapping[str, str]) -> str:
    """Return what the director decided, for people. Stages and memories are counted from 1, as turns are."""
    item = direction.item
    shown = str(int(item) + 1) if item.isascii() and item.isdecimal() and len(item) < 6 else item
    if direction.act == "shift_focus":
        shown = titles.get(item, item)
    return f"{_ACTS.get(direction.act, direction.act)} {shown}".strip()


_ACTS = {
    "reveal_stage": "reveals stage",
    "release_memory": "releases memory",
    "shift_focus": "shifts the focus to",
    "turning_point": "reaches a turning point",
    "go_on": "goes on",
    "wait": "waits",
    "end": "ends the dialogue",
}


def short(text: str, most: int = 200) -> str:
    """Return the beginning of a text that may be of any length."""
    return text if len(text) <= most else f"{text[:most]}…"


def ago(seconds: float) -> str:
    passed = max(0.0, time.time() - seconds)
    for name, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if passed >= length:
            return f"{passed / length:.0f} {name} ago"
    return "just now"


def duration(seconds: float | None) -> str:
    """Format seconds as "12 s", "5 min 20 s" or "3 h 05 min"."""
    if seconds is None:
        return "–"
    total = round(max(0.0, seconds))
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    return f"{total // 3600} h {total % 3600 // 60:02d} min"


def part_name(part: str) -> str:
    """Return the display name of a set of dialogues."""
    name, _, step = part.rpartition("_")
    if name == "validation" and step.isdecimal():
        return f"validation, step {int(step)}"
    names = {
        "train": "training",
        "before": "before training",
        "after": "after training",
        "empa": "evaluation",
    }
    return names.get(part, part)


def condition(detail: str) -> str:
    """Return the meaning of an ending's detail, the rule that applied."""
    return _CONDITIONS.get(detail, "The rule that ended the dialogue")


_CONDITIONS = {
    "geometric": "The state came close enough to the goal",
    "positional": "The state advanced far enough along the straight line from the start to the goal",
    "zone": "The state entered the target zone",
    "collapsed": "Each of the last turns moved away from the goal",
    "stagnant": "The distance to the goal hardly changed over the last turns",
    "regressing": "Most of the last turns moved away from the goal",
    "minimal": "The last turns hardly moved the state",
    "oscillation": "The last turns moved back and forth without a net change",
    "oscillation-distance": "The distance to the target zone stayed the same over the last turns",
}


def kind_name(kind: str) -> str:
    """Return the display name of a kind of run."""
    names = {
        "train": "training",
        "ablate": "ablation",
        "empa": "evaluation",
        "emobench": "EmoBench",
        "eqbench3": "EQ-Bench 3",
        "eqbench_v2": "EQ-Bench v2",
        "realsim": "scenario making",
        "screen": "screening",
    }
    return names.get(kind, kind)


def spark(values: list[float], width: int = 96, height: int = 24) -> str:
    """Return the points of a sparkline."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    dx = (width - 4) / (len(values) - 1)
    return " ".join(
        f"{2 + i * dx:.1f},{height - 3 - (v - low) / span * (height - 6):.1f}" for i, v in enumerate(values)
    )


def bar(value: float, largest: float) -> tuple[float, float]:
    """Return start and length of a bar that begins in the middle of 0..100."""
    share = max(-1.0, min(1.0, value / largest)) if largest else 0.0
    return (50.0 if share >= 0 else 50.0 + 50.0 * share), abs(50.0 * share)
