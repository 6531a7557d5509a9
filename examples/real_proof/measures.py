"""Numbers of tested models: scores by seed and case, paired differences, quality of replies, agreement of the
two judges."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from study import BASE, Run, Study

from mapo.evals.ablation.paired import Jobs, difference_grid
from mapo.measure.agreement import kappa_interval, pooled_kappa
from mapo.measure.epmq import weigh
from mapo.measure.rubric import Rubric
from mapo.measure.stats import (
    Floats,
    Interval,
    bootstrap,
    grid_interval,
    holm,
    reportable,
    sign_flip,
    t_test,
    wilson,
)
from mapo.runs.claim import read_manifest
from mapo.runs.contents import deduplicated
from mapo.sandbox.cast import flat_levels
from mapo.sandbox.faults.manners import sentences, tokens
from mapo.scoring.folders import read_folders
from mapo.store import BadLine, RunDir, read_dialogues
from mapo.types import Dialogue

MAX_LOST = 0.2
"""A test that could not play more than this share of its cases has failed."""

# ---- reading


def read_run(folder: Path) -> Sequence[Dialogue]:
    """Return the judged dialogues of an evaluation; the last record of a dialogue counts."""
    file = RunDir(folder).empa_dialogues
    if not file.exists():
        return ()
    state = file.stat()
    return _read(file, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=64)  # the report reads every test several times
def _read(file: Path, *_: int) -> tuple[Dialogue, ...]:
    read = (d for d in read_dialogues(file) if not isinstance(d, BadLine))
    known = deduplicated((d.id, d.usable, 0, d) for d in read)
    return tuple(d for d in known.values() if d.judged)


def lost_cases(folder: Path) -> set[str]:
    """Return the scenarios of an evaluation without a judged dialogue."""
    planned = read_manifest(RunDir(folder).manifest)["scenarios"]
    return set(planned) - {d.scenario for d in read_run(folder)}


def planned_jobs(folder: Path) -> list[tuple[str, str]]:
    """Return the scenario and id of every dialogue that an evaluation should have."""
    manifest = read_manifest(RunDir(folder).manifest)
    cases, repeats = manifest["scenarios"], manifest.get("repeats", 1)
    if repeats == 1:
        return [(case, case) for case in cases]
    return [(case, f"{case}_{n}") for case in cases for n in range(1, repeats + 1)]


def is_complete(folder: Path) -> bool:
    """Return whether an evaluation has ended, which writes health.json last, with most of its scenarios."""
    if not RunDir(folder).health.exists():
        return False
    planned = read_manifest(RunDir(folder).manifest)["scenarios"]
    return len(lost_cases(folder)) <= MAX_LOST * len(planned)


def end_files(folder: Path) -> list[Path]:
    """Return the files that an evaluation, a rejudgement or questions write last, each time they are run, as
    far as they exist."""
    run = RunDir(folder)
    return [file for file in (run.health, run.swap, run.result) if file.exists()]


def has_ended(folder: Path) -> bool:
    """Return whether there is a usable result of an evaluation, of a rejudgement or of questions, even if
    some of its dialogues or items are missing."""
    run = RunDir(folder)
    return run.swap.exists() or run.result.exists() or is_complete(folder)


def left_out(study: Study, judge: str = "b", among: Collection[str] | None = None) -> dict[str, list[str]]:
    """Return the test cases that count for no method, with the runs in which they are missing: what one
    test could not play, or what the judge could not read. `among` are the names of the runs that are compared
    (default: all)."""
    cases: dict[str, list[str]] = {}
    for run in complete_tests(study, among):
        lost = lost_cases(study.test(run))
        if judge == "a" and (again := rejudged(study.test_a, run.name)):
            lost |= lost_cases(again)
        for case in sorted(lost):
            cases.setdefault(case, []).append(run.name)
    return cases


def complete_tests(study: Study, among: Collection[str] | None = None) -> list[Run]:
    """Return what was tested completely: of a test in progress, the cases that end first are not a fair
    sample. `among` are names of runs (default: all)."""
    runs = [run for run in study.tested if among is None or run.name in among]
    return [run for run in runs if is_complete(study.test(run))]


def rejudged(out: Path, name: str) -> Path | None:
    """Return the folder that `mapo judge swap` wrote for a run of this name in one of the folders in `out`;
    of several, the one with most dialogues."""
    found = [f.parent for f in out.glob("*/*/manifest.json") if f.parent.name.rpartition("-")[0] == name]
    return max(found, key=lambda folder: len(read_run(folder)), default=None)


@dataclass(frozen=True)
class Scores:
    """EPM-Q of each test dialogue by scenario and id, and which dialogues passed."""

    jobs: dict[tuple[str, str], float]
    passes: int

    @property
    def mean(self) -> float:
        return fmean(self.jobs.values())

    def mean_of(self, jobs: Collection[tuple[str, str]]) -> float | None:
        """Return the mean over some dialogues."""
        return fmean(self.jobs[job] for job in jobs) if jobs else None


def scores_of(folder: Path | None, without: Collection[str] = ()) -> Scores | None:
    """Return the scores of an evaluation, except for the cases in `without`; None if it has none."""
    if folder is None or not folder.exists():
        return None
    results = [r for part in read_folders(folder) for r in part.results if r.case not in without]
    jobs = {(r.case, r.id): float(weigh(np.array(r.indices))[3]) for r in results}
    return Scores(jobs, sum(r.passed for r in results)) if jobs else None


@dataclass(frozen=True)
class MethodScores:
    """The tests of a method by seed, under the test judge, or under the other judge."""

    method: str
    seeds: dict[int, Scores]

    @property
    def mean(self) -> float:
        return fmean(scores.mean for scores in self.seeds.values())

    @property
    def passes(self) -> tuple[int, int]:
        return sum(s.passes for s in self.seeds.values()), sum(len(s.jobs) for s in self.seeds.values())

    @property
    def passes_interval(self) -> Interval:
        """Wilson interval of the share of passes, with cases as its sample: other seeds play the same cases,
        which makes them no further evidence about cases."""
        passes, n = self.passes
        cases = len({case for scores in self.seeds.values() for case, _ in scores.jobs})
        return wilson(passes * cases / n, cases)

    @property
    def interval(self) -> Interval | None:
        """95 % bootstrap over cases, and over seeds if there are several."""
        nothing: dict[int, Jobs] = {seed: dict.fromkeys(s.jobs, 0.0) for seed, s in self.seeds.items()}
        jobs: dict[int, Jobs] = {seed: s.jobs for seed, s in self.seeds.items()}
        return _interval(difference_grid(jobs, nothing, list(self.seeds)))


def _interval(grid: Floats) -> Interval | None:
    """Return the 95 % bootstrap interval of a [seed, case] grid; None for few cases, or equal values."""
    ends = grid_interval(grid, seeds=len(grid) > 1)
    return None if ends is None else reportable(*ends, rows=grid.shape[1])


def method_scores(study: Study, judge: str, among: Collection[str] | None = None) -> dict[str, MethodScores]:
    """Return the complete tests of every method under judge b (as played) or a (judged again), all on the
    same cases. `among` are the names of the runs that are compared (default: all)."""
    methods: dict[str, dict[int, Scores]] = {}
    missing = left_out(study, judge, among)
    for run in complete_tests(study, among):
        folder = study.test(run) if judge == "b" else rejudged(study.test_a, run.name)
        if scores := scores_of(folder, missing):
            methods.setdefault(run.method, {})[run.seed] = scores
    return {name: MethodScores(name, seeds) for name, seeds in methods.items()}


def scores_with_zeros(study: Study, among: Collection[str] | None = None) -> dict[str, MethodScores]:
    """Return the scores under judge b with 0 for every dialogue that could not be played, to see whether
    leaving cases out matters."""
    methods: dict[str, dict[int, Scores]] = {}
    for run in complete_tests(study, among):
        scores = scores_of(study.test(run)) or Scores({}, 0)
        zeros = dict.fromkeys(planned_jobs(study.test(run)), 0.0)
        methods.setdefault(run.method, {})[run.seed] = Scores({**zeros, **scores.jobs}, scores.passes)
    return {name: MethodScores(name, seeds) for name, seeds in methods.items()}


# ---- differences


def differences(
    methods: Mapping[str, MethodScores], pairs: Sequence[tuple[str, str]]
) -> list[dict[str, Any]]:
    """Return the paired differences of methods.

    All numbers are of the cases that both sides played with every common seed. `interval` is over cases, and
    over seeds if both sides share several. `p` is the sign-flip test over cases (differences averaged over
    the common seeds), `p_holm` corrected over all rows; `p_seeds` is the t test over seeds.
    """
    rows = []
    for a, b in pairs:
        if a not in methods or b not in methods:
            continue
        first, second = methods[a].seeds, methods[b].seeds
        common = sorted(first.keys() & second.keys())
        x, y = ({seed: side[seed].jobs for seed in common} for side in (first, second))
        grid = difference_grid(x, y, common)
        if not grid.size:
            continue
        rows.append(
            {
                "difference": f"{a} - {b}",
                "mean": float(grid.mean()),
                "interval": _interval(grid),
                "seeds": grid.shape[0],
                "cases": grid.shape[1],
                "p": sign_flip(grid.mean(axis=0)),
                "p_seeds": t_test(grid.mean(axis=1)),
            }
        )
    return [{**row, "p_holm": p} for row, p in zip(rows, holm([r["p"] for r in rows]), strict=True)]


def all_pairs(methods: Iterable[str]) -> list[tuple[str, str]]:
    """Return what is compared: every method with the base model, and MAPO with every other method."""
    others = [name for name in methods if name != BASE]
    return [(name, BASE) for name in others] + [("mapo", name) for name in others if name != "mapo"]


# ---- quality of the replies


def distinct(texts: Iterable[str], size: int = 2) -> float | None:
    """Return the share of different n-grams among all n-grams of the texts."""
    grams = [gram for text in texts for gram in zip(*(tokens(text)[i:] for i in range(size)), strict=False)]
    return len(set(grams)) / len(grams) if grams else None


def _repeated(texts: Sequence[str]) -> float:
    """Return the share of replies that are equal to an earlier one."""
    return 1 - len(set(texts)) / len(texts)


def _repeated_sentences(texts: Sequence[str]) -> float | None:
    """Return the share of sentences that occur earlier in the dialogue."""
    every = [sentence for text in texts for sentence in sentences(text)]
    return 1 - len(set(every)) / len(every) if every else None


def _shared(dialogues: Sequence[Dialogue]) -> float:
    """Return the share of replies of a run that occur several times in it. More dialogues share more, so runs
    are not pooled."""
    counts = Counter(t.reply.text for d in dialogues for t in d.turns)
    return sum(n for n in counts.values() if n > 1) / counts.total()


PER_DIALOGUE: dict[str, Callable[[Dialogue], float | None]] = {
    "tokens": lambda d: fmean(len(t.reply.token_ids or ()) for t in d.turns),
    "cut": lambda d: fmean(t.reply.finish == "length" for t in d.turns),
    "distinct_2": lambda d: distinct(t.reply.text for t in d.turns),
    "repeated_replies": lambda d: _repeated([t.reply.text for t in d.turns]),
    "repeated_sentences": lambda d: _repeated_sentences([t.reply.text for t in d.turns]),
}


def quality_of(study: Study, runs: Sequence[Run]) -> dict[str, Any] | None:
    """Return the quality of the tested replies of a method's runs, with intervals over cases."""
    missing = left_out(study)
    runs = [run for run in runs if is_complete(study.test(run))]
    by_run = [[d for d in read_run(study.test(run)) if d.scenario not in missing] for run in runs]
    dialogues = [d for found in by_run for d in found]
    if not dialogues:
        return None
    row: dict[str, Any] = {"dialogues": len(dialogues), "turns": fmean(len(d.turns) for d in dialogues)}
    for name, measure in PER_DIALOGUE.items():
        row[name] = mean_over_cases([(d.scenario, measure(d)) for d in dialogues])
    row["shared_replies"] = fmean(map(_shared, filter(None, by_run)))
    files = [study.likelihood(run) for run in runs]
    entries = [e for f in files if f.exists() for e in json.loads(f.read_text("utf-8"))["dialogues"]]
    for name in ("fluency", "kl"):
        own = [(e["scenario"], e[name]) for e in entries if e["scenario"] not in missing]
        row[name] = mean_over_cases(own)
    return row


