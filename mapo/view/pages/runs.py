"""Pages of runs: the list, one run with its tabs, an overlay of several, and an ablation grid."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mapo.runs.contamination import notice_of
from mapo.runs.contents import read_ledger
from mapo.runs.files import read_bytes, read_object
from mapo.runs.kind import Kind, kind_of
from mapo.sandbox.faults.detect import ROLES
from mapo.scoring.findings import findings
from mapo.store import RunDir, ledger_name
from mapo.text import printable
from mapo.view.index import judging, queries, sets
from mapo.view.index.context import world_in
from mapo.view.index.facts import config_of, manifest_of, steps_of
from mapo.view.index.files import RunFiles
from mapo.view.pages.charts import PLOTS, PlottedRun, run_figures
from mapo.view.pages.grid import grid_figures, grid_of
from mapo.view.pages.run_table import COLUMNS, grouped
from mapo.view.pages.settings import judge_settings, settings_of, start_of
from mapo.view.pages.site import (
    Params,
    all_sets,
    as_json,
    list_notice,
    ordered,
    page,
    reading,
    requested_run,
)

STATES = ("running", "finished", "stopped", "failed")
OVERLAID = 6
"""Runs in an overlay: as many as there are distinct line styles."""
LISTED = 100
"""Rows per page of the list of runs."""
SCENARIO_COLUMNS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "scenario": lambda row: row["scenario"],
    "category": lambda row: row["category"],
    "difficulty": lambda row: row["difficulty"],
    "a": lambda row: row["a"] and row["a"]["epm_q"],
    "b": lambda row: row["b"] and row["b"]["epm_q"],
    "difference": lambda row: row["difference"],
    "passes": lambda row: (row["b"] or row["a"])["passes"],
    "turns": lambda row: (row["b"] or row["a"])["turns"],
}


def all_runs(request: Request) -> Response:
    params = Params(request)
    text, state, sort = params.text("q"), params.text("state"), params.text("sort")
    number = max(1, params.integer("page") or 1)
    with reading(request) as db:
        runs = queries.runs(db, text, state)
    entries = grouped(runs, sort, apart=params.text("group") == "no")
    shown = entries[(number - 1) * LISTED : number * LISTED]
    contexts = [run["context"] for run in runs if run["score"] is not None]
    judges = {context["judge"] for context in contexts if context["judge"]}
    return page(
        request,
        "runs.html",
        entries=shown,
        total=len(runs),
        text=text,
        state=state,
        states=STATES,
        sort=sort,
        sortable=COLUMNS,
        ungrouped=params.text("group") == "no",
        query={k: v for k, v in (("q", text), ("state", state), ("group", params.text("group"))) if v},
        judges=len(judges),
        notice=list_notice(contexts),
        number=number,
        pages=-(-len(entries) // LISTED),
        notes=params.notes,
    )


def one_run(request: Request) -> Response:
    with reading(request) as db:
        row, files = requested_run(request, db, request.path_params["run"])
        if row["grid"]:
            grid = grid_of(db, row, files)
            live = _grid_progress(row, grid) if row["state"] == "running" else None
            return page(request, "grid.html", run=row, tab="overview", grid=grid, live=live)
        parts = queries.parts_of(db, row["key"])
        problems = queries.problems_of(db, row["key"])
        scored = sets.sets(db, row["key"])
        blame = queries.blame_by_part(db, row["key"])
        live = _live(queries.played_in_step(db, row["key"], (row["step"] or 0) + 1), row, files)
    return page(
        request,
        "run.html",
        run=row,
        tab="overview",
        live=live,
        notice=next((s["context"] for s in scored if s["context"]["notice"]), row["context"]),
        contaminated=notice_of(manifest_of(files)),
        parts=parts,
        problems=problems,
        sets=scored,
        result=sets.result_of(files),
        judging=judging.judging_of(files),
        judge_settings=judge_settings(manifest_of(files), config_of(files)[0]),
        plots=PLOTS if row["kind"] == "train" else {},
        costs=costs_of(files),
        health=health_of(files),
        blame=blame,
        roles=ROLES,
    )


def _live(played: int, run: dict[str, Any], files: RunFiles) -> dict[str, Any] | None:
    """Return the progress of a run that is not finished: steps, dialogues, elapsed time and ETA."""
    if run["state"] != "running":
        return None
    elapsed = time.time() - run["started"] if run["started"] else None
    if run["kind"] != "train":
        done, planned = run["played"], run["planned"]
        eta = elapsed * (planned - done) / done if elapsed and done and planned else None
        return {"elapsed": elapsed, "eta": eta, "done": done, "planned": planned, "step": None}
    step, steps = run["step"] or 0, run["steps"]
    left = steps - step if steps is not None else None
    planned = run["step_dialogues"] or 0
    eta = None
    if run["step_seconds"] and left is not None:
        evaluation = _evaluation_seconds(files, run["started"])
        finished_part = min(1.0, played / planned) if planned else 0.0
        eta = run["step_seconds"] * max(0.0, left - finished_part / 2) + evaluation
    return {
        "elapsed": elapsed,
        "eta": eta,
        "step": min(step + 1, steps) if steps else step + 1,
        "steps": steps,
        "done": played,
        "planned": planned,
        "evaluating": left == 0,
    }


def _grid_progress(run: dict[str, Any], grid: dict[str, Any]) -> dict[str, Any]:
    """Return elapsed time and ETA of an ablation: every run takes as long as the finished ones on average."""
    elapsed = time.time() - run["started"] if run["started"] else None
    done, planned = run["cells"]
    parts = [(row["step"] or 0) / row["steps"] for row in grid["running"] if row["steps"]]
    finished = done + sum(min(1.0, part) for part in parts)
    eta = elapsed * (planned - finished) / finished if elapsed and finished else None
    return {"elapsed": elapsed, "eta": eta, "done": done, "planned": planned}


def _evaluation_seconds(files: RunFiles, started: float | None) -> float:
    """Estimate the evaluation after training by the time that the one before it took."""
    ends = [stamp.changed / 1e9 for stamp in files.lines.values() if stamp.part == "before"]
    finished = any(stamp.part == "after" for stamp in files.lines.values())
    return max(0.0, max(ends) - started) if ends and started and not finished else 0.0


def configuration(request: Request) -> Response:
    """Settings, command line, versions and git commit of a run."""
    with reading(request) as db:
        row, files = requested_run(request, db, request.path_params["run"])
    config, problem = config_of(files)
    manifest = manifest_of(files)
    raw, _ = read_bytes(RunDir(files.root).config) if files.has(RunDir.config) else (None, "")
    return page(
        request,
        "configuration.html",
        run=row,
        tab="configuration",
        start=start_of(manifest),
        judge_settings=judge_settings(manifest, config),
        settings=settings_of(config) if config else [],
        manifest=settings_of(manifest),
        toml=printable(raw.decode("utf-8", "replace"))[:100_000] if raw else "",
        problem=problem,
    )


def scenarios(request: Request) -> Response:
    """One row per scenario of a run: before and after training, or one set compared with another."""
    params = Params(request)
    with reading(request) as db:
        row, _ = requested_run(request, db, request.path_params["run"])
        every = all_sets(request, db)
        own = [s for s in every if s["run"] == row["key"]]
        first, second = _two_of(params, own, every)
        table = sets.scenario_table(db, first["key"], second["key"] if second else "") if first else None
    sort = params.text("sort") or ("difference-up" if second else "scenario-up")
    if table:
        table["rows"] = ordered(table["rows"], sort, SCENARIO_COLUMNS)
    return page(
        request,
        "scenarios.html",
        run=row,
        tab="scenarios",
        own=own,
        others=[s for s in every if s["run"] != row["key"]][:300],
        a=first,
        b=second,
        table=table,
        sort=sort,
        query={"a": first["key"] if first else "", "b": second["key"] if second else ""},
    )


def _two_of(
    params: Params, own: list[dict[str, Any]], every: list[dict[str, Any]]
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the requested sets, else before and after training, else the run's last set alone."""
    by_key = {s["key"]: s for s in every}
    by_part = {s["part"]: s for s in own}
    if a := by_key.get(params.text("a")):
        return a, by_key.get(params.text("b"))
    if "before" in by_part and "after" in by_part:
        return by_part["before"], by_part["after"]
    return (own[0] if own else None), None


