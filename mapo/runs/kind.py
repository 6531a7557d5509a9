"""What a folder is: a training run, an ablation, the result of a benchmark, or an evaluation of dialogues."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from mapo.errors import InputError
from mapo.runs.files import read_bytes, read_object
from mapo.store import RunDir


def kind_of(root: Path) -> str:
    """training, ablation, benchmark or empa; by the manifest, or where that is lost by what else is there."""
    if not root.is_dir():
        raise InputError("no such folder", where=str(root), fix="Give the folder of a run")
    result = root / "result.json"
    if result.is_symlink() or result.exists():
        if (problem := read_bytes(result)[1]) and not result.is_dir():
            raise InputError(problem, where=str(result), fix="Put the file itself there")
        return "benchmark"
    schema = str(read_object(RunDir(root).manifest)[0].get("schema"))
    if schema.startswith("mapo.ablate/"):
        return "ablation"
    if schema.startswith(("mapo.emobench/", "mapo.eqbench")):
        raise InputError(
            f"a run ({schema}) without result.json: it did not come to an end",
            where=str(root),
            fix="Run it with --resume",
        )
    if schema.startswith("mapo.empa/"):
        return "empa"
    left = ("summary.json", "metrics.jsonl", "config.toml")
    if schema.startswith("mapo.train/") or any((root / name).exists() for name in left):
        return "training"
    if any(root.glob("*/manifest.json")):
        raise InputError("is a folder of runs", where=str(root), fix="Name the runs: mapo report RUN RUN ...")
    return "empa"


def refuse_run_as_model(source: str) -> None:
    """Refuse the folder of a training run where a model is expected, and say how to get a model out of it."""
    run = RunDir(Path(source).expanduser())
    steps = sorted(run.checkpoint(0).parent.glob("step_*"))
    if steps or (run.config.is_file() and run.manifest.is_file()):
        fix = f"Make a model of it: mapo export {quote(source)} --out DIR, then local:DIR"
        also = f". Or take a checkpoint: local:{steps[-1]}" if steps else ""
        raise InputError("is a training run, not a model", where=f"local:{source}", fix=fix + also)