def mean_over_cases(values: Sequence[tuple[str, float | None]]) -> dict[str, Any] | None:
    """Return the mean over cases with its 95 % interval; None without values."""
    cases: dict[str, list[float]] = {}
    for case, value in values:
        if value is not None:
            cases.setdefault(case, []).append(value)
    if not cases:
        return None
    means = np.array([fmean(own) for own in cases.values()])
    ends = bootstrap(means[:, None], lambda rows: rows)
    interval = None if ends is None else reportable(*ends[0], rows=len(means))
    return {"mean": float(means.mean()), "interval": interval}


# ---- agreement of the judges


def agreement(first: Sequence[Dialogue], second: Sequence[Dialogue]) -> dict[str, Any] | None:
    """Compare two judgements of the same dialogues, turn by turn."""
    if not first or not second:
        return None
    rubric, others = Rubric.load(first[0].rubric), {d.id: d for d in second}
    x, y, owners = [], [], []
    for dialogue in first:
        if (other := others.get(dialogue.id)) is None:
            continue
        for one, two in zip(dialogue.turns, other.turns, strict=False):  # the new judge may end it earlier
            if one.levels and two.levels:
                x.append(flat_levels(one.levels, rubric))
                y.append(flat_levels(two.levels, rubric))
                owners.append(dialogue.id)
    if not x:
        return None
    a, b = np.array(x, dtype=np.float64), np.array(y, dtype=np.float64)
    return {
        "turns": len(x),
        "kappa": pooled_kappa(a.T.tolist(), b.T.tolist()),
        "interval": kappa_interval(a, b, owners),
    }


def agreement_by_step(study: Study, run: Run) -> list[dict[str, Any]]:
    """Return agreement and scores of both judges on the validation dialogues of a training, by step."""
    rows = []
    for folder in sorted(study.validations.glob(f"{run.name}.validation_*")):
        other = rejudged(study.agreement, folder.name)
        if other is None or (found := agreement(read_run(folder), read_run(other))) is None:
            continue
        a, b = scores_of(folder), scores_of(other)
        common = a.jobs.keys() & b.jobs.keys() if a and b else ()
        means = {"epm_q_a": a and a.mean_of(common), "epm_q_b": b and b.mean_of(common)}
        rows.append({"step": int(folder.name.rpartition("_")[2]), **found, **means})
    return rows
