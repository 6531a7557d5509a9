"""A whole training run, read from its directory.

Nothing here trusts a file: a summary may be cut off, a metric may be text, a line may be half a line. What
cannot be used is named in `problems`, and the rest is read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mapo.config import Advantage, Config, read_config
from mapo.records import decode_dialogue, parse
from mapo.runs import contents as runs
from mapo.runs import files
from mapo.store import TESTS, BadLine, RunDir, step_of, steps_of
from mapo.types import Dialogue

BUDGET = 24_000_000
"""Bytes of training dialogues a report reads: past that, steps are chosen evenly over the run."""


@dataclass(slots=True)
class Training:
    """A training run, as far as it can be read."""

    name: str
    root: Path
    manifest: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    config: Config | None = None
    advantage: Advantage | None = None
    uncredited: str = ""
    """Why nobody can know what was credited, where `advantage` is None."""
    steps: list[dict[str, Any]] = field(default_factory=list)
    played: dict[int, list[Dialogue]] = field(default_factory=dict)
    """Training dialogues of the steps that were read."""
    before: list[Dialogue] = field(default_factory=list)
    after: list[Dialogue] = field(default_factory=list)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def method(self) -> str:
        return str(self.summary.get("method") or self.manifest.get("method") or "unknown method")

    @property
    def model(self) -> str:
        told = self.summary.get("model") or (self.config.model.source if self.config else "")
        return str(told or "unknown model")

    @property
    def reward(self) -> str:
        return str(self.summary.get("reward") or (self.config.reward.name if self.config else "") or "")

    @property
    def seed(self) -> str:
        told = self.summary.get("seed", self.manifest.get("seed"))
        return "unknown" if told is None else str(told)

    @property
    def scripted(self) -> str:
        """The domain, where plain code played the other roles: as the dialogues say, else as the config does;
        "" where models did."""
        for d in (*self.after, *self.before, *(d for own in self.played.values() for d in own)):
            if d.cast:
                return d.rubric if is_scripted(d.cast) else ""
        told = self.config
        return told.scenarios.domain if told is not None and told.roles.agents == "scripted" else ""

    @property
    def finished(self) -> bool:
        return bool(self.summary)


def read_training(root: Path, name: str = "", *, budget: int = BUDGET) -> Training:
    """Everything a report needs of a training run."""
    run, found = RunDir(root), Training(name or root.resolve().name, root)
    found.manifest = read_object(run.manifest, found.problems)
    found.summary = read_object(run.summary, found.problems)
    settings, problem = runs.read_settings(run.config)
    found.problems += [f"{run.config}: {problem}"] if problem else []
    found.config = _config(settings, run.config, found.problems)
    found.advantage, found.uncredited = runs.advantage_of(settings)
    found.steps, bad = steps_of(files.read_lines(run.metrics, parse))
    found.problems += [f"{run.metrics}: {problem}" for problem in bad]
    found.before, found.after = (
        _dialogues(_files(run.eval_of(part), found.problems), found.problems) for part in TESTS
    )
    found.played = _played(run.dialogues, budget, found.problems)
    found.ledger = read_ledger(root, found.problems)
    return found


def is_scripted(cast: object) -> bool:
    """Of a cast as records and manifests have it: whether user, director and judge were plain code."""
    if isinstance(cast, Mapping):
        return all(cast.get(role) == "scripted" for role in ("user", "director", "judge"))
    return cast == "scripted"


def read_object(path: Path, problems: list[str]) -> dict[str, Any]:
    """A JSON object; an absent file is an empty one, any other thing a problem."""
    data, problem = files.read_object(path)
    problems += [f"{path}: {problem}"] if problem else []
    return data


def read_ledger(root: Path, problems: list[str]) -> list[dict[str, Any]]:
    """Calls, tokens and cost by role and model, every process's ledger together."""
    rows, bad = runs.read_ledger(RunDir(root).ledgers())
    problems += [f"{file}: {problem}" for file, problem in bad]
    return rows


def _config(settings: dict[str, Any], path: Path, problems: list[str]) -> Config | None:
    try:
        return read_config(settings, str(path)) if settings else None
    except (ValueError, RecursionError) as error:  # an InputError is a ValueError too
        problems.append(f"{path}: not all settings can be used ({str(error)[:200]})")
        return None


def _files(folder: Path, problems: list[str]) -> list[Path]:
    plain, odd = files.plain_files(folder, ".jsonl")
    problems += [f"{file}: a link, or not a regular file; left out" for file in odd]
    return plain


def _dialogues(found: Sequence[Path], problems: list[str]) -> list[Dialogue]:
    """The records of these files that count, one of each dialogue."""
    records = []
    for file in found:
        written = files.written_at(file)
        for item in files.read_lines(file, decode_dialogue):
            if isinstance(item, BadLine):
                problems.append(str(item) if item.line else f"{file}: {item.problem}")
            else:
                records.append(((item.model, item.id), item.usable, written, item))
    return list(runs.that_count(records).values())


def _status(file: Path) -> os.stat_result:
    try:
        return os.lstat(file)
    except OSError:  # gone since it was listed
        return os.stat_result([0] * 10)


def _played(folder: Path, budget: int, problems: list[str]) -> dict[int, list[Dialogue]]:
    by_step: dict[int, list[Path]] = {}
    for file in _files(folder, problems):
        if (step := step_of(file.name)) is not None:
            by_step.setdefault(step, []).append(file)
        else:
            problems.append(f"{file}: no step's dialogues; left out")
    size = {step: sum(_status(f).st_size for f in own) for step, own in by_step.items()}
    chosen = evenly(sorted(by_step), budget / max(1.0, sum(size.values()) / max(1, len(size))))
    found = {step: _dialogues(by_step[step], problems) for step in chosen if size[step] <= budget}
    return {step: dialogues for step, dialogues in found.items() if dialogues}


def evenly(items: Sequence[int], most: float) -> list[int]:
    """At most so many of `items`, from the first to the last."""
    count = min(len(items), max(2, int(most)))
    if count == len(items):
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def own_dialogues(root: Path, ids: set[str]) -> dict[str, Dialogue]:
    """Dialogues of these ids among a run's records."""
    lines = RunDir(root).dialogues
    found = _dialogues(_files(lines if lines.is_dir() else root, []), [])
    return {d.id: d for d in found if d.id in ids}
