"""The kind of a folder: a run of some kind, results, dialogues, or unknown."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import Any

from mapo.errors import InputError
from mapo.runs.files import read_object
from mapo.store import RunDir


class Kind(StrEnum):
    """The kind of a folder. The value is the name that the viewer shows."""

    TRAINING = "train"
    ABLATION = "ablate"
    EMPA = "empa"
    EMOBENCH = "emobench"
    EQBENCH = "eqbench3"
    EQBENCH_V2 = "eqbench_v2"
    BENCHMARK = "benchmark"
    """A result.json of a benchmark that is not part of mapo."""
    AUDIT = "judge audit"
    SWAP = "judge swap"
    MADE_SCENARIOS = "realsim"
    SCREENING = "screen"
    ROLE = "roles train"
    """A model trained to play a role."""
    EMPA_FILES = "EMPA result files"
    DIALOGUES = "dialogues"
    """Dialogue records without a run around them, such as eval/after of a training run."""
    RUNS = "runs"
    """A folder that contains runs but is not a run itself."""
    NOTHING = "unknown"

    @property
    def has_result(self) -> bool:
        """Whether a finished run of this kind leaves a result.json."""
        return self in (Kind.EMOBENCH, Kind.EQBENCH, Kind.EQBENCH_V2, Kind.BENCHMARK)


_SCHEMAS = {
    "mapo.train": Kind.TRAINING,
    "mapo.ablate": Kind.ABLATION,
    "mapo.empa": Kind.EMPA,
    "mapo.emobench": Kind.EMOBENCH,
    "mapo.eqbench3": Kind.EQBENCH,
    "mapo.eqbench_v2": Kind.EQBENCH_V2,
    "mapo.audit": Kind.AUDIT,
    "mapo.swap": Kind.SWAP,
    "mapo.realsim": Kind.MADE_SCENARIOS,
    "mapo.screen": Kind.SCREENING,
    "mapo.roles": Kind.ROLE,
}


def kind_of(root: Path) -> Kind:
    """Return the kind of a folder: from the schema in its manifest or else from the names of its files.

    The files may turn out to be damaged or links; the functions that read them report that.
    """
    return kind_in_manifest(read_object(RunDir(root).manifest)[0]) or _kind_by_files(RunDir(root))


def kind_in_manifest(manifest: Mapping[str, Any]) -> Kind | None:
    """Return the kind of run that a manifest names, in any schema version."""
    return _SCHEMAS.get(str(manifest.get("schema")).partition("/")[0])


def _kind_by_files(run: RunDir) -> Kind:
    if os.path.lexists(run.result):
        benchmark = str(read_object(run.result)[0].get("benchmark"))
        kind = _SCHEMAS.get(f"mapo.{benchmark}", Kind.BENCHMARK)
        return kind if kind.has_result else Kind.BENCHMARK
    if any(run.checkpoints.glob("step_*")):
        return Kind.TRAINING
    results = {
        run.audit: Kind.AUDIT,
        run.swap: Kind.SWAP,
        run.screen: Kind.SCREENING,
        run.ablation: Kind.ABLATION,
    }
    for path, kind in results.items():
        if os.path.lexists(path):
            return kind
    # Checked before the kinds below: loose files next to runs do not make the folder a run.
    if any(any(run.root.glob(f"*/{name}")) for name in (RunDir.manifest.name, RunDir.result.name)):
        return Kind.RUNS
    if any(run.root.glob("*_result.json")):
        return Kind.EMPA_FILES
    # A config without a manifest is a training run that was stopped at its start, or part of a domain.
    if os.path.lexists(run.metrics) or (os.path.lexists(run.config) and not _is_domain(run)):
        return Kind.TRAINING
    if os.path.lexists(run.empa_dialogues):
        return Kind.EMPA
    # Not Path.is_dir, which raises in a folder that may be listed but not entered.
    has_folder = os.path.isdir(run.dialogues) and not os.path.islink(run.dialogues)  # noqa: PTH112, PTH114
    folder = run.dialogues if has_folder else run.root
    no_dialogues = (RunDir.items.name, RunDir.source.name)
    return Kind.DIALOGUES if any(f.name not in no_dialogues for f in folder.glob("*.jsonl")) else Kind.NOTHING


def _is_domain(run: RunDir) -> bool:
    """Return whether the folder is that of a domain, which may hold a training config too."""
    parts = (run.root / name for name in ("scenarios", "prompts", "splits.json"))
    return os.path.lexists(run.rubric) and any(map(os.path.lexists, parts))


def refuse_run_as_model(source: str) -> None:
    """Raise InputError, with the command to export a model, if `source` is a training run."""
    run = RunDir(Path(source).expanduser())
    is_model = any((run.root / name).is_file() for name in ("config.json", "adapter_config.json"))
    if not is_model and kind_of(run.root) in (Kind.TRAINING, Kind.ABLATION):
        steps = sorted(run.checkpoints.glob("step_*"))
        fix = f"Run mapo export {quote(source)} --out DIR and use local:DIR (or model.source=DIR)"
        checkpoint = f", or use its last checkpoint: {steps[-1]}" if steps else ""
        raise InputError("this is a training run, not a model", where=source, fix=fix + checkpoint)
