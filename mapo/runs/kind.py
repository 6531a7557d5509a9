"""What a folder is: which kind of run, a folder of results or dialogues, or nothing of ours."""

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
    """The value is what the viewer calls it."""

    TRAINING = "train"
    ABLATION = "ablate"
    EMPA = "empa"
    EMOBENCH = "emobench"
    EQBENCH = "eqbench3"
    EQBENCH_V2 = "eqbench_v2"
    BENCHMARK = "benchmark"
    """A result.json of a benchmark that is not one of mapo's."""
    AUDIT = "judge audit"
    SWAP = "judge swap"
    MADE_SCENARIOS = "realsim"
    SCREENING = "screen"
    EMPA_FILES = "EMPA result files"
    DIALOGUES = "dialogues"
    """Dialogue records without a run around them, such as eval/after of a training run."""
    RUNS = "runs"
    """A folder of runs, and not a run itself."""
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
}


def kind_of(root: Path) -> Kind:
    """Say what a folder is: by the schema in its manifest or, where that is missing, by its other files.

    Files are looked for by name and may turn out to be damaged, or links that nobody follows: whoever reads
    them reports that.
    """
    return kind_in_manifest(read_object(RunDir(root).manifest)[0]) or _kind_by_files(RunDir(root))


def kind_in_manifest(manifest: Mapping[str, Any]) -> Kind | None:
    """The kind of run that a manifest names, whatever the version of its schema."""
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
    # Before the kinds below: what lies loose beside runs does not make the folder one of them.
    if any(any(run.root.glob(f"*/{name}")) for name in (RunDir.manifest.name, RunDir.result.name)):
        return Kind.RUNS
    if any(run.root.glob("*_result.json")):
        return Kind.EMPA_FILES
    # The config alone: a training that was stopped before it wrote its manifest.
    if os.path.lexists(run.metrics) or os.path.lexists(run.config):
        return Kind.TRAINING
    if os.path.lexists(run.empa_dialogues):
        return Kind.EMPA
    # Not Path.is_dir: it raises in a folder that may be listed but not entered.
    own = os.path.isdir(run.dialogues) and not os.path.islink(run.dialogues)  # noqa: PTH112, PTH114
    inside = run.dialogues if own else run.root
    no_dialogues = (RunDir.items.name, RunDir.source.name)
    return Kind.DIALOGUES if any(f.name not in no_dialogues for f in inside.glob("*.jsonl")) else Kind.NOTHING


def refuse_run_as_model(source: str) -> None:
    """Refuse the folder of a training run where a model is expected, and say how to get a model out of it."""
    run = RunDir(Path(source).expanduser())
    model = any((run.root / name).is_file() for name in ("config.json", "adapter_config.json"))
    if not model and kind_of(run.root) in (Kind.TRAINING, Kind.ABLATION):
        steps = sorted(run.checkpoints.glob("step_*"))
        fix = f"Make a model of it: mapo export {quote(source)} --out DIR, then local:DIR"
        also = f". Or take a checkpoint: local:{steps[-1]}" if steps else ""
        raise InputError("is a training run, not a model", where=f"local:{source}", fix=fix + also)
