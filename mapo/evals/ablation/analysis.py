"""Analysis of the finished training runs of an ablation grid: combinations of settings x seeds.

A *row* of the analysis is one combination of the varied settings, such as a method and a reward; its runs
differ only in the seed. Runs of one seed share the order of scenarios and the test jobs, so combinations are
compared seed by seed (`paired.py`), and gradients by their peaks (`gradients.py`). `report.py` renders the
result, `cells.py` and `grid.py` list the runs, `processes.py` runs them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from mapo.errors import InputError
from mapo.evals.ablation.cells import METHOD, REWARD, GridCell, label_of, plain_text, toml_value
from mapo.evals.ablation.gradients import RunGradient, gradient_claims, run_gradient
from mapo.evals.ablation.paired import SeedComparison, claims, compare_seeds, corrected
from mapo.measure.epmq import weigh
from mapo.measure.stats import t_interval
from mapo.runs.contents import deduplicated, read_settings
from mapo.runs.files import written_at
from mapo.scoring.context import ScoreContext, context_of_dialogues
from mapo.scoring.result import recompute
from mapo.store import BadLine, RunDir, read_dialogues, read_steps
from mapo.types import Dialogue
from mapo.untrusted import parse_json, read_file

__all__ = ["GridCell", "GridRun", "analyse", "read_run"]

WINDOW = 3
"""Steps of the running mean; the score of a single step depends on the scenarios it drew."""


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
    training_judge: str = ""
    """The judge of the training dialogues; empty if there are none on disk."""

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
    return run_gradient(run.steps).mean


def _peak_gradient(run: GridRun) -> float | None:
    return run_gradient(run.steps).peak


def _end(run: GridRun) -> float | None:
    return run.smooth()[-1][1] if run.steps and run.score() else None


MEASURES: dict[str, Measure] = {
    "epm_q": _after("epm_q"),
    "before": _after("epm_q", "before"),
    "gain": _gain,
    "passes": _after("passes"),
    "tests": _after("n"),
    "grad_norm": _gradient,
    "grad_peak": _peak_gradient,
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
        summary = parse_json(read_file(path))
        recorded = _recorded_cell(folder, summary, cell)
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
        _training_judge(folder),
    )


def _recorded_cell(folder: Path, summary: Mapping[str, Any], cell: GridCell) -> GridCell:
    """Return the cell that a run belongs to by its summary and its config."""
    config, _ = read_settings(RunDir(folder).config)
    summarised = {METHOD: "method", REWARD: "reward"}
    settings = {}
    for key, value in cell.settings:
        if key in summarised:
            settings[key] = toml_value(summary[summarised[key]])
        else:
            found = _setting_of(config, key)
            settings[key] = value if found is None else toml_value(found)  # older runs lack newer settings
    return GridCell(tuple(settings.items()), summary["seed"])


def _setting_of(config: Mapping[str, Any], key: str) -> Any:
    """Return a setting by its dotted name; None if it is not there."""
    part: Any = config
    for name in key.split("."):
        part = part.get(name) if isinstance(part, Mapping) else None
    return part


def _training_judge(folder: Path) -> str:
    """Return the judge named in the first training dialogue on disk; empty if there is none."""
    for file in sorted(RunDir(folder).dialogues.glob("step_*.jsonl"))[:1]:
        for dialogue in islice(read_dialogues(file), 1):
            return "" if isinstance(dialogue, BadLine) else dialogue.cast.get("judge") or ""
    return ""


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


Settings = tuple[tuple[str, str], ...]
"""The varied settings of a row, as in `GridCell.settings`."""
Grid = Mapping[Settings, Sequence[GridRun]]
"""The runs of each combination of settings, in the order of the grid."""


def analyse(runs: Sequence[GridRun], *, wanted: int = 0, reach: float | None = None) -> dict[str, Any]:
    """Return the content of ablation.json; `wanted` is the number of runs of the grid."""
    table: dict[Settings, list[GridRun]] = {}
    for run in runs:
        table.setdefault(run.cell.settings, []).append(run)
    if not table:
        raise InputError("no run is finished", fix="Run `mapo ablate` first")
    target, source = (reach, "given") if reach is not None else _target(table)
    families = comparisons(table, target)
    return {
        "schema": "mapo.ablation/1",
        "runs": len(runs),
        "wanted": wanted or len(runs),
        "model": sorted({str(run.summary.get("model", "")) for run in runs}),
        "axes": _axes(table),
        **_context(runs),
        "reach": {"score": target, "source": source},
        "cells": [_row(settings, runs, target) for settings, runs in table.items()],
        "curves": [_curve(settings, runs) for settings, runs in table.items()],
        "paired": {name: [c.as_json() for c in family] for name, family in families.items()},
        "claims": [*claims(families, _claim_places(table)), *gradient_claims(_gradients(table))],
        "notes": _notes(runs),
    }


def _axes(table: Grid) -> list[dict[str, Any]]:
    """Return the varied settings: key, label and values, in the order of the grid."""
    keys = [key for key, _ in next(iter(table))]
    shown = [_shown(settings) for settings in table]
    return [
        {"key": key, "label": label_of(key), "values": list(dict.fromkeys(s[key] for s in shown))}
        for key in keys
    ]


def _shown(settings: Settings) -> dict[str, str]:
    return {key: plain_text(value) for key, value in settings}


def _identity(settings: Settings, runs: Sequence[GridRun]) -> dict[str, Any]:
    """Return what identifies a row: its varied settings, and the method and reward of its runs."""
    shown, summary = _shown(settings), runs[0].summary
    return {
        "method": shown.get(METHOD, str(summary.get("method", ""))),
        "reward": shown.get(REWARD, str(summary.get("reward", ""))),
        "settings": shown,
    }


def _row(settings: Settings, runs: Sequence[GridRun], target: float | None) -> dict[str, Any]:
    row = {**_identity(settings, runs), "seeds": [r.cell.seed for r in runs]}
    row["dialogues"] = max(r.summary["dialogues"] for r in runs)
    row["judges"] = {
        "training": sorted({r.training_judge for r in runs if r.training_judge}),
        "test": sorted({r.context.judge for r in runs if r.context}),
    }
    for name, measure in MEASURES.items():
        row[name] = _summary([measure(run) for run in runs])
    row["grad_spikes"] = _summary([run_gradient(run.steps).spikes for run in runs])
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


def _curve(settings: Settings, runs: Sequence[GridRun]) -> dict[str, Any]:
    at = {line["step"]: n for run in runs for line, n in zip(run.steps, run.dialogues(), strict=True)}
    lines = [line for run in runs for line in run.steps]
    validation = [(line["step"], line["validation"]["epm_q"]) for line in lines if line.get("validation")]
    return {
        **_identity(settings, runs),
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
    """Return the final score of grpo with idr, or of the first row if there is none."""
    wanted = {METHOD: "grpo", REWARD: "idr"}
    key = next((s for s in table if all(wanted.get(k, v) == v for k, v in _shown(s).items())), None)
    key = next(iter(table)) if key is None or METHOD not in _shown(key) else key
    ends = [end for run in table[key] if (end := _end(run)) is not None]
    return (float(np.mean(ends)) if ends else None), f"the final score of {in_words(_shown(key))}"


def in_words(shown: Mapping[str, str]) -> str:
    """Name a row: "grpo with idr", or "mapo with turn_weight 0.5, gamma 1"."""
    parts = [value if key in (METHOD, REWARD) else f"{label_of(key)} {value}" for key, value in shown.items()]
    if not parts:
        return "the runs"
    return f"{parts[0]} with {', '.join(parts[1:])}" if len(parts) > 1 else parts[0]


def without(settings: Settings, *keys: str) -> Settings:
    return tuple((key, value) for key, value in settings if key not in keys)


def place(settings: Settings) -> str:
    """Name what a family of comparisons holds fixed: the reward, and further settings with their labels."""
    shown = _shown(settings)
    return ", ".join(v if k in (METHOD, REWARD) else f"{label_of(k)} {v}" for k, v in shown.items())


def comparisons(table: Grid, target: float | None) -> dict[str, list[SeedComparison]]:
    """Return families of comparisons, each corrected separately.

    Along the methods: mapo with every other in score and in dialogues needed, batch with every other in
    gradient norm. Along the rewards: idr with adr. Along any other setting: its first value with every other
    in score. A comparison along one setting holds all others fixed. Held-out scores by different judges are
    not compared.
    """
    families: dict[str, list[SeedComparison]] = {}

    def family(name: str, what: str, pairs: Sequence[tuple[Settings, Settings]]) -> None:
        compared = [
            _compare(table, what, a, b, target)
            for a, b in pairs
            if a in table and b in table and (what != "epm_q" or _same_judge(table[a], table[b]))
        ]
        if with_pairs := [c for c in compared if c.n]:
            families[name] = corrected(with_pairs)

    for axis in (key for key, _ in next(iter(table))):
        fixed = dict.fromkeys(without(settings, axis) for settings in table)
        if axis == REWARD:
            pairs = [(_set(table, rest, axis, '"idr"'), _set(table, rest, axis, '"adr"')) for rest in fixed]
            family("epm_q/rewards", "epm_q", pairs)
            continue
        for rest in fixed:
            others = [settings for settings in table if without(settings, axis) == rest]
            leaders = {"epm_q": "mapo", "need": "mapo", "grad_norm": "batch"} if axis == METHOD else {}
            first = dict(others[0])[axis]
            for what, leader in (leaders or {"epm_q": plain_text(first)}).items():
                a = next((s for s in others if _shown(s)[axis] == leader), None)
                name = place(rest) if axis == METHOD else _joined(label_of(axis), place(rest))
                if a is not None:
                    family(f"{what}/{name}", what, [(a, b) for b in others if b != a])
    return families


def _joined(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _set(table: Grid, rest: Settings, key: str, value: str) -> Settings:
    """Return `rest` with one more setting, at its place in the grid."""
    order = [k for k, _ in next(iter(table))]
    settings = {**dict(rest), key: value}
    return tuple((k, settings[k]) for k in order)


def _same_judge(a: Sequence[GridRun], b: Sequence[GridRun]) -> bool:
    return len({run.context.judge for run in (*a, *b) if run.context}) <= 1


def _compare(table: Grid, what: str, a: Settings, b: Settings, target: float | None) -> SeedComparison:
    def numbers(key: Settings) -> dict[int, float]:
        values = {run.cell.seed: _number(run, what, target) for run in table[key]}
        return {seed: value for seed, value in values.items() if value is not None}

    differing = {key for key, value in a if dict(b)[key] != value}
    name_a, name_b = (_compared_name(settings, table[settings], differing) for settings in (a, b))
    jobs = [{r.cell.seed: r.jobs for r in table[key]} if what == "epm_q" else None for key in (a, b)]
    return compare_seeds(what, name_a, name_b, numbers(a), numbers(b), *jobs)


def _compared_name(settings: Settings, runs: Sequence[GridRun], differing: Collection[str]) -> str:
    """Name a row among those it is compared with. Rewards are compared for all methods in one family, so
    their names begin with the method."""
    if REWARD not in differing:
        return "/".join(plain_text(value) for key, value in settings if key in differing)
    return "/".join([_identity(settings, runs)["method"], *_shown(without(settings, METHOD)).values()])


def _number(run: GridRun, what: str, target: float | None) -> float | None:
    if what != "need":
        return MEASURES[what](run)
    # A run that never reached the score counts with all its dialogues; it would need more.
    return None if target is None else min(run.need(target), float(run.summary["dialogues"]))


def _claim_places(table: Grid) -> list[str]:
    """Return the places at which the paper's claims can be tested, the one with idr first."""
    rests = dict.fromkeys(without(settings, METHOD) for settings in table)
    return [place(rest) for rest in sorted(rests, key=lambda rest: _shown(rest).get(REWARD, "idr") != "idr")]


