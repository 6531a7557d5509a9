"""The state of a training run in memory, and the checks of its run directory.

`Training` holds everything the loop needs; `check_run` and `claim_run` check and claim the run directory. A
run is resumed with the settings it was started with. Only settings that do not change its results (addresses,
limits, threads, trackers, the device, optimisations, spot checks) may differ.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from shlex import quote
from typing import Any

from mapo import __version__
from mapo.config import Config, dump_config, read_config, set_earlier_defaults, without_addresses
from mapo.domain_folders import RUBRIC, domain_folder
from mapo.errors import InputError, StoreError
from mapo.local_model.gpu_memory import MemoryWatch
from mapo.local_model.memory import MemoryPlan, planned_slots
from mapo.local_model.policy import LocalPolicy, folder_of
from mapo.players.casting import CHECK_ROLE, cast_from_config, every_model
from mapo.players.identity import identity
from mapo.players.prompts import prompts_from_config, rank_prompts_id
from mapo.players.reading import reading_prompts
from mapo.records import encode
from mapo.runs.claim import digest
from mapo.runs.contamination import trained_test_scenarios
from mapo.runs.kind import Kind, kind_of
from mapo.runs.provenance import provenance
from mapo.sampling.interface import PolicySampler
from mapo.sandbox.cast import Casting, RolePrompts, prompts_id
from mapo.sandbox.rollout import Rules
from mapo.scenarios.official import content_hash, official_test_cards
from mapo.scenarios.scenario import Scenario, scenario_digest
from mapo.scenarios.start_levels import StartLevelTable, read_start_levels
from mapo.scoring.score import score_dialogues
from mapo.scoring.spot_checks import CheckWindow
from mapo.store import CACHE, JsonlWriter, RunDir, write_atomic
from mapo.train.callbacks import Callbacks
from mapo.train.metrics import Tracker, flat
from mapo.train.optim import PolicyOptimizer
from mapo.train.processes import ProcessGroup
from mapo.types import Dialogue
from mapo.untrusted import parse_json, parse_toml, read_file


@dataclass(slots=True)
class Training:
    """A run in memory: its settings, cast, model and optimizer, and its progress.

    `done` is the last finished step; `best` is the validation result of the best one.
    """

    config: Config
    run: RunDir
    policy: LocalPolicy
    sampler: PolicySampler
    optimizer: PolicyOptimizer
    casting: Casting
    rules: Rules
    train_scenarios: Sequence[Scenario]
    validation_scenarios: Sequence[Scenario]
    start_levels: StartLevelTable = field(default_factory=dict)
    metrics: JsonlWriter | None = None
    trackers: Sequence[Tracker] = ()
    processes: ProcessGroup = field(default_factory=ProcessGroup)
    callbacks: Callbacks = field(default_factory=Callbacks)
    paid: bool = False
    done: int = 0
    best: dict[str, Any] | None = None
    checks: CheckWindow | None = None
    """The latest spot checks, if there are any."""
    gpu_memory: MemoryWatch | None = None

    def dialogue_file(self, step: int) -> Path:
        return self.run.dialogues_of(step, self.processes.rank)

    def eval_file(self, label: str) -> Path:
        return self.run.eval_dialogues(label, self.processes.rank)

    def score_of(self, dialogues: Sequence[Dialogue]) -> float | None:
        """Return the EPM-Q of dialogues, or None if there is nothing to score."""
        score = score_dialogues("", dialogues, self.rules.rubric)
        return score.composite.epm_q if score else None

    def log(self, record: dict[str, Any]) -> None:
        """Write the metrics of a step to metrics.jsonl and the trackers."""
        if self.metrics:
            self.metrics.write(record)
        for tracker in self.trackers:
            tracker.log(flat({k: v for k, v in record.items() if k != "step"}), record["step"])


_MAY_CHANGE = {
    "model": {"device", "compile", "checkpointing", "stream"},
    "roles": {"check", "requests", "requests_per_minute", "tokens_per_minute", "timeout", "retries"},
    "rollout": {"vllm_memory"},
    "run": {"checkpoint_every", "keep", "trackers", "threads", "processes", "shard"},
    "verl": {
        *("rollout", "tensor_parallel", "memory", "offload", "workers", "settings"),
        *("roles_gpus", "roles_shared"),
    },
}
"""Settings that may change when a run is resumed."""


def check_run(
    root: Path,
    config: Config,
    scenarios: dict[str, Sequence[Scenario]],
    *,
    resume: bool,
    engine: str = "local",
) -> None:
    """Raise InputError if this run cannot use the folder. Nothing is written."""
    run = RunDir(root)
    if root.exists() and not root.is_dir():
        raise InputError("this is a file", where=str(root), fix="Give a folder as --out")
    if run.manifest.exists():
        if not run.config.exists() and kind_of(root) not in (Kind.TRAINING, Kind.NOTHING):
            raise InputError(
                "the folder holds another kind of run, not a training run",
                where=str(root),
                fix="Use another --out",
            )
        if not resume:
            raise InputError(
                "the folder holds a run already", where=str(root), fix="Add --resume, or use another --out"
            )
        refuse_other_engine(root, engine)
        _check_same_settings(run, config, manifest(config, scenarios))
    elif resume and not root.exists():
        raise InputError(
            "there is no run to resume", where=str(root), fix="Check --out, or leave out --resume"
        )
    elif root.is_dir() and not all(_leftover(entry) for entry in root.iterdir()):
        raise InputError("the folder is not empty and not a run", where=str(root), fix="Use another --out")


def claim_run(
    root: Path,
    config: Config,
    scenarios: dict[str, Sequence[Scenario]],
    engine: str = "local",
    memory: MemoryPlan | None = None,
) -> None:
    """Write config, rubric and manifest, with the plan of its memory, into the run directory, unless it has a
    manifest."""
    run = RunDir(root)
    if not run.manifest.exists():
        write_atomic(run.config, dump_config(config))
        write_atomic(run.rubric, (domain_folder(config.scenarios.domain) / RUBRIC).read_bytes())
        planned = {"memory": memory.as_json()} if memory else {}
        content = {**provenance(), **manifest(config, scenarios), "engine": engine, **planned}
        write_atomic(run.manifest, encode(content, str(run.manifest)) + b"\n")


def note_decoding(root: Path, decoder: str) -> None:
    """Add the decoder to the manifest. A run that used several lists all; a finished run is not changed."""
    run = RunDir(root)
    if not decoder or run.summary.exists():
        return
    content = parse_json(read_file(run.manifest))
    decoders = content.get("decoding")
    decoders = decoders if isinstance(decoders, list) else []
    if decoder not in decoders:
        content["decoding"] = [*decoders, decoder]
        write_atomic(run.manifest, encode(content, str(run.manifest)) + b"\n")


def _leftover(entry: Path) -> bool:
    """Return whether a file may exist without a manifest, as after a kill during the start of a run."""
    return entry.name.startswith((".", RunDir.config.name, RunDir.rubric.name, CACHE, "ledger"))


def manifest(config: Config, scenarios: dict[str, Sequence[Scenario]]) -> dict[str, Any]:
    """Return what identifies the run: scenarios and prompts by content, its method and the versions used."""
    return {
        "schema": "mapo.train/1",
        "scenarios": {
            split: {s.id: scenario_digest(s) for s in members} for split, members in scenarios.items()
        },
        **({"start_levels": digest(table)} if (table := start_levels_of(config)) else {}),
        **({"trained_on_test": taken} if (taken := contaminated_by(config, scenarios)) else {}),
        "prompts": prompts_id(_prompts(config), config.scenarios.domain),
        **({"rank_prompts": rank_prompts_id(config)} if config.roles.ranker else {}),
        **({"weights": weights} if (weights := identity(**every_model(config)).get("weights")) else {}),
        "seed": config.run.seed,
        "method": config.advantage.method,
        "steps": config.optim.steps,
        "epochs": round(config.optim.steps * config.rollout.scenarios / len(scenarios["train"]), 3),
        "versions": {
            "python": platform.python_version(),
            "mapo": __version__,
            **{name: _version(name) for name in ("torch", "transformers", "numpy")},
        },
    }


def _prompts(config: Config) -> RolePrompts:
    """Return the prompts of a run's roles, as their answers are found."""
    prompts, cast = prompts_from_config(config), cast_from_config(config)
    return reading_prompts(prompts, cast) if cast else prompts


