"""The page of benchmarks: scores of sets side by side, by category, axis and difficulty."""

from __future__ import annotations

import sqlite3
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mapo.store import RunDir
from mapo.view.index import bench
from mapo.view.pages.curves import radar as radar_figure
from mapo.view.pages.site import Asked, all_sets, as_json, page, part_name, reading

LISTED = 60
"""Sets and result files a page shows; the newest."""


def benchmarks(request: Request) -> Response:
    asked = Asked(request)
    index = request.app.state.site.index
    with reading(request) as db:
        every = all_sets(request, db)
        chosen = _chosen(asked, every)
        tables = {by: _table(db, chosen, by) for by in bench.BY}
    newest = sorted(index.runs.values(), key=lambda run: -run.changed)
    told = [run for run in newest if run.has(RunDir.result)][:LISTED]
    results = [{**found, "key": run.key, "name": run.name} for run in told if (found := bench.result_of(run))]
    return page(
        request,
        "benchmarks.html",
        sets=every[:LISTED],
        more=max(0, len(every) - LISTED),
        chosen=[s["key"] for s in chosen],
        picked=chosen,
        tables=tables,
        results=results,
    )


def radar(request: Request) -> Response:
    """The figures of the sets named, as data."""
    asked = Asked(request)
    with reading(request) as db:
        chosen = _chosen(asked, all_sets(request, db))
        figures = {by: _radar(db, chosen, by) for by in bench.BY}
    return as_json({by: figure for by, figure in figures.items() if figure})


def _chosen(asked: Asked, every: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those asked for; otherwise the first run's."""
    wanted = asked.texts("set")
    if not wanted:
        first = [s for s in every if s["run"] == every[0]["run"] and not s["part"].startswith("validation")]
        return (first or every)[: bench.MOST]
    return [s for s in every if s["key"] in wanted][: bench.MOST]


def _table(db: sqlite3.Connection, chosen: list[dict[str, Any]], by: str) -> dict[str, Any]:
    columns = [bench.by_group(db, s["key"], by) for s in chosen]
    names = sorted({name for column in columns for name in column}, key=_rank)
    return {name: [column.get(name) for column in columns] for name in names}


def _rank(name: str) -> tuple[int, str]:
    """Difficulties from easy to extreme; other names by the alphabet."""
    known = ("easy", "medium", "hard", "extreme")
    return (known.index(name) if name in known else len(known)), name


def _radar(db: sqlite3.Connection, chosen: list[dict[str, Any]], by: str) -> dict[str, Any] | None:
    table = _table(db, chosen, by)
    if len(table) < 3:  # two directions make no shape
        return None

    def column(at: int) -> Any:
        return lambda group: table[group][at][0] if table[group][at] else None

    names = [f"{s['name']}, {part_name(s['part'])}" for s in chosen]
    return radar_figure(list(table), [(name, column(at)) for at, name in enumerate(names)])
