"""Comparison of models: one row per model, one column per score, and differences from the first model.

Two numbers share a column only if they mean the same: same judge, rules, data, prompts and cases. Differences
are paired by case over the cases that both models have, repeats averaged: mean, 95 % bootstrap interval over
cases, and a sign-flip test with Holm's correction over the whole table. An incomplete run is not compared:
the cases that it lacks are usually not a random part. Interval and test describe how the result would
vary with other cases of this kind, not with another run or another judge.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mapo.errors import InputError, MapoError
from mapo.evals.compare.columns import Column, Meaning, columns_of, meaning_of
from mapo.evals.compare.entries import SCORES, Case, Entry, count, read_benchmark
from mapo.evals.compare.entries_empa import EMPA, read_empa, read_training
from mapo.measure.stats import Interval, bootstrap, holm, reportable, sign_flip
from mapo.runs.kind import Kind, kind_of
from mapo.store import RunDir
from mapo.text import counted

ORDER = [(EMPA, name) for name in ("passes", "EPM-Q")] + [(b, n) for b, ns in SCORES.items() for n in ns]
"""The order of columns: the paper's table, then v2."""
RESAMPLES = 10_000
FEW = 10
"""Number of common cases below which a note warns about a comparison."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Difference:
    """`model` minus `baseline` over `n` common cases, in points of the score."""

    model: str
    baseline: str
    column: str
    n: int
    mean: float
    interval: Interval | None
    p: float
    p_holm: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Models, columns and their scores, with paired differences."""

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
    name, root = split_name(run)
    kind = kind_of(root)
    if kind.has_result:
        if not os.path.lexists(RunDir(root).result):
            problem = f"the run is not finished: it has no {RunDir.result.name}"
            raise InputError(problem, where=str(root), fix="Finish it with --resume")
        return read_benchmark(root, name)
    if kind is Kind.TRAINING:
        return read_training(root, name)
    several = kind in (Kind.RUNS, Kind.ABLATION)
    return _read_all(root, _runs_in(root), name) if several else read_empa(root, name)


def _runs_in(root: Path) -> list[Path]:
    """Return the runs and folders of EMPA result files in a folder."""
    names = (RunDir.manifest.name, RunDir.result.name, RunDir.dialogues.name, "*_result.json")
    return [f for f in sorted(root.iterdir()) if f.is_dir() and any(any(f.glob(name)) for name in names)]


def _read_all(root: Path, folders: Sequence[Path], name: str | None) -> list[Entry]:
    """Read every run in a folder of runs. Runs that cannot be read are left out with a logged warning, unless
    all of them are."""
    entries: list[Entry] = []
    problems: list[MapoError] = []
    for folder in folders:
        try:
            entries += read_run(str(folder))
        except MapoError as error:
            problems.append(error)
    if problems and not entries:
        raise problems[0]
    for problem in problems:
        _log.warning("left out: %s", problem)
    if name is not None and len({entry.model for entry in entries}) > 1:
        fix = f"Omit '{name}=', or pass each folder with its own name"
        raise InputError("the folder holds several models", where=str(root), fix=fix)
    return [replace(entry, model=name or entry.model) for entry in entries]


def split_name(run: str) -> tuple[str | None, Path]:
    """Split NAME=FOLDER into name and folder. An existing folder whose name contains "=" is that folder."""
    name, equals, folder = run.partition("=")
    if not equals or Path(run).expanduser().exists():
        return None, Path(run).expanduser()
    if not name.strip() or not folder:
        raise InputError(f"'{run}' is not a run", fix="Pass a folder, or NAME=FOLDER")
    return name.strip(), Path(folder).expanduser()  # the shell does not expand ~ after "="


