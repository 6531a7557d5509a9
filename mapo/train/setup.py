"""The state of a training run, and the check that its folder is free or holds the same run.

`Training` holds everything the loop needs; `check_run` and `claim_run` check and claim the run directory. A
run is resumed with the settings it was started with. Only settings that do not change its results (addresses,
limits, threads, trackers, the device, optimisations) may differ.
"""

from __future__ import annotations

import json
import platform
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shlex import quote
from typing import Any

from mapo.config import Config, dump_config, read_config, without_addresses
from mapo.domain_folders import RUBRIC, domain_folder
from mapo.errors import InputError, StoreError
from mapo.local_model.policy import LocalPolicy
from mapo.records import encode
from mapo.sampling.sampler import Sampler
from mapo.sandbox.cast import Casting
from mapo.sandbox.rollout import Rules
from mapo.scenarios.scenario import Scenario, scenario_digest
from mapo.scoring.score import score_dialogues
from mapo.store import CACHE, JsonlWriter, RunDir, write_atomic
from mapo.train.callbacks import Callbacks
from mapo.train.metrics import Tracker, flat
from mapo.train.optim import Optimizer
from mapo.train.processes import Team
from mapo.types import Dialogue


@dataclass(slots=True)
class Training:
    """A run in memory: its settings, the cast, the model and optimizer, and how far it has come."""

    config: Config
    run: RunDir
    policy: LocalPolicy
    sampler: Sampler
    optimizer: Optimizer
    casting: Casting
    rules: Rules
    train_scenarios: Sequence[Scenario]
    validation_scenarios: Sequence[Scenario]
    metrics: JsonlWriter | None = None
    trackers: Sequence[Tracker] = ()
    team: Team = field(default_factory=Team)
    callbacks: Callbacks = field(default_factory=Callbacks)
    paid: bool = False
    done: int = 0
    best: dict[str, Any] | None = None

    def dialogue_file(self, step: int) -> Path:
        return self.run.dialogues_of(step, self.team.rank)

    def eval_file(self, label: str) -> Path:
        return self.run.eval_dialogues(label, self.team.rank)

    def score_of(self, dialogues: Sequence[Dialogue]) -> float | None:
        found = score_dialogues("", dialogues, self.rules.rubric)
        return found.composite.epm_q if found else None

    def log(self, record: dict[str, Any]) -> None:
        if self.metrics:
            self.metrics.write(record)
        for tracker in self.trackers:
            tracker.log(flat({k: v for k, v in record.items() if k != "step"}), record["step"])


_MAY_DIFFER = {
    "model": {"device", "compile", "checkpointing", "stream"},
    "roles": {"requests", "requests_per_minute", "tokens_per_minute", "timeout", "retries"},
    "run": {"checkpoint_every", "keep", "trackers", "threads", "processes"},
    "verl": {"rollout", "tensor_parallel", "memory", "offload", "workers", "settings"},
}


def check_run(
    root: Path,
    config: Config,
    scenarios: dict[str, Sequence[Scenario]],
    *,
    resume: bool,
    engine: str = "local",
) -> None:
    """Refuse a folder that this run cannot use. Nothing is written."""
    run = RunDir(root)
    if root.exists() and not root.is_dir():
        raise InputError("is a file", where=str(root), fix="--out is a folder")
    if run.manifest.exists():
        if not resume:
            raise InputError("holds a run already", where=str(root), fix="Add --resume, or use another --out")
        refuse_other_engine(root, engine)
        _same(run, config, manifest(config, scenarios))
    elif resume and not root.exists():
        raise InputError("no run to resume", where=str(root), fix="Check --out, or leave out --resume")
    elif root.is_dir() and not all(_leftover(entry) for entry in root.iterdir()):
        raise InputError("is not empty and no run", where=str(root), fix="Choose another --out")


