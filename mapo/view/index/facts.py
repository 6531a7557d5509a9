"""What a run is and how far it is, from its small files: kind, method, model, step, score, state.

A run is *finished* once it has written its summary, result, audit, swap, screening or scenarios. It is
*running* while a process holds the lock of one of its files. Where locks are not visible, it also counts as
running if a record was written in the last minutes. It has *failed* if it left an error or if every dialogue
broke, and is *stopped* otherwise. Damaged or incomplete files are listed among the run's problems; what the
other files say is still used.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from mapo.domain_folders import DEFAULT
from mapo.evals.ablation.cells import METHOD, REWARD
from mapo.records import parse
from mapo.runs.contamination import notice_of
from mapo.runs.contents import (
    HEADLINES,
    headline,
    integer,
    number,
    planned_dialogues,
    read_rubric_file,
    read_settings,
)
from mapo.runs.files import read_bytes, read_lines, read_object
from mapo.runs.kind import Kind, kind_of
from mapo.scenarios.official import TRAINED_ON_TEST
from mapo.store import RunDir, RunPath
from mapo.store import steps_of as by_step
from mapo.text import printable
from mapo.view.index.files import RunFiles

RECENT = 180.0
"""Seconds after its last record during which a run counts as running, if its locks may not be visible."""
STARTING = 15.0
"""The same if its locks are visible: the time between its first file and its first lock."""
_NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "9p",
    "afs",
    "ceph",
    "lustre",
    "gpfs",
    "beegfs",
    "gluster",
    "fuse",
    "virtiofs",
)
"""Beginnings of the names of file systems whose locks other machines may hold."""
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""In other namespaces (containers) the locks of outside processes are not visible."""
SPARK = 48
"""Points of a sparkline."""
CELLS = 2000
"""Runs of an ablation grid that are looked for."""
AXES = 12
"""Varied settings of a grid that are shown."""

Facts = dict[str, Any]
Objects = Mapping[RunPath, dict[str, Any]]
"""The content of a run's JSON files."""
_VERDICTS = (RunDir.audit, RunDir.swap, RunDir.screen)
_JSON_FILES = (RunDir.manifest, RunDir.summary, RunDir.result, RunDir.best, RunDir.make_report, *_VERDICTS)


def facts_of(run: RunFiles) -> Facts:
    """Return everything the pages say about a run except its curves and dialogues."""
    objects: dict[RunPath, dict[str, Any]] = {}
    problems: list[tuple[str, str]] = []
    for entry in _JSON_FILES:
        objects[entry], problem = read_object(run.root / entry.name) if run.has(entry) else ({}, "")
        if problem:
            problems.append((entry.name, problem))
    config, problem = config_of(run)
    if problem:
        problems.append((RunDir.config.name, problem))
    steps, bad = _steps(run)
    problems += [(RunDir.metrics.name, problem) for problem in bad]
    facts = _identity(run, objects, config) | _progress(run, objects, config, steps)
    return facts | {
        "problems": problems,
        "other": run.other[:50],
        "links": run.links[:50],
        "error": _stop_reason(run),
    }


def no_facts(run: RunFiles, problem: str) -> Facts:
    """Return the facts of a run whose files could not be interpreted at all."""
    objects: dict[RunPath, dict[str, Any]] = {entry: {} for entry in _JSON_FILES}
    known = _identity(run, objects, {}) | _progress(run, objects, {}, [])
    return known | {"problems": [("the run", problem)], "other": [], "links": [], "error": ""}


def config_of(run: RunFiles) -> tuple[dict[str, Any], str]:
    """Return the run's settings as they are in its file, and what is wrong with the file."""
    return read_settings(RunDir(run.root).config) if run.has(RunDir.config) else ({}, "")


def manifest_of(run: RunFiles) -> dict[str, Any]:
    return read_object(RunDir(run.root).manifest)[0] if run.has(RunDir.manifest) else {}


def steps_of(run: RunFiles) -> list[dict[str, Any]]:
    return _steps(run)[0]


def _steps(run: RunFiles) -> tuple[list[dict[str, Any]], list[str]]:
    return by_step(read_lines(RunDir(run.root).metrics, parse)) if run.has(RunDir.metrics) else ([], [])


