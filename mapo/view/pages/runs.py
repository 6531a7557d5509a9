"""Pages of runs: all of them, one, and several laid over each other."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mapo.runs.contents import read_ledger
from mapo.runs.files import read_object
from mapo.scoring.findings import findings
from mapo.store import RunDir, is_ledger
from mapo.view.index import bench, judging, queries
from mapo.view.index.facts import steps_of
from mapo.view.index.files import RunFiles
from mapo.view.pages.curves import PLOTS, PlottedRun, run_figures
from mapo.view.pages.site import Asked, as_json, page, reading, run_asked

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
        judging=judging.judging_of(files),
        plots=PLOTS if row["kind"] == "train" else {},
        costs=costs_of(files),
        people=people_of(files),
    )


def figure(request: Request) -> Response:
    """The picture an audit left."""
    with reading(request) as db:
        _, files = run_asked(request, db, request.path_params["run"])
    found = judging.figure_of(files)
    if found is None:
        raise HTTPException(404, "no figure of an audit")
    return Response(found, media_type="image/png")


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
        runs = [PlottedRun(row["key"], row["name"], row["method"], steps_of(files)) for row, files in asked]
        return as_json(run_figures(db, runs))


def people_of(run: RunFiles) -> dict[str, Any] | None:
    """Whether the simulated people are still people: of the last step, or of a benchmark's dialogues."""
    steps = steps_of(run)
    told: object = steps[-1].get("health") if steps else None
    if told is None and run.has(RunDir.health):
        told = read_object(RunDir(run.root).health)[0]
    if not isinstance(told, dict) or not told.get("dialogues"):
        return None
    return {"step": steps[-1]["step"] if steps else None, "rows": findings(told)}


def costs_of(run: RunFiles) -> list[dict[str, Any]]:
    """What the roles' models cost so far, all processes' ledgers together; None where there is no price."""
    return read_ledger(run.root / name for name in sorted(run.small) if is_ledger(name))[0]