def _gradients(table: Grid) -> dict[str, dict[str, dict[int, RunGradient]]]:
    """Return the gradients by place, method and seed."""
    found: dict[str, dict[str, dict[int, RunGradient]]] = {}
    for settings, runs in table.items():
        method = _identity(settings, runs)["method"]
        by_seed = {run.cell.seed: run_gradient(run.steps) for run in runs}
        found.setdefault(place(without(settings, METHOD)), {})[method] = by_seed
    return found


def _notes(runs: Sequence[GridRun]) -> list[str]:
    """Return notes on what makes the comparison unfair."""
    notes = []
    counts = sorted({run.summary["dialogues"] for run in runs})
    if len(counts) > 1:
        notes.append(f"runs differ in their number of dialogues: {', '.join(map(str, counts))}")
    varied = {key for run in runs for key, _ in run.cell.settings}
    other_start = [key for key in varied if key.partition(".")[0] in ("model", "roles", "scenarios", "eval")]
    for seed in sorted({run.cell.seed for run in runs}) if not other_start else ():
        starts = {MEASURES["before"](run) for run in runs if run.cell.seed == seed}
        if len(starts) > 1:
            notes.append(
                f"runs of seed {seed} start at different scores: {', '.join(sorted(map(str, starts)))}"
            )
    seeds = Counter(run.cell.settings for run in runs)
    if len(set(seeds.values())) > 1:
        notes.append(
            "cells differ in their number of finished seeds, so unpaired numbers compare different seeds"
        )
    trained = sorted({run.training_judge for run in runs if run.training_judge})
    if len(trained) > 1:
        notes.append(
            f"runs were trained by different judges ({', '.join(trained)}): training scores, learning curves "
            "and dialogues needed are not comparable across them"
        )
    tested = sorted({run.context.judge for run in runs if run.context})
    if len(tested) > 1:
        notes.append(
            f"held-out tests have different judges ({', '.join(tested)}): their scores are not comparable. "
            "Set eval.judge to have one judge in all tests, or judge them again with mapo judge swap"
        )
    return notes
