"""Comparison of models: one row per model, one column per score, and differences from the first model.

Two numbers share a column only if they mean the same: same judge, rules, data, prompts and cases. Differences
are paired by case over the cases that both models have, repeats averaged: mean, 95 % bootstrap interval over
cases, and a sign-flip test with Holm's correction over the whole table. Both describe how the result would
vary with other cases of this kind, not with another run or another judge.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mapo.errors import InputError
from mapo.evals.compare.columns import Column, Meaning, columns_of, meaning_of
from mapo.evals.compare.entries import SCORES, Case, Entry, count, read_bench
from mapo.evals.compare.entries_empa import EMPA, read_empa, read_training
from mapo.measure.stats import Interval, bootstrap, holm, reportable, sign_flip
from mapo.runs.kind import Kind, kind_of
from mapo.store import RunDir

ORDER = [(EMPA, name) for name in ("passes", "EPM-Q")] + [(b, n) for b, ns in SCORES.items() for n in ns]
"""The order of columns: the paper's table, then v2."""
RESAMPLES = 10_000
FEW = 10
"""Number of common cases below which a note warns about a comparison."""


@dataclass(frozen=True, slots=True)
class Difference:
    """`model` minus `baseline` over `n` common cases, in points of the score. `missing` counts cases without
    a score because a run is incomplete."""

    model: str
    baseline: str
    column: str
    n: int
    mean: float
    interval: Interval | None
    p: float
    p_holm: float | None = None
    missing: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    models: list[str]
    columns: list[Column]
    cells: dict[tuple[str, str], Entry]
    """Entries by model and column label."""
    differences: list[Difference]
    notes: list[str]

    def difference(self, model: str, label: str, baseline: str | None = None) -> Difference | None:
        """Return the difference of a model from the first model, or from `baseline`."""
        wanted = (model, label, baseline or self.models[0])
        return next((d for d in self.differences if (d.model, d.column, d.baseline) == wanted), None)

    @property
    def baselines(self) -> list[str]:
        """The models that others are compared with."""
        return list(dict.fromkeys(d.baseline for d in self.differences))


def compare(runs: Sequence[str]) -> Comparison:
    """Compare runs. A run is a folder, or NAME=FOLDER."""
    return compared([entry for run in runs for entry in read_run(run)])


def read_run(run: str) -> list[Entry]:
    """Read the scores in a folder of results of any kind."""
    name, root = named(run)
    kind = kind_of(root)
    if kind.has_result:
        if not os.path.lexists(RunDir(root).result):
            problem = f"The run has no {RunDir.result.name}: it is not finished."
            raise InputError(problem, where=str(root), fix="Run it with --resume")
        return read_bench(root, name)
    if kind is Kind.TRAINING:
        return read_training(root, name)
    return _all_below(root, _runs_in(root), name) if kind is Kind.RUNS else read_empa(root, name)


def _runs_in(root: Path) -> list[Path]:
    """Return the runs and folders of EMPA result files in a folder."""
    ours = (RunDir.manifest.name, RunDir.result.name, RunDir.dialogues.name, "*_result.json")
    return [f for f in sorted(root.iterdir()) if f.is_dir() and any(any(f.glob(name)) for name in ours)]


def _all_below(root: Path, below: Sequence[Path], name: str | None) -> list[Entry]:
    """Read every run in a folder of runs."""
    found = [entry for folder in below for entry in read_run(str(folder))]
    if name is not None and len({entry.model for entry in found}) > 1:
        fix = f"Leave out '{name}=', or name each folder"
        raise InputError("The folder holds several models.", where=str(root), fix=fix)
    return [replace(entry, model=name or entry.model) for entry in found]


def named(run: str) -> tuple[str | None, Path]:
    """Split NAME=FOLDER into name and folder. An existing folder whose name contains "=" is that folder."""
    name, equals, folder = run.partition("=")
    if not equals or Path(run).expanduser().exists():
        return None, Path(run).expanduser()
    if not name.strip() or not folder:
        raise InputError(f"'{run}' names nothing", fix="Give a folder, or NAME=FOLDER")
    return name.strip(), Path(folder).expanduser()  # the shell does not expand ~ after "="


def compared(entries: Sequence[Entry]) -> Comparison:
    """Arrange entries in columns and compare them with the first model's."""
    models = list(dict.fromkeys(entry.model for entry in entries))
    by_key: dict[tuple[Meaning, str], list[Entry]] = {}
    for entry in sorted(entries, key=lambda e: ORDER.index((e.benchmark, e.name))):
        by_key.setdefault((meaning_of(entry), entry.chosen), []).append(entry)
    columns = columns_of(by_key)
    cells: dict[tuple[str, str], Entry] = {}
    for column, found in zip(columns, by_key.values(), strict=True):
        for entry in found:
            cells[entry.model, column.label] = _one(cells.get((entry.model, column.label)), entry, column)
    differences, notes = _differences(models, columns, cells)
    notes = [*_missing(columns, cells), *notes, *_sampling(columns, cells)]
    return Comparison(models, columns, cells, differences, list(dict.fromkeys(notes)))


def _one(there: Entry | None, entry: Entry, column: Column) -> Entry:
    """Check that a model has one result per column; the same result may be given twice."""
    if there is None or there == replace(entry, source=there.source):
        return entry
    raise InputError(
        f"two results of '{entry.model}' for {column.label} that disagree: {there.source} and {entry.source}",
        fix="Leave one out, or give them names: a=FOLDER b=FOLDER",
    )


# ---- differences


