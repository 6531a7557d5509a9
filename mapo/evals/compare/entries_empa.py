"""EMPA scores for `mapo compare`: from `mapo eval empa`, EMPA result files, and tests of training runs.

Everything is recomputed from the judge's levels (`scoring/result.py`). User, director and judge are part of
the meaning of a number; if a file does not name them, its folder stands for them, so that it is compared only
with itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mapo.config import read_config
from mapo.errors import InputError, RecordError
from mapo.evals.compare.entries import Case, Entry, read_json, split_settings
from mapo.measure.epmq import weigh
from mapo.measure.stats import Interval, bootstrap, reportable, wilson
from mapo.players.casting import cast_from_config
from mapo.runs.claim import digest
from mapo.runs.contamination import notice_of
from mapo.runs.contents import read_rubric_file, read_settings
from mapo.runs.kind import Kind, kind_of
from mapo.scoring.folders import Folder, read_folders
from mapo.scoring.result import Result
from mapo.scoring.score import Score, score_results
from mapo.store import RunDir
from mapo.text import counted

EMPA = "EMPA"
ROLES = ("judge", "user", "director")
_MANIFEST_SETTINGS = ("start_levels", "temperature", "top_p", "max_tokens", "body", "repeats", "seed")


@dataclass(frozen=True, slots=True)
class _RunSettings:
    """The settings of a manifest; unknown for EMPA result files."""

    model: str | None = None
    cast: Mapping[str, str] | None = None
    scenarios: Mapping[str, str] | None = None
    repeats: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    notice: str = ""
    """That the policy was trained on test scenarios."""
    meaning: Mapping[str, str] = field(default_factory=dict)
    """What the run's scores will mean, known before its first dialogue is finished."""


def read_empa(root: Path, name: str | None = None) -> list[Entry]:
    """Read runs of `mapo eval empa` or EMPA result files, of one model or with one folder per model."""
    started = RunDir(root).manifest.exists() and not RunDir(root).empa_dialogues.exists()
    folders = [Folder(root)] if started and kind_of(root) is Kind.EMPA else read_folders(root)
    if name is not None and len({(f.path, result.model) for f in folders for result in f.results}) > 1:
        fix = f"Omit '{name}=', or pass each folder with its own name"
        raise InputError("the folder holds several models", where=str(root), fix=fix)
    return [entry for folder in folders for entry in _entries(folder, _settings_of(folder.path), name)]


