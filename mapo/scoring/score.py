"""Scores of recomputed dialogues: one per model, with intervals over scenarios."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mapo.errors import InputError
from mapo.measure.alignment import mean_alignment, mean_dynamic_alignment
from mapo.measure.axes import Movement, movement_of_paths
from mapo.measure.epmq import INDICES, Composite, composite, weigh
from mapo.measure.potential import profile_named
from mapo.measure.rubric import Rubric
from mapo.measure.stats import MIN_ROWS, Floats, bootstrap
from mapo.scoring.attribution import Attribution, attribution_of
from mapo.scoring.context import ScoreContext, context_of_results
from mapo.scoring.folders import Folder, read_folders
from mapo.scoring.result import Result, recompute
from mapo.types import Dialogue

BY = ("case", "category", "axis", "difficulty", "dialogue")
PARTS = ("outcome", "efficiency", "stability", "epm_q")


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a set of dialogues, and the `context` it must be read in.

    `intervals` are over the `cases` (scenarios), or over the dialogues if there is only one case. They are
    None for fewer than `stats.MIN_ROWS`.
    """

    name: str
    rubric: str
    profile: str
    n: int
    passes: int
    turns: float
    unscored: int
    endings: dict[str, int]
    composite: Composite
    intervals: dict[str, tuple[float, float]] | None
    cases: int
    context: ScoreContext
    unmet: int = 0
    """Passes that leave an axis with a deficit outside the target zone."""
    alignment: float = 0.0
    dynamic_alignment: float = 0.0
    """Mean alignment of steps with the fixed and with the current direction (`mapo.measure.alignment`)."""
    movement: Movement = field(default_factory=Movement)
    """Mean reward per axis and regression over the scored turns (`mapo.measure.axes`)."""
    faults: Attribution = field(default_factory=Attribution)
    """Faults of the roles, and whose fault the failed dialogues were (`mapo.scoring.attribution`)."""

    def as_json(self, label: str = "model") -> dict[str, Any]:
        return {
            label: self.name,
            "rubric": self.rubric,
            "profile": self.profile,
            "context": self.context.as_json(),
            "n": self.n,
            "passes": self.passes,
            "passes_unmet": self.unmet,
            "alignment": self.alignment,
            "dynamic_alignment": self.dynamic_alignment,
            **self.movement.as_json(),
            "indices": self.composite.indices,
            **{part: getattr(self.composite, part) for part in PARTS},
            "intervals": self.intervals,
            "turns": self.turns,
            "unscored_turns": self.unscored,
            "endings": self.endings,
            **({"faults": self.faults.as_json()} if self.faults.kinds else {}),
        }


@dataclass(frozen=True, slots=True)
class ModelScore:
    """The score of one model, its breakdown (`by`), and remarks about its files.

    `differences` lists recorded numbers that differ from the recomputed ones, `notes` irregular forms.
    """

    score: Score
    by: dict[str, Score]
    differences: list[str]
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        rows = [score.as_json("key") for score in self.by.values()]
        remarks = {"differences": self.differences, "notes": self.notes}
        return {**self.score.as_json(), **({"by": rows} if rows else {}), **remarks}


@dataclass(frozen=True, slots=True)
class Scoring:
    """The scores of all models below a folder, and what could not be used.

    `bad` lists unusable files and lines, `torn` lines cut off by a kill, `broken` counts broken dialogues.
    `trainings` maps folders whose training dialogues were scored to their number of steps.
    """

    models: list[ModelScore]
    bad: list[str]
    torn: list[str]
    broken: int
    trainings: dict[Path, int]


