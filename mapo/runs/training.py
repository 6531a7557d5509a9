"""A complete training run, read from its directory.

Files are not trusted: a summary may be truncated, a metric may be text, a line may be incomplete. Problems
are collected in `problems`, and the rest is read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mapo.config import Advantage, Config, read_config, set_earlier_defaults
from mapo.records import decode_dialogue, parse
from mapo.runs import contents, files
from mapo.scripted.world import World, configured_world, world_of
from mapo.store import TESTS, BadLine, RunDir, step_of, steps_of
from mapo.types import Dialogue

BUDGET = 24_000_000
"""Bytes of training dialogues that are read. In larger runs, evenly spaced steps are chosen."""


@dataclass(slots=True)
class TrainingRun:
    """The readable contents of a training run."""

    name: str
    root: Path
    manifest: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    config: Config | None = None
    advantage: Advantage | None = None
    uncredited: str = ""
    """Why the credit is unknown, if `advantage` is None."""
    steps: list[dict[str, Any]] = field(default_factory=list)
    played: dict[int, list[Dialogue]] = field(default_factory=dict)
    """Training dialogues by step, of the steps that were read."""
    before: list[Dialogue] = field(default_factory=list)
    after: list[Dialogue] = field(default_factory=list)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def method(self) -> str:
        return str(self.summary.get("method") or self.manifest.get("method") or "unknown method")

    @property
    def model(self) -> str:
        name = self.summary.get("model") or (self.config.model.source if self.config else "")
        return str(name or "unknown model")

    @property
    def reward(self) -> str:
        return str(self.summary.get("reward") or (self.config.reward.name if self.config else "") or "")

    @property
    def seed(self) -> str:
        seed = self.summary.get("seed", self.manifest.get("seed"))
        return "unknown" if seed is None else str(seed)

    @property
    def world(self) -> World | None:
        """The test world, according to the dialogues or else the config; None if the people were models."""
        for d in (*self.after, *self.before, *(d for step in self.played.values() for d in step)):
            if d.cast:
                return world_of(d.rubric, d.cast)
        return world_of_config(self.config) if self.config else None

    @property
    def finished(self) -> bool:
        return bool(self.summary)


def read_training(root: Path, name: str = "", *, budget: int = BUDGET) -> TrainingRun:
    """Read a training run. `budget` limits the bytes of training dialogues that are read."""
    paths, run = RunDir(root), TrainingRun(name or root.resolve().name, root)
    run.manifest = read_object(paths.manifest, run.problems)
    run.summary = read_object(paths.summary, run.problems)
    settings, problem = contents.read_settings(paths.config)
    run.problems += [f"{paths.config}: {problem}"] if problem else []
    run.config = _config(settings, paths.config, run.problems)
    run.advantage, run.uncredited = contents.advantage_of(settings)
    run.steps, bad = steps_of(files.read_lines(paths.metrics, parse))
    run.problems += [f"{paths.metrics}: {problem}" for problem in bad]
    run.before, run.after = (
        _dialogues(_files(paths.eval_of(part), run.problems), run.problems) for part in TESTS
    )
    run.played = _training_dialogues(paths.dialogues, budget, run.problems)
    run.ledger = read_ledger(root, run.problems)
    return run


def world_of_config(config: Config) -> World | None:
    """Return the test world in which a training is tested."""
    judge = config.eval.judge or config.roles.judge
    return configured_world(config.roles.agents, config.scenarios.domain, judge.model if judge else None)


def read_object(path: Path, problems: list[str]) -> dict[str, Any]:
    """Return a JSON object, empty if the file does not exist. Anything else is added to `problems`."""
    data, problem = files.read_object(path)
    problems += [f"{path}: {problem}"] if problem else []
    return data


def read_ledger(root: Path, problems: list[str]) -> list[dict[str, Any]]:
    """Return calls, tokens and cost per role and model, added up over all processes."""
    rows, bad = contents.read_ledger(RunDir(root).ledgers())
    problems += [f"{file}: {problem}" for file, problem in bad]
    return rows


def _config(settings: dict[str, Any], path: Path, problems: list[str]) -> Config | None:
    try:
        set_earlier_defaults(settings)
        return read_config(settings, str(path)) if settings else None
    except (ValueError, RecursionError) as error:  # an InputError is a ValueError too
        problems.append(f"{path}: not all settings are valid ({str(error)[:200]})")
        return None


def _files(folder: Path, problems: list[str]) -> list[Path]:
    regular, others = files.plain_files(folder, ".jsonl")
    problems += [f"{file}: a link, or not a regular file; skipped" for file in others]
    return regular


def _dialogues(paths: Sequence[Path], problems: list[str]) -> list[Dialogue]:
    """Return the record of each dialogue in these files that counts."""
    records = []
    for file in paths:
        written = files.written_at(file)
        for item in files.read_lines(file, decode_dialogue):
            if isinstance(item, BadLine):
                problems.append(str(item) if item.line else f"{file}: {item.problem}")
            else:
                records.append(((item.model, item.id), item.usable, written, item))
    return list(contents.deduplicated(records).values())


def _status(file: Path) -> os.stat_result:
    try:
        return os.lstat(file)
    except OSError:  # deleted since it was listed
        return os.stat_result([0] * 10)


def _training_dialogues(folder: Path, budget: int, problems: list[str]) -> dict[int, list[Dialogue]]:
    by_step: dict[int, list[Path]] = {}
    for file in _files(folder, problems):
        if (step := step_of(file.name)) is not None:
            by_step.setdefault(step, []).append(file)
        else:
            problems.append(f"{file}: not named after a step; skipped")
    size = {step: sum(_status(f).st_size for f in paths) for step, paths in by_step.items()}
    chosen = evenly_spaced(sorted(by_step), budget / max(1.0, sum(size.values()) / max(1, len(size))))
    by_chosen_step = {step: _dialogues(by_step[step], problems) for step in chosen if size[step] <= budget}
    return {step: dialogues for step, dialogues in by_chosen_step.items() if dialogues}


def evenly_spaced(items: Sequence[int], most: float) -> list[int]:
    """Return at most `most` of `items`, evenly spaced, including the first and the last."""
    count = min(len(items), max(2, int(most)))
    if count == len(items):
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def dialogues_by_id(root: Path, ids: set[str]) -> dict[str, Dialogue]:
    """Return a run's dialogues with these ids."""
    folder = RunDir(root).dialogues
    dialogues = _dialogues(_files(folder if folder.is_dir() else root, []), [])
    return {d.id: d for d in dialogues if d.id in ids}