def _identity(run: RunFiles, objects: Objects, config: dict[str, Any]) -> Facts:
    manifest, summary, result = objects[RunDir.manifest], objects[RunDir.summary], objects[RunDir.result]
    model = summary.get("model") or result.get("model") or manifest.get("model")
    model = model or _dig(config, "model", "source") or _judges(manifest)
    kind = kind_of(run.root)
    method = summary.get("method") or manifest.get("method") or _dig(config, "advantage", "method")
    reward = summary.get("reward") or _dig(config, "reward", "name") or manifest.get("reward")
    grid = _axes(manifest) if _is_grid(kind) else None
    if grid is not None:
        method, reward = (
            ", ".join(_words(grid[key])) if key in grid else value
            for key, value in ((METHOD, method), (REWARD, reward))
        )
    seeds = manifest.get("seeds")
    return {
        "kind": printable(str(result.get("benchmark") or kind))[:40],
        "method": _word(method),
        "reward": _word(reward),
        "model": _word(model) + (f" ({TRAINED_ON_TEST.lower()})" if notice_of(manifest) else ""),
        "variant": _variant(config),
        "judge": _word(result.get("judge") or _dig(config, "roles", "judge", "model")),
        "seed": integer(summary.get("seed", manifest.get("seed"))),
        "domain": _domain(run),
        "grid": {"vary": grid, "seeds": [n for s in seeds if (n := integer(s)) is not None][:CELLS]}
        if grid is not None and isinstance(seeds, list)
        else None,
    }


def _variant(config: Mapping[str, Any]) -> str:
    """Return a fingerprint of the settings that make runs comparable over seeds: what is played and how it is
    credited and trained.
    """
    parts = {name: config.get(name) for name in ("rollout", "reward", "advantage", "optim")}
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _is_grid(kind: Kind) -> bool:
    return kind is Kind.ABLATION