def score(
    root: Path, *, profile: str | None = None, by: str | None = None, rubric: Rubric | None = None
) -> Scoring:
    """Score every model below `root`. Unusable files are listed and skipped."""
    if by is not None and by not in BY:
        raise InputError(
            f"scores cannot be grouped by '{by}'", where="--by", fix=f"Use one of: {', '.join(BY)}"
        )
    if profile is not None:
        profile_named(profile)
    folders = read_folders(root, profile, rubric)
    models = [
        ModelScore(
            score_results(name, results),
            {key: score_results(key, rows) for key, rows in _grouped(results, by).items()},
            [line for r in results for line in r.differences],
            [line for r in results for line in r.notes],
        )
        for name, results in _by_model(folders)
    ]
    return Scoring(
        models,
        [line for f in folders for line in f.bad],
        [line for f in folders for line in f.torn],
        sum(len(f.broken) for f in folders),
        {f.path: len(f.steps) for f in folders if f.steps},
    )


def _by_model(folders: Sequence[Folder]) -> list[tuple[str, list[Result]]]:
    """Group dialogues by folder, model, rubric and profile. Names include what distinguishes the groups."""
    groups: dict[tuple[Path, str, str, str], list[Result]] = {}
    for folder in folders:
        for result in folder.results:
            kind = (result.path.rubric.name, result.path.profile.name)
            groups.setdefault((folder.path, result.model, *kind), []).append(result)
    folders_of = Counter(model for _, model, _, _ in groups)
    kinds = {(rubric, profile) for _, _, rubric, profile in groups}
    named = []
    for (path, model, rubric, profile), results in groups.items():
        name = model if folders_of[model] == 1 else f"{path.name}/{model}"
        named.append((f"{name} ({rubric}, {profile})" if len(kinds) > 1 else name, results))
    return named


def _grouped(results: Sequence[Result], by: str | None) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in results if by else ():
        own = {"case": result.case, "axis": result.axis, "dialogue": result.id or result.case}
        groups.setdefault(own.get(by or "") or result.tags.get(by or "", "unknown"), []).append(result)
    return dict(sorted(groups.items()))


def score_dialogues(name: str, dialogues: Sequence[Dialogue], rubric: Rubric) -> Score | None:
    """Return the score of dialogues in memory, or None if none of them has a judged turn."""
    usable = [d for d in dialogues if d.judged]
    return score_results(name, [recompute(d, Path(), None, rubric, d.id) for d in usable]) if usable else None


def score_results(name: str, results: Sequence[Result]) -> Score:
    """Return the score of recomputed dialogues of one model, rubric and profile."""
    rows = np.array([r.indices for r in results], dtype=np.float64)
    units = _by_case(rows, results)
    intervals = bootstrap(units, lambda means: np.concatenate([means, weigh(means)], axis=-1))
    names = (*INDICES, *PARTS)
    return Score(
        name=name,
        rubric=results[0].path.rubric.name,
        profile=results[0].path.profile.name,
        n=len(results),
        passes=sum(r.passed for r in results),
        turns=float(np.mean([r.path.now.turn for r in results])),
        unscored=sum(r.unscored for r in results),
        endings=dict(Counter(r.ending.reason.value if r.ending else "unfinished" for r in results)),
        composite=composite(rows),
        intervals=None
        if intervals is None or len(units) < MIN_ROWS
        else {k: (float(low), float(high)) for k, (low, high) in zip(names, intervals, strict=True)},
        cases=len({r.case for r in results}),
        context=context_of_results(results),
        unmet=sum(r.passed and bool(r.unmet) for r in results),
        alignment=_mean([mean_alignment(r.path) for r in results]),
        dynamic_alignment=_mean([mean_dynamic_alignment(r.path) for r in results]),
        movement=movement_of_paths(r.path for r in results),
        faults=attribution_of((r.ending, r.faults) for r in results),
    )


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else 0.0


def _by_case(rows: Floats, results: Sequence[Result]) -> Floats:
    """Return one row per scenario: dialogues of one scenario are similar, so resampling them separately would
    make the interval too narrow. With a single scenario, return its dialogues."""
    cases = [r.case for r in results]
    if len(set(cases)) < 2:
        return rows
    return np.array([rows[[c == case for c in cases]].mean(axis=0) for case in dict.fromkeys(cases)])
