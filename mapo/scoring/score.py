"""Recomputed dialogues -> one score a model, with intervals over scenarios."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mapo.errors import InputError
from mapo.measure.epmq import INDICES, Composite, composite, weigh
from mapo.measure.potential import profile_named
from mapo.measure.rubric import Rubric
from mapo.measure.stats import FEWEST, Floats, bootstrap
from mapo.scoring.folders import Folder, read_folders
from mapo.scoring.result import Result, recompute
from mapo.types import Dialogue

BY = ("case", "category", "axis")
PARTS = ("outcome", "efficiency", "stability", "epm_q")


@dataclass(frozen=True, slots=True)
class Score:
    """A set of dialogues, scored. `intervals` are over its `cases`, over the dialogues where there is one
    case; None for too few (`stats.FEWEST`)."""

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

    def as_json(self, label: str = "model") -> dict[str, Any]:
        return {
            label: self.name,
            "rubric": self.rubric,
            "profile": self.profile,
            "n": self.n,
            "passes": self.passes,
            "indices": self.composite.indices,
            **{part: getattr(self.composite, part) for part in PARTS},
            "intervals": self.intervals,
            "turns": self.turns,
            "unscored_turns": self.unscored,
            "endings": self.endings,
        }


@dataclass(frozen=True, slots=True)
class ModelScore:
    """One model's score, broken down if asked for, and what its files disagree on or leave out."""

    score: Score
    by: dict[str, Score]
    differences: list[str]
    notes: list[str]

    def as_json(self) -> dict[str, Any]:
        rows = [score.as_json("key") for score in self.by.values()]
        told = {"differences": self.differences, "notes": self.notes}
        return {**self.score.as_json(), **({"by": rows} if rows else {}), **told}


@dataclass(frozen=True, slots=True)
class Scoring:
    """All models found, and everything that could not be used. `trainings` are the folders whose training
    dialogues were scored, and of how many steps."""

    models: list[ModelScore]
    bad: list[str]
    torn: list[str]
    broken: int
    trainings: dict[Path, int]


def score(
    root: Path, *, profile: str | None = None, by: str | None = None, rubric: Rubric | None = None
) -> Scoring:
    """Score every model below `root`; one bad file costs that file alone."""
    if by is not None and by not in BY:
        raise InputError(f"cannot group by '{by}'", fix=f"Use one of: {', '.join(BY)}")
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
    """Dialogues of one folder, model, rubric and profile belong together; names say what tells them apart."""
    found: dict[tuple[Path, str, str, str], list[Result]] = {}
    for folder in folders:
        for result in folder.results:
            kind = (result.path.rubric.name, result.path.profile.name)
            found.setdefault((folder.path, result.model, *kind), []).append(result)
    seen = Counter(model for _, model, _, _ in found)
    kinds = {(rubric, profile) for _, _, rubric, profile in found}
    named = []
    for (path, model, rubric, profile), results in found.items():
        name = model if seen[model] == 1 else f"{path.name}/{model}"
        named.append((f"{name} ({rubric}, {profile})" if len(kinds) > 1 else name, results))
    return named


def _grouped(results: Sequence[Result], by: str | None) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in results if by else ():
        key = {"case": result.case, "axis": result.axis}.get(by or "", result.tags.get("category", "unknown"))
        groups.setdefault(key, []).append(result)
    return dict(sorted(groups.items()))


def score_dialogues(name: str, dialogues: Sequence[Dialogue], rubric: Rubric) -> Score | None:
    """The score of dialogues at hand; None if none of them has a judged turn."""
    usable = [d for d in dialogues if d.judged]
    return score_results(name, [recompute(d, Path(), None, rubric, d.id) for d in usable]) if usable else None


def score_results(name: str, results: Sequence[Result]) -> Score:
    """Recomputed dialogues of one model, rubric and profile, as one set."""
    rows = np.array([r.indices for r in results], dtype=np.float64)
    drawn = _by_case(rows, results)
    ends = bootstrap(drawn, lambda means: np.concatenate([means, weigh(means)], axis=-1))
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
        if ends is None or len(drawn) < FEWEST
        else {k: (float(lo), float(hi)) for k, (lo, hi) in zip(names, ends, strict=True)},
        cases=len({r.case for r in results}),
    )


def _by_case(rows: Floats, results: Sequence[Result]) -> Floats:
    """One row a case: dialogues of one scenario are alike, and resampling them one by one would make
    the interval too narrow. The cases of a single one say nothing; then its dialogues must do."""
    cases = [r.case for r in results]
    if len(set(cases)) < 2:
        return rows
    return np.array([rows[[c == case for c in cases]].mean(axis=0) for case in dict.fromkeys(cases)])