def _differences(
    models: Sequence[str], columns: Sequence[Column], cells: Mapping[tuple[str, str], Entry]
) -> tuple[list[Difference], list[str]]:
    """Return the differences of every model from the first and from the model it was trained from, with
    notes."""
    first, *others = models
    found: list[Difference] = []
    notes: list[str] = []
    for model in others:
        pairs, told = _against(model, first, columns, cells)
        if not pairs:
            told.append(f"{model}: no score that compares with one of {first}")
        own = {e.baseline for (name, _), e in cells.items() if name == model} - {"", first, model}
        for before in sorted(own):
            more, also = _against(model, before, columns, cells)
            pairs, told = [*pairs, *more], [*told, *also]
        found += pairs
        notes += told
    corrected = holm([d.p for d in found])
    return [replace(d, p_holm=p) for d, p in zip(found, corrected, strict=True)], notes


def _against(
    model: str, baseline: str, columns: Sequence[Column], cells: Mapping[tuple[str, str], Entry]
) -> tuple[list[Difference], list[str]]:
    found: list[Difference] = []
    notes: list[str] = []
    for column in columns:
        own = cells.get((model, column.label))
        base = own and _counterpart(own, baseline, cells)
        if own is None or base is None:
            continue
        if own.invalid or base.invalid:
            notes.append(f"{own.model} and {base.model}, {column.short}: invalid, so not compared")
            continue
        common = _common(own, base)
        if common:
            found.append(_difference(own, base, column.label, common))
        notes += _told(own, base, column.short, common)
    return found, notes


def _counterpart(own: Entry, first: str, cells: Mapping[tuple[str, str], Entry]) -> Entry | None:
    """Return the entry of model `first` with the same meaning; of several case sets, the one with most in
    common."""
    rivals = [e for (model, _), e in cells.items() if model == first and meaning_of(e) == meaning_of(own)]
    return max(rivals, key=lambda e: (len(_common(own, e)), e.chosen == own.chosen), default=None)


def _common(a: Entry, b: Entry) -> list[str]:
    """Return the cases that both have with the same text."""
    return [
        name
        for name, case in a.cases.items()
        if name in b.cases and (not case.version or b.cases[name].version in ("", case.version))
    ]


def _difference(own: Entry, base: Entry, label: str, common: Sequence[str]) -> Difference:
    mean, interval, p = paired([own.cases[c] for c in common], [base.cases[c] for c in common])
    n = count({name: own.cases[name] for name in common})
    missing = max(own.of - own.n, base.of - base.n)
    return Difference(own.model, base.model, label, n, mean, interval, p, missing=missing)


def paired(a: Sequence[Case], b: Sequence[Case]) -> tuple[float, Interval | None, float]:
    """Return the mean of a - b over cases (of several kinds: the mean of the kinds' means), its interval, and
    p.

    Cases of one group are translations of one text and are averaged first.
    """
    groups: dict[tuple[str, str], list[float]] = {}
    for at, (x, y) in enumerate(zip(a, b, strict=True)):
        groups.setdefault((x.kind, x.group or str(at)), []).append(x.score - y.score)
    kinds = [kind for kind, _ in groups]
    share = {kind: len(kinds) / kinds.count(kind) / len(set(kinds)) for kind in set(kinds)}
    d = np.array([float(np.mean(own)) * share[kind] for (kind, _), own in groups.items()])
    ends = bootstrap(d[:, None], lambda means: means, resamples=RESAMPLES, strata=kinds)
    p = sign_flip(d)
    return (
        float(d.mean()),
        None if ends is None else reportable(*ends[0], rows=len(d)),
        1.0 if p is None else p,
    )


# ---- notes


def _told(own: Entry, base: Entry, label: str, common: Sequence[str]) -> list[str]:
    who = f"{own.model} and {base.model}, {label}"
    if not common:
        return [f"{who}: no case in common"]
    notes = []
    n, shared = len(common), {name: own.cases[name] for name in common}
    if n < max(len(own.cases), len(base.cases)):
        what = "items" if any(case.group for case in shared.values()) else "cases"
        of = f"of {len(own.cases)} and {len(base.cases)}"
        notes.append(f"{who}: {n} {what} in common ({of}); only those are compared")
    uneven = sum(case.repeats != base.cases[name].repeats for name, case in shared.items())
    if uneven:
        notes.append(f"{who}: {uneven} cases were repeated more often by one of the two; means are compared")
    if count(shared) < FEW:
        notes.append(f"{who}: only {count(shared)} cases; intervals and tests are unreliable")
    return notes


def _missing(columns: Sequence[Column], cells: Mapping[tuple[str, str], Entry]) -> list[str]:
    notes = []
    for (model, label), entry in cells.items():
        column = next(column for column in columns if column.label == label)
        if entry.n < entry.of:
            lack = f"incomplete, {entry.n} of {entry.of} have a score: not shown"
            notes.append(f"{model}, {column.short} ({entry.source}): {lack}")
        own = [note for note in entry.notes if not note.startswith("incomplete")]
        notes += [f"{model}, {column.group} ({entry.source}): {note}" for note in own]
    return notes


def _sampling(columns: Sequence[Column], cells: Mapping[tuple[str, str], Entry]) -> list[str]:
    """Return notes about sampling settings that differ within a column."""
    notes = []
    for column in columns:
        own = {model: e.sampling for (model, label), e in cells.items() if label == column.label}
        for key in dict.fromkeys(k for sampling in own.values() for k in sampling if k != "seed"):
            values = {model: sampling.get(key, "unknown") for model, sampling in own.items()}
            if len(set(values.values())) > 1:
                listed = ", ".join(f"{value} for {model}" for model, value in values.items())
                notes.append(f"{column.group}: {key} is {listed}")
    return notes
