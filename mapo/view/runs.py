"""Pages of runs: all of them, one, and several laid over each other."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from mapo.view import bench, queries
from mapo.view.curves import PLOTS, run_figures
from mapo.view.facts import number, steps_of, whole
from mapo.view.files import RunFiles, read_small
from mapo.view.site import Asked, as_json, page, reading, run_asked

STATES = ("running", "finished", "stopped", "failed")
OVERLAID = 6
"""Runs laid over each other: as many as there are colours."""
LISTED = 100
"""Runs a page of the list shows."""


def all_runs(request: Request) -> Response:
    asked = Asked(request)
    text, state, at = asked.text("q"), asked.text("state"), max(1, asked.whole("page") or 1)
    with reading(request) as db:
        found = queries.runs(db, text, state)
    shown = found[(at - 1) * LISTED : at * LISTED]
    return page(
        request,
        "runs.html",
        runs=shown,
        total=len(found),
        text=text,
        state=state,
        states=STATES,
        at=at,
        pages=-(-len(found) // LISTED),
        notes=asked.notes,
    )


def one_run(request: Request) -> Response:
    with reading(request) as db:
        row, files = run_asked(request, db, request.path_params["run"])
        parts = queries.parts_of(db, row["key"])
        problems = queries.problems_of(db, row["key"])
        scored = bench.sets(db, row["key"])
    return page(
        request,
        "run.html",
        run=row,
        parts=parts,
        problems=problems,
        sets=scored,
        result=bench.result_of(files),
        plots=PLOTS if row["kind"] == "train" else {},
        costs=costs_of(files),
    )


def overlay(request: Request) -> Response:
    asked = Asked(request)
    with reading(request) as db:
        found = [row for key in asked.texts("run")[:OVERLAID] if (row := queries.run_named(db, key))]
    return page(
        request, "overlay.html", runs=found, plots=PLOTS, more=max(0, len(asked.texts("run")) - OVERLAID)
    )


def figures(request: Request) -> Response:
    """The curves of the runs named, as data."""
    with reading(request) as db:
        asked = [run_asked(request, db, key) for key in Asked(request).texts("run")[:OVERLAID]]
        return as_json(run_figures(db, [(row["key"], row["name"], steps_of(files)) for row, files in asked]))


def costs_of(run: RunFiles) -> list[dict[str, Any]]:
    """What the roles' models cost so far, all processes' ledgers together; None where there is no price."""
    sums: dict[tuple[str, str], dict[str, Any]] = defaultdict(
        lambda: {"calls": 0, "hits": 0, "failures": 0, "prompt": 0, "completion": 0, "cost": 0.0}
    )
    for name in sorted(run.small):
        if not name.startswith("ledger"):
            continue
        data, _ = read_small(run.root / name)
        rows = data.get("rows") if isinstance(data, dict) else None
        for row in rows if isinstance(rows, list) else ():
            if not isinstance(row, dict):
                continue
            one = sums[str(row.get("role"))[:40], str(row.get("model"))[:200]]
            for key in ("calls", "hits", "failures", "prompt", "completion"):
                one[key] += whole(row.get(key)) or 0
            cost = number(row.get("cost"))
            one["cost"] = None if cost is None or one["cost"] is None else one["cost"] + cost
    return [{"role": role, "model": model, **one} for (role, model), one in sorted(sums.items())]
