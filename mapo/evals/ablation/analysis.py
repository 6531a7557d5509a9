"""Analysis of the finished training runs of an ablation grid: method x reward x seed.

A *cell* is a method and a reward; its runs differ only in the seed. All runs have the same number of
dialogues, and runs of one seed share the initial model, the order of scenarios and the test jobs, so methods
are compared seed by seed (`paired.py`). `report.py` renders the result, `grid.py` lists the runs,
`processes.py` runs them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mapo.errors import InputError
from mapo.evals.ablation.paired import SeedComparison, claims, compare_seeds, corrected
from mapo.measure.epmq import weigh
from mapo.measure.stats import t_interval
from mapo.runs.contents import deduplicated
from mapo.runs.files import written_at
from mapo.scoring.context import ScoreContext, context_of_dialogues
from mapo.scoring.result import recompute
from mapo.store import BadLine, RunDir, read_dialogues, read_steps
from mapo.types import Dialogue

WINDOW = 3
"""Steps of the running mean; the score of a single step depends on the scenarios it drew."""


@dataclass(frozen=True, slots=True)
class GridCell:
    """One run of the grid."""

    method: str
    reward: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.method}_{self.reward}_seed{self.seed}"


@dataclass(frozen=True, slots=True)
class GridRun:
    """A finished run. `jobs` holds the EPM-Q of each test dialogue after training (EPM-Q is linear in the
    indices, so the score of a set is the mean over its dialogues)."""

    cell: GridCell
    summary: dict[str, Any]
    steps: list[dict[str, Any]]
    jobs: dict[tuple[str, str], float]
    context: ScoreContext | None = None
    """Judge, roles and scenarios of the test after training; None without a test."""

    def dialogues(self) -> list[float]:
        """Return the number of dialogues up to each step."""
        return [float(n) for n in np.cumsum([line["dialogues"] for line in self.steps])]

    def score(self) -> list[tuple[float, float]]:
        """Return (dialogues so far, training score) for each step."""
        rows = zip(self.dialogues(), self.steps, strict=True)
        return [(n, line["score"]) for n, line in rows if line.get("score") is not None]

    def smooth(self) -> list[tuple[float, float]]:
        """Return the running mean of the score."""
        points = self.score()
        width = min(WINDOW, len(points))
        return [
            (points[i][0], float(np.mean([s for _, s in points[i + 1 - width : i + 1]])))
            for i in range(width - 1, len(points))
            if width
        ]

    def need(self, score: float) -> float:
        """Return the dialogues needed to reach the smoothed score; infinite if it is never reached."""
        return next((n for n, s in self.smooth() if s >= score), math.inf)


Measure = Callable[[GridRun], float | None]


def _after(key: str, when: str = "after") -> Measure:
    return lambda run: run.summary[when][key] if run.summary.get(when) else None


def _gain(run: GridRun) -> float | None:
    before, after = run.summary.get("before"), run.summary.get("after")
    return after["epm_q"] - before["epm_q"] if before and after else None


def _gradient(run: GridRun) -> float | None:
    norms = [line["grad_norm"] for line in run.steps if line.get("grad_norm") is not None]
    return float(np.mean(norms)) if norms else None


def _end(run: GridRun) -> float | None:
    return run.smooth()[-1][1] if run.steps and run.score() else None


MEASURES: dict[str, Measure] = {
    "epm_q": _after("epm_q"),
    "before": _after("epm_q", "before"),
    "gain": _gain,
    "passes": _after("passes"),
    "tests": _after("n"),
    "grad_norm": _gradient,
    "score_end": _end,
}


# ---- reading


def read_run(root: Path, cell: GridCell) -> GridRun | None:
    """Read the run of a cell; None if it is not finished."""
    folder = root / cell.name
    path = RunDir(folder).summary
    if not path.exists():
        return None
    try:
        summary = json.loads(path.read_bytes())
        recorded = GridCell(summary["method"], summary["reward"], summary["seed"])
        float(summary["dialogues"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"the file is not the summary of a run ({error!r})",
            where=str(path),
            fix="Remove the folder and run the ablation again",
        ) from None
    if recorded != cell:
        raise InputError(
            f"the summary belongs to {recorded.name}, not {cell.name}",
            where=str(path),
            fix="Move the run to the folder of its name",
        )
    tests = _test_dialogues(folder)
    return GridRun(
        cell,
        summary,
        read_steps(RunDir(folder).metrics),
        _epm_q_by_job(folder, tests),
        context_of_dialogues(tests) if tests else None,
    )


def _test_dialogues(folder: Path) -> list[Dialogue]:
    """Return the judged dialogues of the test after training."""
    records = (
        (d.id, d.usable, written_at(file), d)
        for file in sorted(RunDir(folder).eval_of("after").glob("*.jsonl"))
        for d in read_dialogues(file)
        if not isinstance(d, BadLine)
    )
    return [d for d in deduplicated(records).values() if d.judged]


def _epm_q_by_job(folder: Path, tests: Sequence[Dialogue]) -> dict[tuple[str, str], float]:
    scores = {}
    for dialogue in tests:
        indices = recompute(dialogue, folder, None, None, dialogue.id).indices
        scores[dialogue.scenario, dialogue.id] = float(weigh(np.array(indices))[3])
    return scores


def _context(runs: Sequence[GridRun]) -> dict[str, Any]:
    """Return the context of the held-out scores, if it is known and the same in all runs."""
    contexts = {run.context for run in runs if run.context}
    return {"context": contexts.pop().as_json()} if len(contexts) == 1 else {}


# ---- the report


Grid = Mapping[tuple[str, str], Sequence[GridRun]]
"""The runs of each (method, reward), in the order of the grid."""


def analyse(runs: Sequence[GridRun], *, wanted: int = 0, reach: float | None = None) -> dict[str, Any]:
    """Return the content of ablation.json; `wanted` is the number of runs of the grid."""
    table: dict[tuple[str, str], list[GridRun]] = {}
    for run in runs:
        table.setdefault((run.cell.method, run.cell.reward), []).append(run)
    if not table:
        raise InputError("no run is finished", fix="Run `mapo ablate` first")
    target, source = (reach, "given") if reach is not None else _target(table)
    families = comparisons(table, target)
    return {
        "schema": "mapo.ablation/1",
        "runs": len(runs),
        "wanted": wanted or len(runs),
        "model": sorted({str(run.summary.get("model", "")) for run in runs}),
        **_context(runs),
        "reach": {"score": target, "source": source},
        "cells": [_row(*key, runs, target) for key, runs in table.items()],
        "curves": [_curve(*key, runs) for key, runs in table.items()],
        "paired": {name: [c.as_json() for c in family] for name, family in families.items()},
        "claims": claims(families, [reward for _, reward in table]),
        "notes": _notes(runs),
    }


def _row(method: str, reward: str, runs: Sequence[GridRun], target: float | None) -> dict[str, Any]:
    row: dict[str, Any] = {"method": method, "reward": reward, "seeds": [r.cell.seed for r in runs]}
    row["dialogues"] = max(r.summary["dialogues"] for r in runs)
    for name, measure in MEASURES.items():
        row[name] = _summary([measure(run) for run in runs])
    if target is not None:
        needs = [run.need(target) for run in runs]
        middle = float(np.median(needs))
        row["need"] = {
            "by_seed": [None if math.isinf(n) else n for n in needs],
            "reached": sum(map(math.isfinite, needs)),
            "median": middle if math.isfinite(middle) else None,
        }
    return row


def _summary(values: Sequence[float | None]) -> dict[str, Any]:
    known = [v for v in values if v is not None]
    mean = float(np.mean(known)) if known else None
    return {"mean": mean, "interval": t_interval(known), "by_seed": list(values)}


def _curve(method: str, reward: str, runs: Sequence[GridRun]) -> dict[str, Any]:
    at = {line["step"]: n for run in runs for line, n in zip(run.steps, run.dialogues(), strict=True)}
    lines = [line for run in runs for line in run.steps]
    validation = [(line["step"], line["validation"]["epm_q"]) for line in lines if line.get("validation")]
    return {
        "method": method,
        "reward": reward,
        "training": _points([(line["step"], line.get("score")) for line in lines], at),
        "validation": _points(validation, at),
    }


def _points(pairs: Sequence[tuple[int, float | None]], at: Mapping[int, float]) -> list[dict[str, Any]]:
    """Return mean and interval over seeds at each step."""
    by_step: dict[int, list[float]] = {}
    for step, value in pairs:
        if value is not None:
            by_step.setdefault(step, []).append(value)
    return [
        {"dialogues": at[s], "n": len(v), "mean": float(np.mean(v)), "interval": t_interval(v)}
        for s, v in sorted(by_step.items())
    ]


def _target(table: Grid) -> tuple[float | None, str]:
    """Return the final score of grpo with idr, or of the first cell if there is none."""
    key = ("grpo", "idr") if ("grpo", "idr") in table else next(iter(table))
    ends = [end for run in table[key] if (end := _end(run)) is not None]
    return (float(np.mean(ends)) if ends else None), f"the final score of {key[0]} with {key[1]}"


def comparisons(table: Grid, target: float | None) -> dict[str, list[SeedComparison]]:
    """Return families of comparisons, each corrected separately: mapo with every other method in score and in
    dialogues needed, batch with every other method in gradient norm, and the rewards with each other."""
    families: dict[str, list[SeedComparison]] = {}

    def family(name: str, what: str, pairs: Sequence[tuple[tuple[str, str], tuple[str, str]]]) -> None:
        present = [(a, b) for a, b in pairs if a in table and b in table]
        compared = [_compare(table, what, a, b, target) for a, b in present]
        if with_pairs := [c for c in compared if c.n]:
            families[name] = corrected(with_pairs)

    for reward in dict.fromkeys(reward for _, reward in table):
        others = [(method, r) for method, r in table if r == reward]
        for what, leader in (("epm_q", "mapo"), ("need", "mapo"), ("grad_norm", "batch")):
            family(f"{what}/{reward}", what, [((leader, reward), o) for o in others if o[0] != leader])
    methods = dict.fromkeys(method for method, _ in table)
    family("epm_q/rewards", "epm_q", [((method, "idr"), (method, "adr")) for method in methods])
    return families


def _compare(
    table: Grid, what: str, a: tuple[str, str], b: tuple[str, str], target: float | None
) -> SeedComparison:
    def numbers(key: tuple[str, str]) -> dict[int, float]:
        values = {run.cell.seed: _number(run, what, target) for run in table[key]}
        return {seed: value for seed, value in values.items() if value is not None}

    names = (a[0], b[0]) if a[1] == b[1] else (f"{a[0]}/{a[1]}", f"{b[0]}/{b[1]}")
    jobs = [{r.cell.seed: r.jobs for r in table[key]} if what == "epm_q" else None for key in (a, b)]
    return compare_seeds(what, *names, numbers(a), numbers(b), *jobs)


def _number(run: GridRun, what: str, target: float | None) -> float | None:
    if what != "need":
        return MEASURES[what](run)
    # A run that never reached the score counts with all its dialogues; it would need more.
    return None if target is None else min(run.need(target), float(run.summary["dialogues"]))


def _notes(runs: Sequence[GridRun]) -> list[str]:
    """Return notes on what makes the comparison unfair."""
    notes = []
    counts = sorted({run.summary["dialogues"] for run in runs})
    if len(counts) > 1:
        notes.append(f"runs differ in their number of dialogues: {', '.join(map(str, counts))}")
    for seed in sorted({run.cell.seed for run in runs}):
        starts = {MEASURES["before"](run) for run in runs if run.cell.seed == seed}
        if len(starts) > 1:
            notes.append(
                f"runs of seed {seed} start at different scores: {', '.join(sorted(map(str, starts)))}"
            )
    seeds = Counter((run.cell.method, run.cell.reward) for run in runs)
    if len(set(seeds.values())) > 1:
        notes.append(
            "cells differ in their number of finished seeds, so unpaired numbers compare different seeds"
        )
    return notes