def claim_run(
    root: Path, config: Config, scenarios: dict[str, Sequence[Scenario]], engine: str = "local"
) -> None:
    """Write the files that make the folder this run's, unless they are there."""
    run = RunDir(root)
    if not run.manifest.exists():
        write_atomic(run.config, dump_config(config))
        write_atomic(run.rubric, (domain_folder(config.scenarios.domain) / RUBRIC).read_bytes())
        told = {**manifest(config, scenarios), "engine": engine}
        write_atomic(run.manifest, encode(told, str(run.manifest)) + b"\n")


def note_decoding(root: Path, way: str) -> None:
    """Add the decoder that is used to the manifest. A run resumed with another decoder lists both; a finished
    run is left as it is."""
    run = RunDir(root)
    if not way or run.summary.exists():
        return
    told = json.loads(run.manifest.read_bytes())
    ways = told.get("decoding", [])
    if way not in ways:
        told["decoding"] = [*ways, way]
        write_atomic(run.manifest, encode(told, str(run.manifest)) + b"\n")


def _leftover(entry: Path) -> bool:
    """Return whether this may exist before the manifest does, as after a kill during the start of a run."""
    return entry.name.startswith((".", RunDir.config.name, RunDir.rubric.name, CACHE, "ledger"))


def manifest(config: Config, scenarios: dict[str, Sequence[Scenario]]) -> dict[str, Any]:
    """Return what identifies the run: its scenarios by content, its method and the versions used."""
    return {
        "schema": "mapo.train/1",
        "scenarios": {split: {s.id: scenario_digest(s) for s in found} for split, found in scenarios.items()},
        "seed": config.run.seed,
        "method": config.advantage.method,
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in ("mapo", "torch", "transformers", "numpy")},
        },
    }


def refuse_other_engine(root: Path, engine: str) -> None:
    if (theirs := engine_of(root)) != engine:
        told = f"is a run of the {theirs} engine"
        raise InputError(told, where=str(root), fix=f"Add --engine {theirs}")


def engine_of(root: Path) -> str:
    """Return the engine that trains the run in a folder."""
    try:
        told = json.loads(RunDir(root).manifest.read_bytes())
        return str(told.get("engine", "local"))
    except (OSError, ValueError, AttributeError):
        return "local"  # a broken manifest is reported by check_run


def load_run_config(root: Path) -> Config:
    """Return the settings a run was started with."""
    path = RunDir(root).config
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read ({error})", where=str(path), fix="Check the run's folder") from None
    return read_config(data, str(path))


def _same(run: RunDir, config: Config, told: dict[str, Any]) -> None:
    there, here = _course(load_run_config(run.root)), _course(config)
    other = [f"{s}.{k}" for s in here for k in here[s] if there[s].get(k) != here[s][k]]
    try:
        scenarios = json.loads(run.manifest.read_bytes())["scenarios"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"cannot be read ({error})", where=str(run.manifest), fix="Start anew") from None
    other += [f"scenarios.{s}" for s, found in told["scenarios"].items() if scenarios.get(s) != found]
    if other:
        raise InputError(
            f"the run there was started otherwise: {', '.join(other[:5])}",
            where=str(run.root),
            fix=_longer(run, there["optim"]["steps"], config.optim.steps)
            or "Resume with the same settings (its config.toml), or use another --out",
        )


def _longer(run: RunDir, there: int, asked: int) -> str:
    """Say what to do instead of adding steps to a run: its learning rate schedule depends on their number."""
    if asked <= there:
        return ""
    engine = " --engine verl" if engine_of(run.root) == "verl" else ""
    return (
        f"A run keeps its number of steps ({there}). To train its model further: "
        f"mapo export {quote(str(run.root))} --out DIR, then "
        f"mapo train {quote(str(run.config))} model.source=DIR optim.steps=N --out ANOTHER{engine}"
    )


def _course(config: Config) -> dict[str, dict[str, Any]]:
    """Return the settings that decide a run's results: all but addresses, limits and the like."""
    data: dict[str, dict[str, Any]] = without_addresses(config)
    for section, keys in _MAY_DIFFER.items():
        data[section] = {k: v for k, v in data[section].items() if k not in keys}
    return data


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