def _axes(manifest: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the varied settings of a grid and their values."""
    varied = manifest.get("vary")
    if not isinstance(varied, dict):
        return {METHOD: _words(manifest.get("methods")), REWARD: _words(manifest.get("rewards"))}
    axes = list(varied.items())[:AXES]
    return {
        printable(str(key))[:200]: [value for value in values if value is not None][:CELLS]
        for key, values in axes
        if isinstance(values, list)
    }


def _judges(manifest: Mapping[str, Any]) -> str:
    """Return the judges of an audit or a swap, or the policies of a screening."""
    policies = manifest.get("policies")
    names = list(policies.values()) if isinstance(policies, dict) else manifest.get("judges")
    return ", ".join(_words(names)) or _word(manifest.get("judge"))


def _domain(run: RunFiles) -> str:
    """Return the domain by the run's rubric; empty for the default domain and where it is unknown."""
    rubric, _ = read_rubric_file(RunDir(run.root).rubric) if run.has(RunDir.rubric) else (None, "")
    return _word(rubric.name) if rubric and rubric.name != DEFAULT else ""


def _progress(run: RunFiles, objects: Objects, config: dict[str, Any], steps: list[dict[str, Any]]) -> Facts:
    summary, result, manifest = objects[RunDir.summary], objects[RunDir.result], objects[RunDir.manifest]
    curve = [v for line in steps if (v := number(line.get("score"))) is not None]
    before, after = (_evaluation(summary.get(name)) for name in ("before", "after"))
    score, score_part = (after["epm_q"], "after") if after else (curve[-1] if curve else None, "train")
    if result:
        score, score_part = headline(result), ""
    return {
        "step": steps[-1]["step"] if steps else None,
        "steps": integer(_dig(config, "optim", "steps")),
        "score": score,
        "score_name": HEADLINES.get(str(result.get("benchmark")), "") if result else "EPM-Q",
        "score_part": score_part,
        "items": _items(result),
        "before": before,
        "after": after,
        "best": integer(objects[RunDir.best].get("step")),
        "spark": thinned(curve, SPARK),
        "complete": bool(summary or result.get("complete") or any(objects[entry] for entry in _VERDICTS))
        or _made_all(objects[RunDir.make_report]),
        "all_broken": _none_played(objects[RunDir.screen]),
        "incomplete": _items(result) if result and result.get("complete") is not True else "",
        "planned": planned_dialogues(manifest),
        "started": _started(run),
        "step_seconds": _step_seconds(steps),
        "step_dialogues": _product(
            integer(_dig(config, "rollout", "scenarios")), integer(_dig(config, "rollout", "siblings"))
        ),
    }


def _made_all(report: Mapping[str, Any]) -> bool:
    """Return whether every conversation became a scenario or was refused: nothing is left to resume."""
    return bool(report) and not report.get("failed")


def _none_played(screening: Mapping[str, Any]) -> bool:
    """Return whether a screening has scenarios but no finished dialogue."""
    scenarios = screening.get("scenarios")
    rows = [row for row in scenarios if isinstance(row, dict)] if isinstance(scenarios, list) else []
    plays = [p for row in rows for p in (row["plays"].values() if isinstance(row.get("plays"), dict) else ())]
    return bool(plays) and not any(isinstance(p, dict) and integer(p.get("n")) for p in plays)


def _items(result: Mapping[str, Any]) -> str:
    """Return how many items of a question-and-answer benchmark were answered."""
    n, of = integer(result.get("n")), integer(result.get("of"))
    return "" if n is None or of is None else f"{n} of {of} items"


def _started(run: RunFiles) -> float | None:
    """Return when the run was started: the time of the first file that every run writes and never changes."""
    stamps = [run.small[e.name] for e in (RunDir.config, RunDir.rubric, RunDir.manifest) if run.has(e)]
    return min((stamp.changed for stamp in stamps), default=0) / 1e9 or None


def _step_seconds(steps: list[dict[str, Any]]) -> float | None:
    """Return the mean duration of the last steps, without evaluations."""
    seconds = [
        (number(line.get("rollout_s")) or 0.0) + (number(line.get("update_s")) or 0.0) for line in steps[-10:]
    ]
    return sum(seconds) / len(seconds) if seconds and all(s > 0 for s in seconds) else None


def _product(a: int | None, b: int | None) -> int | None:
    return a * b if a is not None and b is not None and 0 < a * b < 2**40 else None


def _evaluation(data: object) -> dict[str, Any] | None:
    if not isinstance(data, dict) or (score := number(data.get("epm_q"))) is None:
        return None
    ends = data.get("interval")
    low, high = map(number, ends) if isinstance(ends, list) and len(ends) == 2 else (None, None)
    return {
        "epm_q": score,
        "low": low,
        "high": high,
        "passes": integer(data.get("passes")),
        "n": integer(data.get("n")),
    }


def _stop_reason(run: RunFiles) -> str:
    raw, _ = read_bytes(RunDir(run.root).stopped) if run.has(RunDir.stopped) else (None, "")
    return printable((raw or b"").decode("utf-8", "replace").strip())[:2000]


# ---- state


def state_of(
    run: RunFiles, facts: Facts, locked: Collection[int], recorded: int, played: int, grace: float, now: float
) -> str:
    """Return finished, running, failed or stopped.

    `locked` are inodes of files that a process is writing to. Of the `recorded` dialogues, `played` did not
    break. A run without a lock counts as running for `grace` seconds after its last record.
    """
    inodes = {s.inode for s in (*run.small.values(), *run.lines.values())}
    if facts["all_broken"]:
        return "failed"
    if facts["complete"] or (facts["planned"] and played >= facts["planned"]):
        return "finished"
    if inodes & set(locked):
        return "running"
    if facts["error"]:
        return "failed"
    if not _ended(run) and now - run.changed < grace:
        return "running"
    return "failed" if recorded and not played else "stopped"


def _ended(run: RunFiles) -> bool:
    """Return whether an evaluation wrote its health after its last dialogue: the last thing it does."""
    health = run.small.get(RunDir.health.name)
    return health is not None and all(health.changed >= stamp.changed for stamp in run.lines.values())


def grace_of(root: Path, mounts: str = "/proc/self/mountinfo", namespace: str = "/proc/self/ns/pid") -> float:
    """Return how long a run below `root` without a lock counts as running.

    Long if the locks of its process may be invisible: on a network file system, in a container (except in the
    container's own root file system), or without /proc.
    """
    try:
        kind = _file_system(root, Path(mounts).read_text(encoding="utf-8", errors="replace"))
        own = Path(namespace).readlink().name == _FIRST_PID_NAMESPACE or kind == "overlay"
    except OSError:
        return RECENT
    return STARTING if own and kind and not kind.startswith(_NETWORK) else RECENT


def _file_system(root: Path, mounts: str) -> str:
    """Return the type of the file system that holds `root`, from the text of mountinfo."""
    found = (-1, "")
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        columns = fields.split()
        point = Path(columns[4].replace("\\040", " ")) if len(columns) > 4 else None
        if point and rest and root.is_relative_to(point) and len(point.parts) >= found[0]:
            found = (len(point.parts), rest.split()[0])
    return found[1]


def locked_inodes(table: str = "/proc/locks") -> set[int]:
    """Return the inodes that a process of this machine holds an exclusive lock on; empty if unknown."""
    try:
        with open(table, encoding="ascii", errors="replace") as file:
            rows = [line.split() for line in file]
    except OSError:
        return set()
    inodes = set()
    for row in rows:
        if len(row) >= 6 and row[1] == "FLOCK" and row[3] == "WRITE":
            inode = row[5].rpartition(":")[2]
            inodes |= {int(inode)} if inode.isdigit() else set()
    return inodes


# ---- values from untrusted files


def thinned(values: list[float], most: int) -> list[float]:
    """Return at most `most` values, evenly spaced, including the last."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else ""


def _word(value: object) -> str:
    return printable(value)[:200] if isinstance(value, str) else ""


def _words(values: object) -> list[str]:
    return [_word(each) for each in (values if isinstance(values, list) else [])[:20]]


def _dig(data: object, *path: str) -> object:
    for name in path:
        data = data.get(name) if isinstance(data, dict) else None
    return data
