"""What a run is and how it stands, from its small files: kind, method, model, step, score, state.

A run is *finished* when it left its summary or result, an audit's or a swap's too, *running* while a process
holds the lock of a file it writes or a record was written in the last minutes (the lock is not seen across
machines), *failed* when its last word was an error, and *stopped* otherwise. A file that is damaged or
half-written costs what it would have told, and is named among the problems.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from mapo.domain_folders import DEFAULT
from mapo.records import parse
from mapo.runs.contents import headline, number, read_settings, rubric_in, whole
from mapo.runs.files import read_bytes, read_lines, read_object
from mapo.runs.kind import kind_of
from mapo.store import RunDir, RunPath
from mapo.store import steps_of as by_step
from mapo.text import printable
from mapo.view.index.files import RunFiles

LATELY = 180.0
"""Seconds after its last record in which a run counts as running."""
SPARK = 48
"""Points of a sparkline."""

Facts = dict[str, Any]
_TOLD = (RunDir.manifest, RunDir.summary, RunDir.result, RunDir.best, RunDir.audit, RunDir.swap)


def facts_of(run: RunFiles) -> Facts:
    """Everything the pages say about a run besides its curves and dialogues."""
    told: dict[RunPath, dict[str, Any]] = {}
    problems: list[tuple[str, str]] = []
    for entry in _TOLD:
        told[entry], problem = read_object(run.root / entry.name) if run.has(entry) else ({}, "")
        if problem:
            problems.append((entry.name, problem))
    config, problem = config_of(run)
    if problem:
        problems.append((RunDir.config.name, problem))
    steps, bad = _steps(run)
    problems += [(RunDir.metrics.name, problem) for problem in bad]
    facts = _named(run, told, config) | _progress(told, config, steps)
    return facts | {
        "problems": problems,
        "other": run.other[:50],
        "links": run.links[:50],
        "error": _last_word(run),
    }


def no_facts(run: RunFiles, problem: str) -> Facts:
    """Of a run whose files could not be made sense of at all."""
    told: dict[RunPath, dict[str, Any]] = {entry: {} for entry in _TOLD}
    known = _named(run, told, {}) | _progress(told, {}, [])
    return known | {"problems": [("the run", problem)], "other": [], "links": [], "error": ""}


def config_of(run: RunFiles) -> tuple[dict[str, Any], str]:
    """The run's settings as they stand in its file, and what is wrong with it."""
    return read_settings(RunDir(run.root).config) if run.has(RunDir.config) else ({}, "")


def steps_of(run: RunFiles) -> list[dict[str, Any]]:
    return _steps(run)[0]


def _steps(run: RunFiles) -> tuple[list[dict[str, Any]], list[str]]:
    return by_step(read_lines(RunDir(run.root).metrics, parse)) if run.has(RunDir.metrics) else ([], [])


def _named(run: RunFiles, told: Mapping[RunPath, dict[str, Any]], config: dict[str, Any]) -> Facts:
    manifest, summary, result = told[RunDir.manifest], told[RunDir.summary], told[RunDir.result]
    model = summary.get("model") or result.get("model") or manifest.get("model")
    model = model or _dig(config, "model", "source") or _judges(manifest)
    return {
        "kind": printable(str(result.get("benchmark") or kind_of(run.root)))[:40],
        "method": _word(
            summary.get("method") or manifest.get("method") or _dig(config, "advantage", "method")
        ),
        "reward": _word(summary.get("reward") or manifest.get("reward") or _dig(config, "reward", "name")),
        "model": _word(model),
        "judge": _word(result.get("judge") or _dig(config, "roles", "judge", "model")),
        "seed": whole(summary.get("seed", manifest.get("seed"))),
        "domain": _domain(run),
    }


def _judges(manifest: Mapping[str, Any]) -> str:
    """Whom an audit or a swap is about."""
    several = manifest.get("judges")
    return ", ".join(_word(each) for each in (several if isinstance(several, list) else [])[:20]) or _word(
        manifest.get("judge")
    )


def _domain(run: RunFiles) -> str:
    """What the talk was about, by the run's own rubric; empty for the usual domain, and where nobody says."""
    rubric, _ = rubric_in(RunDir(run.root).rubric) if run.has(RunDir.rubric) else (None, "")
    return _word(rubric.name) if rubric and rubric.name != DEFAULT else ""


def _progress(
    told: Mapping[RunPath, dict[str, Any]], config: dict[str, Any], steps: list[dict[str, Any]]
) -> Facts:
    summary, result, manifest = told[RunDir.summary], told[RunDir.result], told[RunDir.manifest]
    curve = [v for line in steps if (v := number(line.get("score"))) is not None]
    before, after = (_test(summary.get(name)) for name in ("before", "after"))
    score = after["epm_q"] if after else curve[-1] if curve else None
    if result:
        score = headline(result)
    scenarios = manifest.get("scenarios")
    planned = len(scenarios) if isinstance(scenarios, dict) and manifest.get("repeats") else 0
    return {
        "step": steps[-1]["step"] if steps else None,
        "steps": whole(_dig(config, "optim", "steps")),
        "score": score,
        "before": before,
        "after": after,
        "best": whole(told[RunDir.best].get("step")),
        "spark": thinned(curve, SPARK),
        "complete": bool(summary or result.get("complete") or told[RunDir.audit] or told[RunDir.swap]),
        "planned": planned * (whole(manifest.get("repeats")) or 0),
    }


def _test(data: object) -> dict[str, Any] | None:
    if not isinstance(data, dict) or (score := number(data.get("epm_q"))) is None:
        return None
    ends = data.get("interval")
    low, high = map(number, ends) if isinstance(ends, list) and len(ends) == 2 else (None, None)
    return {
        "epm_q": score,
        "low": low,
        "high": high,
        "passes": whole(data.get("passes")),
        "n": whole(data.get("n")),
    }


def _last_word(run: RunFiles) -> str:
    """Why the run had to stop, if it left word."""
    raw, _ = read_bytes(RunDir(run.root).stopped) if run.has(RunDir.stopped) else (None, "")
    return printable((raw or b"").decode("utf-8", "replace").strip())[:2000]


# ---- how it stands


def state_of(run: RunFiles, facts: Facts, locked: Collection[int], played: int, now: float) -> str:
    """finished, running, failed or stopped; `locked` are inodes somebody writes to, `played` dialogues."""
    mine = {s.inode for s in (*run.small.values(), *run.lines.values())}
    if facts["complete"] or (facts["planned"] and played >= facts["planned"]):
        return "finished"
    if mine & set(locked):
        return "running"
    if facts["error"]:
        return "failed"
    return "running" if now - run.changed < LATELY else "stopped"


def locked_inodes(table: str = "/proc/locks") -> set[int]:
    """Files that some process of this machine holds an exclusive lock on; empty where nobody tells."""
    try:
        with open(table, encoding="ascii", errors="replace") as file:
            rows = [line.split() for line in file]
    except OSError:
        return set()
    found = set()
    for row in rows:
        if len(row) >= 6 and row[1] == "FLOCK" and row[3] == "WRITE":
            inode = row[5].rpartition(":")[2]
            found |= {int(inode)} if inode.isdigit() else set()
    return found


# ---- values from files that anybody may have written


def thinned(values: list[float], most: int) -> list[float]:
    """At most `most` of them, evenly spread, the last one among them."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else ""


def _word(value: object) -> str:
    return printable(value)[:200] if isinstance(value, str) else ""


def _dig(data: object, *path: str) -> object:
    for name in path:
        data = data.get(name) if isinstance(data, dict) else None
    return data
