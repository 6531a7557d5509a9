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
from mapo.runs.contents import read_rubric_file, read_settings
from mapo.scoring.folders import Folder, read_folders
from mapo.scoring.result import Result
from mapo.scoring.score import Score, score_results
from mapo.store import RunDir

EMPA = "EMPA"
ROLES = ("judge", "user", "director")
_PLAYED = ("start_levels", "temperature", "top_p", "max_tokens", "repeats", "seed")


@dataclass(frozen=True, slots=True)
class _Asked:
    """The settings of a manifest; unknown for EMPA result files."""

    model: str | None = None
    cast: Mapping[str, str] | None = None
    scenarios: Mapping[str, str] | None = None
    repeats: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)


def read_empa(root: Path, name: str | None = None) -> list[Entry]:
    """Read runs of `mapo eval empa` or EMPA result files, of one model or with one folder per model."""
    folders = read_folders(root)
    if name is not None and len({(f.path, result.model) for f in folders for result in f.results}) > 1:
        fix = f"Leave out '{name}=', or name each folder"
        raise InputError("The folder holds several models.", where=str(root), fix=fix)
    return [entry for folder in folders for entry in _entries(folder, _asked(folder.path), name)]


def read_training(root: Path, name: str | None = None) -> list[Entry]:
    """Read the held-out test of a training run: rows "NAME, before" and "NAME, after"."""
    run = RunDir(root)
    manifest = read_json(run.manifest)
    try:
        settings, problem = read_settings(run.config)
        if problem or not settings:
            raise RecordError(problem or "no such file", where=str(run.config), fix="Check its folder")
        config = read_config(settings, str(run.config))
        scenarios = dict(manifest["scenarios"]["test"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise RecordError(f"no training run ({error!r})", where=str(root), fix="Check its folder") from None
    cast = cast_from_config(config)
    asked = _Asked(
        cast={role: str(cast[role]) if cast else "scripted" for role in ROLES},
        scenarios=scenarios,
        repeats=config.eval.test_repeats,
        settings={
            "temperature": config.eval.temperature,
            "max_tokens": config.rollout.max_tokens,
            "repeats": config.eval.test_repeats,
            "top_p": config.eval.top_p,
        },
    )
    rubric, problem = read_rubric_file(run.rubric)
    if problem:
        raise RecordError(problem, where=str(run.rubric), fix="Restore it")
    found: list[Entry] = []
    called = name or root.resolve().name
    for when, before in (("before", ""), ("after", f"{called}, before")):
        folder = run.eval_of(when)
        if folder.is_dir():
            mine = replace(asked, model=f"{called}, {when}")
            entries = [e for f in read_folders(folder, rubric=rubric) for e in _entries(f, mine, None)]
            found += [replace(entry, baseline=before) for entry in entries]
    if not found:
        raise InputError(
            "The training run has no test.",
            where=str(root),
            fix="Finish the run; if eval.test_repeats is 0, there is no test",
        )
    return found


def _asked(folder: Path) -> _Asked:
    path = RunDir(folder).manifest
    if not path.exists():
        return _Asked()
    manifest = read_json(path)
    try:
        cast = manifest["cast"]
        return _Asked(
            str(manifest["model"]),
            dict.fromkeys(ROLES, cast)
            if isinstance(cast, str)
            else {role: str(cast[role]) for role in ROLES},
            {str(case): str(version) for case, version in manifest["scenarios"].items()},
            int(manifest["repeats"]),
            {"top_p": 1.0, **{key: manifest[key] for key in _PLAYED if key in manifest}},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"no manifest of an EMPA run ({error!r})", where=str(path)) from None


def _entries(folder: Folder, asked: _Asked, name: str | None) -> list[Entry]:
    """Return passes and EPM-Q for every model and cast of a folder."""
    if not folder.results:
        bad = f": {folder.bad[0]}" if folder.bad else ""
        raise InputError(f"no dialogue in it could be scored{bad}", where=str(folder.path))
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in folder.results:
        meaning = _meaning(result, asked, folder.path)
        groups.setdefault((name or asked.model or result.model, *meaning.values()), []).append(result)
    return [
        entry
        for (model, *_), results in groups.items()
        for entry in _pair(model, results, folder, asked, only=len(groups) == 1)
    ]


def _meaning(result: Result, asked: _Asked, folder: Path) -> dict[str, str]:
    path = result.path
    cast = asked.cast or {role: result.cast.get(role) or f"unknown ({folder})" for role in ROLES}
    return {
        **cast,
        "rubric": f"{path.rubric.name} {digest(path.rubric.measure)}",
        "profile": path.profile.name,
        "turns": f"{path.min_turns} to {path.max_turns}",
        "start levels": str(asked.settings.get("start_levels") or "judged"),
    }


def _pair(model: str, results: Sequence[Result], folder: Folder, asked: _Asked, *, only: bool) -> list[Entry]:
    files = {file.stem for file in folder.path.glob("*_result.json")} if only else set()
    unread = {stem.removesuffix("_result") for stem in files - {r.id for r in results}}
    versions = asked.scenarios or dict.fromkeys(sorted({r.case for r in results} | unread), "")
    lost = len(folder.bad) + len(folder.torn) + len(folder.broken) if only else 0
    of = len(versions) * asked.repeats if asked.scenarios else len(results) + lost
    score = score_results(model, results)
    whole = len(results) == of
    _, sampling = split_settings(asked.settings)

    def entry(title: str, value: float, interval: Any, scores: Sequence[float], **kw: Any) -> Entry:
        return Entry(
            model,
            EMPA,
            title,
            _meaning(results[0], asked, folder.path),
            sampling,
            value if whole else None,
            interval if whole else None,
            n=len(results),
            of=of,
            cases=_by_case(results, scores, versions),
            source=str(folder.path),
            chosen=digest(dict(versions)),
            notes=tuple(_notes(results, folder, score.unscored)),
            **kw,
        )

    quality = [float(weigh(np.array(r.indices))[3]) for r in results]  # EPM-Q is linear in the indices
    passed = [100.0 * r.passed for r in results]
    ends = reportable(*score.intervals["epm_q"], rows=score.n) if score.intervals else None
    shares = [case.score for case in _by_case(results, passed, versions).values()]
    return [
        entry("passes", 100 * score.passes / score.n, _passing(shares, score), passed, passes=score.passes),
        entry("EPM-Q", score.composite.epm_q, ends, quality),
    ]


def _by_case(
    results: Sequence[Result], scores: Sequence[float], versions: Mapping[str, str]
) -> dict[str, Case]:
    found: dict[str, list[float]] = {}
    for result, score in zip(results, scores, strict=True):
        found.setdefault(result.case, []).append(score)
    return {
        case: Case(sum(own) / len(own), version=versions.get(case, ""), repeats=len(own))
        for case, own in found.items()
    }


def _passing(shares: Sequence[float], score: Score) -> Interval | None:
    """Return the interval of the pass rate in percent: Wilson's if every case has one dialogue, otherwise
    bootstrap over cases."""
    if len(shares) == score.n:
        low, high = wilson(score.passes, score.n)
        return 100 * low, 100 * high
    ends = bootstrap(np.array(shares)[:, None], lambda means: means)
    return None if ends is None else reportable(*ends[0], rows=len(shares))


def _notes(results: Sequence[Result], folder: Folder, unscored: int) -> list[str]:
    notes = [f"left out: {line}" for line in (*folder.bad[:5], *folder.torn[:5])]
    if len(folder.bad) > 5:
        notes.append(f"left out: {len(folder.bad) - 5} more")
    for count, what in (
        (len(folder.broken), "broken dialogues excluded"),
        (unscored, "unscored turns"),
        (sum(r.ending is None for r in results), "unfinished dialogues"),
        (sum(len(r.differences) for r in results), "recorded numbers differ from the recomputed ones"),
    ):
        if count:
            notes.append(f"{count} {what}")
    return notes