def contaminated_by(config: Config, scenarios: Mapping[str, Sequence[Scenario]]) -> list[str]:
    """Return the ids of the test scenarios that a run is trained on: those that it tests or EMPA's, and those
    that its model was trained on before."""
    tested = {s.id: content_hash(s) for s in scenarios["test"]}
    trained = {s.id: content_hash(s) for s in scenarios["train"]}
    shared = {case for case, content in tested.items() if case in trained or content in trained.values()}
    seen = [*scenarios["train"], *scenarios["validation"]]
    folder = folder_of(config.model.source)
    earlier = trained_test_scenarios(folder.resolve()) if folder else []
    return sorted(shared | set(official_test_cards(seen)) | set(earlier))


def start_levels_of(config: Config) -> StartLevelTable:
    """Return the start levels that the config names, by scenario; none if it names no file."""
    source = config.scenarios.start_levels
    return read_start_levels(Path(source)) if source else {}


def refuse_other_engine(root: Path, engine: str) -> None:
    """Raise InputError if the run in a folder belongs to another engine."""
    if (actual := engine_of(root)) != engine:
        raise InputError(
            f"this is a run of the {actual} engine", where=str(root), fix=f"Add --engine {actual}"
        )


def slots_of_run(root: Path) -> dict[tuple[str, ...], int]:
    """Return the slots of local roles that a run was started with; none if it has no plan."""
    try:
        return planned_slots(parse_json(read_file(RunDir(root).manifest)).get("memory"))
    except (OSError, ValueError, AttributeError):
        return {}  # a broken manifest is reported by check_run