def figure(request: Request) -> Response:
    """The figure of an audit."""
    with reading(request) as db:
        _, files = requested_run(request, db, request.path_params["run"])
    png = judging.figure_of(files)
    if png is None:
        raise HTTPException(404, "This run has no audit figure.")
    return Response(png, media_type="image/png")


def overlay(request: Request) -> Response:
    keys = Params(request).texts("run")
    with reading(request) as db:
        rows = {key: queries.run_named(db, key) for key in keys[:OVERLAID]}
    runs = [row for row in rows.values() if row]
    drawn = [run for run in runs if _has_curves(run)]
    judges = sorted({run["context"]["judge"] for run in drawn if run["context"]["judge"]})
    return page(
        request,
        "overlay.html",
        drawn=drawn,
        scripted=[run for run in drawn if run["context"]["notice"]],
        undrawn=[run for run in runs if not _has_curves(run)],
        missing=[key for key, row in rows.items() if row is None],
        judges=judges,
        plots=PLOTS,
        more=max(0, len(keys) - OVERLAID),
    )


def _has_curves(run: dict[str, Any]) -> bool:
    return run["kind"] == "train" and (run["step"] is not None or run["dialogues"] > 0)


def figures(request: Request) -> Response:
    """The curves of the requested runs, as data."""
    with reading(request) as db:
        found = [requested_run(request, db, key) for key in Params(request).texts("run")[:OVERLAID]]
        runs = [
            PlottedRun(row["key"], row["name"], row["method"], steps_of(files), world_in(row["context"]))
            for row, files in found
        ]
        return as_json(run_figures(db, runs))