def read_training(root: Path, name: str | None = None) -> list[Entry]:
    """Read the held-out test of a training run: rows "NAME, before" and "NAME, after"."""
    run = RunDir(root)
    manifest = read_json(run.manifest)
    try:
        settings, problem = read_settings(run.config)
        if problem or not settings:
            raise RecordError(problem or "the file does not exist", where=str(run.config), fix="Restore it")
        config = read_config(settings, str(run.config))
        scenarios = dict(manifest["scenarios"]["test"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise RecordError(
            f"the folder is not a complete training run ({error!r})", where=str(root), fix="Check its files"
        ) from None
    cast = cast_from_config(config)
    run_settings = _RunSettings(
        cast={role: str(cast[role]) if cast and role in cast else "scripted" for role in ROLES},
        scenarios=scenarios,
        repeats=config.eval.test_repeats,
        settings={
            "temperature": config.eval.temperature,
            "max_tokens": config.rollout.max_tokens,
            "repeats": config.eval.test_repeats,
            "top_p": config.eval.top_p,
            **({"start_levels": levels} if (levels := manifest.get("start_levels")) else {}),
        },
    )
    rubric, problem = read_rubric_file(run.rubric)
    if problem:
        raise RecordError(problem, where=str(run.rubric), fix="Restore it")
    entries: list[Entry] = []
    title = name or root.resolve().name
    for when, before in (("before", ""), ("after", f"{title}, before")):
        folder = run.eval_of(when)
        if folder.is_dir():
            notice = notice_of(manifest) if when == "after" else ""
            settings_ = replace(run_settings, model=f"{title}, {when}", notice=notice)
            tests = [e for f in read_folders(folder, rubric=rubric) for e in _entries(f, settings_, None)]
            entries += [replace(entry, baseline=before) for entry in tests]
    if not entries:
        raise InputError(
            "the training run has no results of the held-out test",
            where=str(root),
            fix="Finish the run; with eval.test_repeats=0 it has no test",
        )
    return entries


def _settings_of(folder: Path) -> _RunSettings:
    path = RunDir(folder).manifest
    if not path.exists():
        return _RunSettings()
    manifest = read_json(path)
    try:
        cast = manifest["cast"]
        players = (
            dict.fromkeys(ROLES, cast) if isinstance(cast, str) else {role: str(cast[role]) for role in ROLES}
        )
        return _RunSettings(
            str(manifest["model"]),
            players,
            {str(case): str(version) for case, version in manifest["scenarios"].items()},
            int(manifest["repeats"]),
            {"top_p": 1.0, **{key: manifest[key] for key in _MANIFEST_SETTINGS if key in manifest}},
            notice_of(manifest),
            _planned_meaning(folder, manifest, players),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(
            f"the file is not the manifest of an EMPA run ({error!r})", where=str(path)
        ) from None


def _planned_meaning(folder: Path, manifest: Mapping[str, Any], cast: Mapping[str, str]) -> dict[str, str]:
    """Return what the scores of a run will mean, from its manifest; {} if its rubric cannot be read."""
    rubric, _ = read_rubric_file(RunDir(folder).rubric)
    if rubric is None:
        return {}
    low, high = (manifest.get(key) or getattr(rubric.ending, key) for key in ("min_turns", "max_turns"))
    prompts = manifest.get("prompts")
    return {
        **cast,
        "rubric": f"{rubric.name} {digest(rubric.measure)}",
        "profile": str(manifest.get("profile", "published")),
        "turns": _turn_limits(low, high),
        **({"prompts": str(prompts)} if prompts and set(cast.values()) != {"scripted"} else {}),
        **({"start levels": str(file)} if (file := manifest.get("start_levels")) else {}),
    }


def _without_results(folder: Folder, run_settings: _RunSettings, name: str | None) -> list[Entry]:
    """Return the entries of a run that was started and has no finished dialogue: scores with 0 of n cases."""
    versions = run_settings.scenarios or {}
    _, sampling = split_settings(run_settings.settings)
    return [
        Entry(
            name or run_settings.model or folder.path.name,
            EMPA,
            title,
            run_settings.meaning,
            sampling,
            None,
            None,
            n=0,
            of=len(versions) * run_settings.repeats,
            cases={},
            source=str(folder.path),
            chosen=digest(dict(versions)),
            notes=tuple(_notes([], folder, 0, run_settings.notice)),
        )
        for title in ("passes", "EPM-Q")
    ]


def _entries(folder: Folder, run_settings: _RunSettings, name: str | None) -> list[Entry]:
    """Return passes and EPM-Q for every model and cast of a folder."""
    if not folder.results and run_settings.meaning:
        return _without_results(folder, run_settings, name)
    if not folder.results:
        reason = f": {folder.bad[0]}" if folder.bad else "."
        raise InputError(f"no dialogue in the folder could be scored{reason}", where=str(folder.path))
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in folder.results:
        meaning = _meaning(result, run_settings, folder.path)
        groups.setdefault((name or run_settings.model or result.model, *meaning.values()), []).append(result)
    return [
        entry
        for (model, *_), results in groups.items()
        for entry in _pair(model, results, folder, run_settings, only=len(groups) == 1)
    ]


def _meaning(result: Result, run_settings: _RunSettings, folder: Path) -> dict[str, str]:
    path = result.path
    cast = run_settings.cast or {role: result.cast.get(role) or f"unknown ({folder})" for role in ROLES}
    return {
        **cast,
        "rubric": f"{path.rubric.name} {digest(path.rubric.measure)}",
        "profile": path.profile.name,
        "turns": _turn_limits(path.min_turns, path.max_turns),
        **({"prompts": result.prompts} if result.prompts else {}),
        # Other start levels come from the scenario or the judge, which are part of the meaning already.
        **({"start levels": str(file)} if (file := run_settings.settings.get("start_levels")) else {}),
    }


def _turn_limits(low: int, high: int) -> str:
    """Return "12 to 45", or "at most 4" if the limit lies below the usual minimum."""
    return f"{low} to {high}" if low < high else f"at most {high}"


def _pair(
    model: str, results: Sequence[Result], folder: Folder, run_settings: _RunSettings, *, only: bool
) -> list[Entry]:
    files = {file.stem for file in folder.path.glob("*_result.json")} if only else set()
    unread = {stem.removesuffix("_result") for stem in files - {r.id for r in results}}
    versions = run_settings.scenarios or dict.fromkeys(sorted({r.case for r in results} | unread), "")
    unusable = len(folder.bad) + len(folder.torn) + len(folder.broken) if only else 0
    of = len(versions) * run_settings.repeats if run_settings.scenarios else len(results) + unusable
    score = score_results(model, results)
    complete = len(results) == of
    _, sampling = split_settings(run_settings.settings)

    def entry(title: str, value: float, interval: Any, scores: Sequence[float], **kw: Any) -> Entry:
        return Entry(
            model,
            EMPA,
            title,
            _meaning(results[0], run_settings, folder.path),
            sampling,
            value if complete else None,
            interval if complete else None,
            n=len(results),
            of=of,
            cases=_by_case(results, scores, versions),
            source=str(folder.path),
            chosen=digest(dict(versions)),
            notes=tuple(_notes(results, folder, score.unscored, run_settings.notice)),
            **kw,
        )

    quality = [float(weigh(np.array(r.indices))[3]) for r in results]  # EPM-Q is linear in the indices
    passed = [100.0 * r.passed for r in results]
    ends = reportable(*score.intervals["epm_q"], rows=score.n) if score.intervals else None
    shares = [case.score for case in _by_case(results, passed, versions).values()]
    return [
        entry(
            "passes",
            100 * score.passes / score.n,
            _pass_interval(shares, score),
            passed,
            passes=score.passes,
            unmet=score.unmet,
        ),
        entry("EPM-Q", score.composite.epm_q, ends, quality),
    ]


def _by_case(
    results: Sequence[Result], scores: Sequence[float], versions: Mapping[str, str]
) -> dict[str, Case]:
    by_case: dict[str, list[float]] = {}
    starts: dict[str, set[tuple[float, ...]]] = {}
    for result, score in zip(results, scores, strict=True):
        by_case.setdefault(result.case, []).append(score)
        starts.setdefault(result.case, set()).add(tuple(result.path.start))
    return {
        case: Case(
            sum(values) / len(values),
            version=versions.get(case, ""),
            repeats=len(values),
            starts=frozenset(starts[case]),
        )
        for case, values in by_case.items()
    }


def _pass_interval(shares: Sequence[float], score: Score) -> Interval | None:
    """Return the interval of the pass rate in percent: Wilson's if every case has one dialogue, otherwise
    bootstrap over cases."""
    if len(shares) == score.n:
        low, high = wilson(score.passes, score.n)
        return 100 * low, 100 * high
    ends = bootstrap(np.array(shares)[:, None], lambda means: means)
    return None if ends is None else reportable(*ends[0], rows=len(shares))


def _notes(results: Sequence[Result], folder: Folder, unscored: int, notice: str) -> list[str]:
    notes = [notice.rstrip(".")] if notice else []
    notes += [f"excluded: {line}" for line in (*folder.bad[:5], *folder.torn[:5])]
    if len(folder.bad) > 5:
        notes.append(f"excluded: {len(folder.bad) - 5} more")
    different = ("recorded number differs", "recorded numbers differ")
    for count, nouns, rest in (
        (len(folder.broken), ("broken dialogue",), " excluded"),
        (unscored, ("unscored turn",), ""),
        (sum(r.ending is None for r in results), ("unfinished dialogue",), ""),
        (sum(len(r.differences) for r in results), different, " from the recomputed value"),
    ):
        if count:
            notes.append(f"{counted(count, *nouns)}{rest}")
    return notes