def compared(entries: Sequence[Entry]) -> Comparison:
    """Arrange entries in columns and compare them with the first model's."""
    models = list(dict.fromkeys(entry.model for entry in entries))
    by_key: dict[tuple[Meaning, str], list[Entry]] = {}
    for entry in sorted(entries, key=lambda e: ORDER.index((e.benchmark, e.name))):
        by_key.setdefault((meaning_of(entry), entry.chosen), []).append(entry)
    columns = columns_of(by_key)
    cells: dict[tuple[str, str], Entry] = {}
    for column, members in zip(columns, by_key.values(), strict=True):
        for entry in members:
            cells[entry.model, column.label] = _unique(cells.get((entry.model, column.label)), entry, column)
    differences, notes = _differences(models, columns, cells)
    notes = [*_entry_notes(columns, cells), *notes, *_sampling_notes(columns, cells)]
    return Comparison(models, columns, cells, differences, list(dict.fromkeys(notes)))


def _unique(earlier: Entry | None, entry: Entry, column: Column) -> Entry:
    """Check that a model has one result per column; the same result may be given twice."""
    if earlier is None or earlier == replace(entry, source=earlier.source):
        return entry
    raise InputError(
        f"'{entry.model}' has two different results for {column.label}: {earlier.source} and {entry.source}",
        fix="Omit one, or name them: a=FOLDER b=FOLDER",
    )


# ---- differences


def _differences(
    models: Sequence[str], columns: Sequence[Column], cells: Mapping[tuple[str, str], Entry]
) -> tuple[list[Difference], list[str]]:
    """Return the differences of every model from the first and from the model it was trained from, with
    notes."""
    first, *others = models
    differences: list[Difference] = []
    notes: list[tuple[str, str]] = []
    for model in others:
        from_first, remarks = _against(model, first, columns, cells)
        differences += from_first
        notes += remarks
        if not from_first and not remarks:
            notes.append((f"'{model}'", f"no score is comparable with one of '{first}'"))
        starts = {e.baseline for (name, _), e in cells.items() if name == model} - {"", first, model}
        for start in sorted(starts):
            from_start, remarks = _against(model, start, columns, cells)
            differences += from_start
            notes += remarks
    corrected = holm([d.p for d in differences])
    return [replace(d, p_holm=p) for d, p in zip(differences, corrected, strict=True)], _said_once(notes)


def _against(
    model: str, baseline: str, columns: Sequence[Column], cells: Mapping[tuple[str, str], Entry]
) -> tuple[list[Difference], list[tuple[str, str]]]:
    """Return the differences of `model` from `baseline` in all columns; notes and what they are about."""
    differences: list[Difference] = []
    scores_by_note: dict[str, list[str]] = {}
    for column in columns:
        entry = cells.get((model, column.label))
        base = entry and _counterpart(entry, baseline, cells)
        if entry is None or base is None:
            continue
        common = _common(entry, base)
        reason = _not_comparable(entry, base)
        if common and not reason:
            differences.append(_difference(entry, base, column.label, common))
        for note in [reason] if reason else _pair_notes(entry, base, common):
            scores_by_note.setdefault(note, []).append(column.short)
    pair = f"'{model}' and '{baseline}'"
    return differences, [(f"{pair} ({', '.join(scores)})", note) for note, scores in scores_by_note.items()]


def _not_comparable(entry: Entry, base: Entry) -> str:
    """Return why two scores are not compared although they mean the same; "" if they are."""
    if entry.invalid or base.invalid:
        return "not compared, a score is invalid"
    incomplete = [e for e in (entry, base) if e.value is None]
    return f"not compared, '{incomplete[0].model}' is incomplete" if incomplete else ""


def _counterpart(entry: Entry, model: str, cells: Mapping[tuple[str, str], Entry]) -> Entry | None:
    """Return the entry of `model` with the same meaning; of several case sets, the one with most in
    common."""
    candidates = [e for (name, _), e in cells.items() if name == model and meaning_of(e) == meaning_of(entry)]
    return max(candidates, key=lambda e: (len(_common(entry, e)), e.chosen == entry.chosen), default=None)