def grid_data(request: Request) -> Response:
    """The curves of an ablation grid, as data."""
    with reading(request) as db:
        row, files = requested_run(request, db, request.path_params["run"])
        if not row["grid"]:
            raise HTTPException(404, "This run is not an ablation.")
        grid = grid_of(db, row, files)
    runs = request.app.state.view.index.runs
    keys = [run["key"] for run in grid["runs"] if run["key"] in runs]
    return as_json(grid_figures(grid, {key: steps_of(runs[key]) for key in keys}))


def health_of(run: RunFiles) -> dict[str, Any] | None:
    """Return the simulator health of the last step, or of an evaluation."""
    steps = steps_of(run)
    health: object = steps[-1].get("health") if steps else None
    if health is None and run.has(RunDir.health):
        health = read_object(RunDir(run.root).health)[0]
    if not isinstance(health, dict) or not health.get("dialogues"):
        return None
    return {"step": steps[-1]["step"] if steps else None, "rows": findings(health)}


def costs_of(run: RunFiles) -> list[dict[str, Any]]:
    """Return calls, tokens and cost per role, over all processes. The cost is None without a price.

    The calls of a screening are counted by the runs inside it, one per policy.
    """
    names = {ledger for name in run.small if (ledger := ledger_name(name))}
    files = [run.root / name for name in sorted(names)]
    if run.has(RunDir.manifest) and kind_of(run.root) is Kind.SCREENING:
        policies = manifest_of(run).get("policies")
        folders = [run.root / name for name in (list(policies) if isinstance(policies, dict) else [])[:8]]
        inside = [f for f in folders if f.parent == run.root and f.is_dir() and not f.is_symlink()]
        files += [ledger for folder in inside for ledger in RunDir(folder).ledgers()]
    return read_ledger(files)[0]