def engine_of(root: Path) -> str:
    """Return the engine that trains the run in a folder."""
    try:
        content = parse_json(read_file(RunDir(root).manifest))
        return str(content.get("engine", "local"))
    except (OSError, ValueError, AttributeError):
        return "local"  # a broken manifest is reported by check_run


def load_run_config(root: Path) -> Config:
    """Return the settings a run was started with."""
    path = RunDir(root).config
    try:
        data = parse_toml(read_file(path).decode("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"the config cannot be read ({error})", where=str(path), fix="Check the run directory"
        ) from None
    set_earlier_defaults(data)
    return read_config(data, str(path))


def _check_same_settings(run: RunDir, config: Config, content: dict[str, Any]) -> None:
    """Raise InputError if the run was started with other settings or scenarios. `content` is the manifest."""
    started, now = _fixed_settings(load_run_config(run.root)), _fixed_settings(config)
    changed = [f"{s}.{k}" for s in now for k in now[s] if started[s].get(k) != now[s][k]]
    try:
        recorded = parse_json(read_file(run.manifest))
        scenarios = dict(recorded["scenarios"])
        levels = recorded.get("start_levels")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"the manifest cannot be read ({error})", where=str(run.manifest), fix="Start a new run"
        ) from None
    changed += [f"scenarios.{s}" for s, ids in content["scenarios"].items() if scenarios.get(s) != ids]
    changed += ["scenarios.start_levels"] * (levels != content.get("start_levels"))
    if config.roles.agents == "llm" and recorded.get("prompts", content["prompts"]) != content["prompts"]:
        changed.append("the prompts")
    if recorded.get("rank_prompts") != content.get("rank_prompts"):
        changed.append("the prompts of the ranker")
    weights = recorded.get("weights") or {}
    now_weights = content.get("weights") or {}
    changed += [
        f"the weights of the {role}"
        for role in now_weights
        if role != CHECK_ROLE and weights.get(role) != now_weights[role]
    ]
    if changed:
        raise InputError(
            f"the run was started with other settings: {', '.join(changed[:5])}",
            where=str(run.root),
            fix=_how_to_add_steps(run, started["optim"]["steps"], config.optim.steps)
            or "Resume with the same settings (its config.toml), or use another --out",
        )


def _how_to_add_steps(run: RunDir, steps: int, wanted: int) -> str:
    """Return a fix for a resume with more steps. A run cannot get more, because its learning rate schedule
    depends on their number."""
    if wanted <= steps:
        return ""
    engine = " --engine verl" if engine_of(run.root) == "verl" else ""
    return (
        f"The number of steps of a run is fixed ({steps}). To train its policy further: "
        f"mapo export {quote(str(run.root))} --out DIR, then "
        f"mapo train {quote(str(run.config))} model.source=DIR optim.steps=N --out ANOTHER{engine}"
    )


def _fixed_settings(config: Config) -> dict[str, dict[str, Any]]:
    """Return the settings that determine the results of a run: all but addresses and `_MAY_CHANGE`."""
    data: dict[str, dict[str, Any]] = without_addresses(config)
    for section, keys in _MAY_CHANGE.items():
        data[section] = {k: v for k, v in data[section].items() if k not in keys}
    return data


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