def _common(a: Entry, b: Entry) -> list[str]:
    """Return the cases that both have with the same text."""
    return [
        name
        for name, case in a.cases.items()
        if name in b.cases and (not case.version or b.cases[name].version in ("", case.version))
    ]


def _difference(entry: Entry, base: Entry, label: str, common: Sequence[str]) -> Difference:
    mean, interval, p = paired([entry.cases[c] for c in common], [base.cases[c] for c in common])
    n = count({name: entry.cases[name] for name in common})
    return Difference(entry.model, base.model, label, n, mean, interval, p)


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
    d = np.array([float(np.mean(values)) * share[kind] for (kind, _), values in groups.items()])
    ends = bootstrap(d[:, None], lambda means: means, resamples=RESAMPLES, strata=kinds)
    p = sign_flip(d)
    return (
        float(d.mean()),
        None if ends is None else reportable(*ends[0], rows=len(d)),
        1.0 if p is None else p,
    )


# ---- notes


def _said_once(notes: Sequence[tuple[str, str]]) -> list[str]:
    """Return one line per different note, after everything that it is about."""
    topics: dict[str, dict[str, None]] = {}
    for topic, note in notes:
        topics.setdefault(note, {})[topic] = None
    return [f"{'; '.join(about)}: {note}" for note, about in topics.items()]


def _pair_notes(entry: Entry, base: Entry, common: Sequence[str]) -> list[str]:
    """Return notes about the cases that two entries have in common."""
    if not common:
        return ["no case in common"]
    notes = []
    n, shared = len(common), {name: entry.cases[name] for name in common}
    if n < max(len(entry.cases), len(base.cases)):
        unit = "item" if any(case.group for case in shared.values()) else "case"
        of = f"of {len(entry.cases)} and {len(base.cases)}"
        notes.append(f"{counted(n, unit)} in common ({of}); only those are compared")
    uneven = sum(case.repeats != base.cases[name].repeats for name, case in shared.items())
    if uneven:
        repeated = counted(uneven, "case was", "cases were")
        notes.append(f"{repeated} repeated more often by one of the two; means are compared")
    moved = sum(case.starts != base.cases[name].starts for name, case in shared.items())
    if moved:
        differing = counted(moved, "case starts", "cases start")
        notes.append(f"{differing} at other levels in one of the two; give both runs the same start levels")
    if count(shared) < FEW:
        notes.append(f"only {counted(count(shared), 'case')}; intervals and tests are unreliable")
    return notes


def _entry_notes(columns: Sequence[Column], cells: Mapping[tuple[str, str], Entry]) -> list[str]:
    """Return notes about incomplete scores, and the notes of the entries."""
    notes = []
    incomplete: dict[tuple[str, str, int, int], list[str]] = {}
    for (model, label), entry in cells.items():
        column = next(column for column in columns if column.label == label)
        if entry.n < entry.of:
            incomplete.setdefault((model, entry.source, entry.n, entry.of), []).append(column.short)
        others = [note for note in entry.notes if not note.startswith("incomplete")]
        notes += [(f"'{model}', {column.group} ({entry.source})", note) for note in others]
    return [
        f"'{model}', {' and '.join(scores)} ({source}): incomplete, {n} of {of} have a score: not shown; "
        "finish the run with --resume"
        for (model, source, n, of), scores in incomplete.items()
    ] + _said_once(notes)


def _sampling_notes(columns: Sequence[Column], cells: Mapping[tuple[str, str], Entry]) -> list[str]:
    """Return notes about sampling settings that differ within a column."""
    notes = []
    for column in columns:
        by_model = {model: e.sampling for (model, label), e in cells.items() if label == column.label}
        for key in dict.fromkeys(k for sampling in by_model.values() for k in sampling if k != "seed"):
            values = {model: sampling.get(key, "unknown") for model, sampling in by_model.items()}
            if len(set(values.values())) > 1:
                listed = ", ".join(f"{value} for {model}" for model, value in values.items())
                notes.append(f"{column.group}: {key} is {listed}")
    return notes
