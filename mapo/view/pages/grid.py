"""The page of an ablation: settings x seeds as a table, with learning curves and held-out scores."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from statistics import fmean
from typing import Any

from mapo.errors import InputError
from mapo.evals.ablation.cells import GridCell, iter_cells, label_of
from mapo.measure.stats import t_interval
from mapo.runs.contents import number
from mapo.scoring.reference import reference_lines
from mapo.scripted.world import World
from mapo.show.figures import Look, looks_of, rgba
from mapo.view.index import queries
from mapo.view.index.context import world_in
from mapo.view.index.files import RunFiles, key_of
from mapo.view.pages.charts import Steps, Trace, label, reference_traces

CELLS = 400
"""Rows of a grid, and seeds of each, that are shown."""
BESIDE = 0.12
"""Distance of the points of single seeds from their mean, in categories of the x axis."""


def grid_of(db: sqlite3.Connection, run: dict[str, Any], files: RunFiles) -> dict[str, Any]:
    """Return the rows of a grid (combinations of settings), each with the runs of its seeds and their
    means."""
    grid = run["grid"]
    prefix = "" if run["key"] == "~" else f"{run['key']}:"
    cells: list[dict[str, Any]] = []
    for one in islice(_combinations(grid["vary"]), CELLS):
        seeds = []
        for seed in grid["seeds"][:CELLS]:
            name = GridCell(one.settings, seed).name
            seeds.append({"seed": seed, "name": name, "run": queries.run_named(db, prefix + key_of(name))})
        values = list(one.shown.values())
        rest = [f"{label_of(key)} {value}" for key, value in list(one.shown.items())[1:]]
        cells.append(
            {"values": values, "line": values[0] if values else "all runs", "column": ", ".join(rest)}
            | {"seeds": seeds, **_summary(seeds)}
        )
    known = [s["run"] for cell in cells for s in cell["seeds"] if s["run"]]
    contexts = [row["context"] for row in known if row["context"]["judge"]]
    scored = [cell for cell in cells if cell["after"]]
    labels = [label_of(key) for key in grid["vary"]]
    return {
        "cells": cells,
        "labels": [name[:1].upper() + name[1:] for name in labels],
        "sizes": [*zip(labels, map(len, grid["vary"].values()), strict=True), ("seed", len(grid["seeds"]))],
        "lines": list(dict.fromkeys(cell["line"] for cell in cells)),
        "columns": list(dict.fromkeys(cell["column"] for cell in cells)),
        "seeds": grid["seeds"],
        "runs": known,
        "missing": [s["name"] for cell in cells for s in cell["seeds"] if s["run"] is None],
        "judges": sorted({context["judge"] for context in contexts}),
        "trained_by": any(key.startswith("roles.") for key in grid["vary"]),
        "context": contexts[0] if contexts else None,
        "best": max(scored, key=lambda cell: cell["after"]["mean"]) if scored else None,
        "folder": files.name,
        "changed": max([run["changed"], *(row["changed"] for row in known)]),
        "running": [row for row in known if row["state"] == "running"],
    }


def _combinations(axes: Mapping[str, Sequence[Any]]) -> Iterator[GridCell]:
    """Yield the rows of a grid; values that cannot be settings are skipped."""
    try:
        yield from iter_cells({"vary": axes, "seeds": [0]})
    except InputError:
        return


def _summary(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    finished = [s["run"] for s in seeds if s["run"] and s["run"]["after"]]
    gains = [r["after"]["epm_q"] - r["before"]["epm_q"] for r in finished if r["before"]]
    passes = [
        r["after"]["passes"] / r["after"]["n"]
        for r in finished
        if r["after"]["n"] and r["after"]["passes"] is not None
    ]
    return {
        "finished": len(finished),
        "after": _over_seeds([r["after"]["epm_q"] for r in finished]),
        "gain": _over_seeds(gains),
        "passes": fmean(passes) if passes else None,
    }


def _over_seeds(values: Sequence[float]) -> dict[str, Any] | None:
    if not values:
        return None
    interval = t_interval(values)
    return {"mean": fmean(values), "interval": interval, "values": list(values)}


# ---- charts


def grid_figures(grid: dict[str, Any], steps: Mapping[str, Steps]) -> dict[str, Any]:
    """Return learning curves and held-out scores: a line per value of the first varied setting, a chart per
    combination of the others. `steps` is keyed by run."""
    looks = dict(zip(grid["lines"], looks_of(grid["lines"]), strict=True))
    world = world_in(grid["context"])
    figures: dict[str, Any] = {}
    ends = _shared_range(grid, steps, world)
    for i, column in enumerate(grid["columns"]):
        cells = [cell for cell in grid["cells"] if cell["column"] == column]
        curves = [trace for cell in cells for trace in _curve(cell, looks[cell["line"]], steps)]
        if curves:
            xs = [x for trace in curves for x in trace["x"]]
            layout: dict[str, Any] = {
                "xaxis": {"title": {"text": "step"}},
                "yaxis": {"title": {"text": "EPM-Q in training"}, "range": ends},
            }
            layout["xaxis"] |= {"dtick": 1} if max(xs) - min(xs) <= 12 else {}
            figures[f"curve_{i}"] = {
                "data": [*curves, *reference_traces(world, min(xs), max(xs))],
                "layout": layout,
            }
        if any(cell["after"] for cell in cells):
            figures[f"test_{i}"] = _held_out(cells, looks, world, ends)
    return figures


def _shared_range(grid: dict[str, Any], steps: Mapping[str, Steps], world: World | None) -> list[float]:
    """Return one range of EPM-Q for all charts of a grid."""
    values = [score.epm_q for score in reference_lines(world)]
    values += [value for lines in steps.values() for value in _points(lines).values()]
    for cell in grid["cells"]:
        if cell["after"]:
            values += [*cell["after"]["values"], *(cell["after"]["interval"] or ())]
    low, high = min(values, default=0.0), max(values, default=100.0)
    margin = 0.08 * (high - low) or 1.0
    return [low - margin, high + margin]


def _curve(cell: dict[str, Any], look: Look, lines: Mapping[str, Steps]) -> list[Trace]:
    """Return the mean training score of a cell by step, and the band between its lowest and highest seed."""
    curves = [_points(lines.get(seed["run"]["key"], ())) for seed in cell["seeds"] if seed["run"]]
    steps = sorted({step for curve in curves for step in curve})
    values = {step: [curve[step] for curve in curves if step in curve] for step in steps}
    if not steps:
        return []
    line: Trace = {
        "type": "scatter",
        "mode": "lines+markers" if len(steps) < 60 else "lines",
        "name": label(cell["line"]),
        "x": steps,
        "y": [fmean(values[step]) for step in steps],
        "line": {"color": look.colour, "dash": look.dash, "width": 2},
        "marker": {"size": 6, "symbol": look.symbol},
        "showlegend": True,
    }
    if all(len(v) < 2 for v in values.values()):
        return [line]
    band: Trace = {
        "type": "scatter",
        "mode": "lines",
        "x": [*steps, *reversed(steps)],
        "y": [*(max(values[s]) for s in steps), *(min(values[s]) for s in reversed(steps))],
        "fill": "toself",
        "fillcolor": rgba(look.colour, 0.14),
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
        "name": f"{label(cell['line'])}, range over seeds",
    }
    return [band, line]


def _points(steps: Steps) -> dict[int, float]:
    """Return the training score by step."""
    return {line["step"]: v for line in steps if (v := number(line.get("score"))) is not None}


def _held_out(
    cells: Sequence[dict[str, Any]], looks: Mapping[str, Look], world: World | None, ends: list[float]
) -> dict[str, Any]:
    """Return the held-out EPM-Q per value: each seed as a point, the mean with its interval over seeds."""
    data: list[Trace] = []
    cells = [cell for cell in cells if cell["after"]]
    for at, cell in enumerate(cells):
        look, after = looks[cell["line"]], cell["after"]
        name = label(cell["line"])
        point: Trace = {
            "type": "scatter",
            "mode": "markers",
            "name": f"{name}, mean",
            "x": [at],
            "y": [after["mean"]],
            "marker": {"size": 9, "symbol": look.symbol, "color": look.colour},
            "showlegend": False,
        }
        if after["interval"]:
            low, high = after["interval"]
            point["error_y"] = {
                "type": "data",
                "symmetric": False,
                "array": [high - after["mean"]],
                "arrayminus": [after["mean"] - low],
                "color": look.colour,
            }
        seeds: Trace = {
            "type": "scatter",
            "mode": "markers",
            "name": f"{name}, one seed",
            "x": [at + BESIDE] * len(after["values"]),
            "y": after["values"],
            "marker": {"size": 7, "symbol": f"{look.symbol}-open", "color": look.colour},
            "showlegend": False,
        }
        data += [seeds, point]
    left, right = -0.5, len(cells) - 0.5
    layout: dict[str, Any] = {
        "xaxis": {
            "range": [left, right],
            "tickvals": list(range(len(cells))),
            "ticktext": [label(cell["line"]) for cell in cells],
        },
        "yaxis": {"title": {"text": "EPM-Q after training"}, "range": ends},
    }
    return {"data": [*data, *reference_traces(world, left, right)], "layout": layout}
