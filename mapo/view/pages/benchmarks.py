"""The page of benchmarks: scores of sets side by side, by category, axis and difficulty."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mapo.store import RunDir
from mapo.view.index import sets
from mapo.view.index.context import world_in
from mapo.view.index.files import RunFiles, rubric_of
from mapo.view.pages.charts import radar as radar_figure
from mapo.view.pages.site import Params, all_sets, as_json, list_notice, ordered, page, part_name, reading

LISTED = 60
"""The most sets and result files on the page; the newest."""
SET_COLUMNS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "name": lambda s: s["name"].casefold(),
    "model": lambda s: s["model"],
    "judge": lambda s: s["context"]["judge"],
    "scenarios": lambda s: s["context"]["scenarios"],
    **{c: lambda s, c=c: s["scores"][c] and s["scores"][c][0] for c in sets.COLUMNS},  # type: ignore[misc]
    "passes": lambda s: s["passes"] / s["n"],
    "turns": lambda s: s["turns"],
}


def benchmarks(request: Request) -> Response:
    params = Params(request)
    index = request.app.state.view.index
    with reading(request) as db:
        every = all_sets(request, db)
        chosen = _chosen(params, every)
        titles = _axis_titles(index.runs, chosen)
        tables = {by: _table(db, chosen, by, titles) for by in sets.GROUPINGS}
    newest = sorted(index.runs.values(), key=lambda run: -run.changed)
    recorded = [run for run in newest if run.has(RunDir.result)][:LISTED]
    results = [
        {**result, "key": run.key, "name": run.name} for run in recorded if (result := sets.result_of(run))
    ]
    sort = params.text("sort")
    return page(
        request,
        "benchmarks.html",
        sets=ordered(every, sort, SET_COLUMNS)[:LISTED],
        sort=sort,
        query={"set": params.texts("set")},
        judges=sorted({s["context"]["judge"] for s in chosen}),
        notice=list_notice([s["context"] for s in every[:LISTED]]),
        more=max(0, len(every) - LISTED),
        chosen=[s["key"] for s in chosen],
        picked=chosen,
        tables=tables,
        results=results,
    )


def radar(request: Request) -> Response:
    """The charts of the requested sets, as data."""
    params = Params(request)
    with reading(request) as db:
        chosen = _chosen(params, all_sets(request, db))
        titles = _axis_titles(request.app.state.view.index.runs, chosen)
        figures = {by: _radar(db, chosen, by, titles) for by in sets.GROUPINGS}
    return as_json({by: figure for by, figure in figures.items() if figure})


def _chosen(params: Params, every: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the requested sets, else those of the newest run."""
    wanted = params.texts("set")
    if not wanted:
        first = [s for s in every if s["run"] == every[0]["run"] and not s["part"].startswith("validation")]
        return (first or every)[: sets.MOST_DRAWN]
    return [s for s in every if s["key"] in wanted][: sets.MOST_DRAWN]


def _axis_titles(runs: Mapping[str, RunFiles], chosen: list[dict[str, Any]]) -> dict[str, str]:
    """Return the titles of axes by key, as far as the rubrics of the sets are known and agree."""
    titles: dict[str, set[str]] = {}
    for s in chosen:
        rubric = rubric_of(runs[s["run"]], s["context"]["domain"]) if s["run"] in runs else None
        for axis in rubric.axes if rubric else ():
            titles.setdefault(axis.key, set()).add(axis.title)
    return {key: names.pop() for key, names in titles.items() if len(names) == 1}


def _table(
    db: sqlite3.Connection, chosen: list[dict[str, Any]], by: str, titles: Mapping[str, str]
) -> dict[str, Any]:
    columns = [sets.by_group(db, s["key"], by) for s in chosen]
    if by == "axis":
        columns = [{titles.get(name, name): mean for name, mean in column.items()} for column in columns]
    names = sorted({name for column in columns for name in column}, key=_rank)
    return {name: [column.get(name) for column in columns] for name in names}


def _rank(name: str) -> tuple[int, str]:
    """Sort difficulties from easy to extreme, other names alphabetically."""
    known = ("easy", "medium", "hard", "extreme")
    return (known.index(name) if name in known else len(known)), name


def _radar(
    db: sqlite3.Connection, chosen: list[dict[str, Any]], by: str, titles: Mapping[str, str]
) -> dict[str, Any] | None:
    table = _table(db, chosen, by, titles)
    if len(table) < 3:  # two points do not form an area
        return None

    def column(at: int) -> Any:
        return lambda group: table[group][at][0] if table[group][at] else None

    names = [f"{s['name']}, {part_name(s['part'])}" for s in chosen]
    worlds = {world_in(s["context"]) for s in chosen}
    world = worlds.pop() if len(worlds) == 1 else None
    return radar_figure(list(table), [(name, column(at)) for at, name in enumerate(names)], world)
