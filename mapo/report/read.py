"""What a run left on disk -> plain data for a report.

Nothing here trusts a file: a summary may be cut off, a metric may be text, a line may be half a line. What
cannot be used is named in `problems` and the rest is read.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mapo.config import Config, read_config
from mapo.errors import InputError
from mapo.report.blocks import number
from mapo.store import BadLine, RunDir, read_dialogues, read_jsonl
from mapo.types import Dialogue

BUDGET = 24_000_000
"""Bytes of training dialogues a report reads: past that, steps are chosen evenly over the run."""

LEDGER = ("calls", "hits", "retries", "failures", "prompt", "cached", "completion", "seconds")


@dataclass(slots=True)
class Training:
    """A training run, as far as it can be read."""

    name: str
    root: Path
    manifest: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    config: Config | None = None
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
    def finished(self) -> bool:
        return bool(self.summary)


def read_training(root: Path, name: str = "", *, budget: int = BUDGET) -> Training:
    """Everything a report needs of a training run."""
    run, found = RunDir(root), Training(name or root.resolve().name, root)
    found.manifest = read_object(run.manifest, found.problems)
    found.summary = read_object(root / "summary.json", found.problems)
    found.config = _config(run.config, found.problems)
    found.steps = _steps(run.metrics, found.problems)
    found.before = _unique(_dialogues(_files(root / "eval" / "before"), found.problems))
    found.after = _unique(_dialogues(_files(root / "eval" / "after"), found.problems))
    found.played = _played(run.dialogues, budget, found.problems)
    found.ledger = read_ledger(root, found.problems)
    return found


def read_object(path: Path, problems: list[str]) -> dict[str, Any]:
    """A JSON object; an absent file is an empty one, any other thing a problem."""
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        problems.append(f"{path}: cannot be read ({error.strerror})")
        return {}
    except (ValueError, RecursionError):
        problems.append(f"{path}: no JSON; it is cut off, or something else")
        return {}
    if not isinstance(data, dict):
        problems.append(f"{path}: no JSON object")
        return {}
    return data


def read_ledger(root: Path, problems: list[str]) -> list[dict[str, Any]]:
    """Calls, tokens and cost by role and model, every process's ledger together."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for file in sorted(root.glob("ledger*.json")):
        told = read_object(file, problems).get("rows")
        for row in told if isinstance(told, list) else ():
            if not isinstance(row, Mapping):
                continue
            key = (str(row.get("role")), str(row.get("model")))
            mine = rows.setdefault(
                key, {"role": key[0], "model": key[1], **dict.fromkeys(LEDGER, 0.0), "cost": 0.0}
            )
            for name in LEDGER:
                mine[name] += number(row.get(name)) or 0.0
            cost = number(row.get("cost"))
            mine["cost"] = None if cost is None or mine["cost"] is None else mine["cost"] + cost
    return [rows[key] for key in sorted(rows)]


def _config(path: Path, problems: list[str]) -> Config | None:
    try:
        return read_config(tomllib.loads(path.read_text(encoding="utf-8")), str(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:  # an InputError is a ValueError too
        problems.append(f"{path}: no settings ({str(error)[:200]})")
        return None


def _steps(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    """metrics.jsonl by step; after a resume, what was written last for a step counts."""
    lines: dict[int, dict[str, Any]] = {}
    for line in _readable(path, read_jsonl, problems):
        if isinstance(line, BadLine):
            problems.append(str(line))
        elif type(line.get("step")) is int and 0 <= line["step"] < 10**9:
            lines[line["step"]] = line
        else:
            problems.append(f"{path}: a line without a step")
    return [lines[step] for step in sorted(lines)]


def _readable(path: Path, reader: Any, problems: list[str]) -> Iterator[Any]:
    """What `reader` gives of a file; an absent one gives nothing, an unreadable one a problem."""
    if not path.exists():
        return
    try:
        if not path.is_file():
            raise InputError("not a regular file", where=str(path))
        yield from reader(path)
    except InputError as error:
        problems.append(str(error))
    except TypeError:
        problems.append(unnamed_schema(path))


def unnamed_schema(path: Path) -> str:
    """Decoding a record stops with a TypeError where its schema is a list or an object, not a name."""
    return f"{path}: a record whose schema is no name; what follows it is left out"


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(f for f in folder.iterdir() if f.suffix == ".jsonl")
    except OSError:
        return []


def _dialogues(files: Sequence[Path], problems: list[str]) -> list[Dialogue]:
    found = []
    for file in files:
        for item in _readable(file, read_dialogues, problems):
            if isinstance(item, BadLine):
                problems.append(str(item))
            else:
                found.append(item)
    return found


def _unique(dialogues: Sequence[Dialogue]) -> list[Dialogue]:
    """One of each id, the last: a broken dialogue that was played again counts as it ended."""
    return list({d.id: d for d in dialogues}.values())


def _played(folder: Path, budget: int, problems: list[str]) -> dict[int, list[Dialogue]]:
    by_step: dict[int, list[Path]] = {}
    for file in _files(folder):
        digits = file.name.removeprefix("step_").partition(".")[0]
        if file.name.startswith("step_") and digits.isdecimal() and len(digits) < 10:
            by_step.setdefault(int(digits), []).append(file)
        else:
            problems.append(f"{file}: no step's dialogues; left out")
    size = {step: sum(f.stat().st_size for f in files) for step, files in by_step.items()}
    chosen = evenly(sorted(by_step), budget / max(1.0, sum(size.values()) / max(1, len(size))))
    found = {step: _unique(_dialogues(by_step[step], problems)) for step in chosen if size[step] <= budget}
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
    found = _dialogues(_files(lines if lines.is_dir() else root), [])
    return {d.id: d for d in found if d.id in ids}
