"""`mapo export`: write the policy of a run as a plain Hugging Face folder, for `mapo eval` and vLLM.

LoRA adapters are merged. The checksums of the checkpoint are verified first, and the folder is written
atomically.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import torch

from mapo.errors import InputError
from mapo.local_model.files import atomic_folder
from mapo.local_model.policy import load_policy, no_progress_bar
from mapo.runs.contamination import mark_export
from mapo.store import RunDir
from mapo.train.checkpoint import all_steps, check, inspect, latest
from mapo.untrusted import parse_json, read_file

_RUN_ONLY = {"state.json", "optimizer.safetensors"}
_MODEL_CONFIGS = {"config.json", "generation_config.json"}
"""Files of a base model, which an adapter folder does not need."""


def export(
    run_or_checkpoint: Path,
    out: Path,
    *,
    step: str = "best",
    merge: bool = True,
    dtype: Literal["float32", "bfloat16"] | None = None,
) -> Path:
    """Write the policy of a run, or of one checkpoint, to `out`.

    `step` is best, last or a number. With `merge=False` an adapter is written as an adapter. `dtype` defaults
    to that of the training; for a run of the verl engine, to that in the model's config.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError("the folder exists already", where=str(out), fix="Use another --out, or remove it")
    checkpoint = find_checkpoint(run_or_checkpoint, step)
    if _is_plain_model(checkpoint):  # of the verl engine: a complete model or, with LoRA, an adapter
        body = _describe_plain(checkpoint)
    else:
        body = inspect(checkpoint)
        check(checkpoint, body)
    if body["model"]["lora"] and not merge:
        with atomic_folder(out) as draft:
            for name in set(body["files"]) - _RUN_ONLY:
                shutil.copyfile(checkpoint / name, draft / name)
            _for_older_readers(draft)
            mark_export(checkpoint, draft)
        return out
    # Merge in float32 and round once, whatever the training dtype was.
    policy = load_policy(str(checkpoint), dtype="float32", device="cpu")
    model = policy.model.merge_and_unload(safe_merge=True) if policy.lora else policy.model
    model = model.to(getattr(torch, dtype or body["model"]["dtype"]))
    with atomic_folder(out) as draft, no_progress_bar():
        model.save_pretrained(draft, max_shard_size="5GB")
        policy.tokenizer.save_pretrained(draft)
        _for_older_readers(draft)
        mark_export(checkpoint, draft)
        for weights in draft.glob("*.safetensors"):  # transformers makes them readable for their owner only
            weights.chmod((draft / "config.json").stat().st_mode)
    return out


def find_checkpoint(folder: Path, step: str = "best") -> Path:
    """Return the checkpoint of a run for `step`, or `folder` itself if it is a checkpoint."""
    if (folder / "state.json").is_file() or _is_plain_model(folder):
        return folder
    if not folder.is_dir():
        raise InputError("there is no such folder", where=str(folder), fix="Give a run directory")
    run = RunDir(folder)
    parent = run.checkpoints
    if step.isdecimal():
        checkpoint: Path | None = run.checkpoint(int(step))
    elif step == "best" and run.best.is_file():
        checkpoint = run.checkpoint(_best(run.best))
    elif step in ("best", "last"):  # a run without validation has no best step
        checkpoint = latest(parent) or max(filter(_is_plain_model, parent.glob("step_*")), default=None)
    else:
        raise InputError(f"--step is '{step}'", fix="Use best, last or the number of a step")
    if checkpoint is None or not checkpoint.is_dir():
        steps = ", ".join(str(saved.step) for saved in all_steps(parent))
        raise InputError(
            f"the run has no complete checkpoint for step {step}"
            if parent.is_dir()
            else "this folder is neither a run with checkpoints nor a checkpoint",
            where=str(folder),
            fix=f"Checkpoints exist for steps {steps}" if steps else "Give a run that has saved checkpoints",
        )
    return checkpoint


def _is_plain_model(folder: Path) -> bool:
    """Return whether this is a model folder as transformers writes it, not a checkpoint of this engine."""
    return (folder / "config.json").is_file() and not (folder / "state.json").exists()


def _describe_plain(folder: Path) -> dict[str, Any]:
    """Return what `inspect` says of a checkpoint of this engine, for a folder without a state.json."""
    adapter = (folder / "adapter_config.json").is_file()
    files = [file.name for file in folder.iterdir() if file.is_file() and file.name not in _MODEL_CONFIGS]
    return {"model": {"lora": adapter, "dtype": _dtype(folder)}, "files": files}


def _dtype(folder: Path) -> str:
    config = _read(folder / "config.json")
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def _best(path: Path) -> int:
    try:
        return int(parse_json(read_file(path))["step"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise InputError(
            f"the file names no step ({error})", where=str(path), fix="Use --step last"
        ) from error


def _for_older_readers(folder: Path) -> None:
    """Add the keys that other programs and older versions read to those that transformers 5 writes."""
    if (file := folder / "config.json").is_file():
        config = _read(file)
        config.setdefault("torch_dtype", config.get("dtype"))
        rope = config.get("rope_parameters") or {}
        if "rope_theta" in rope:
            config.setdefault("rope_theta", rope["rope_theta"])
            if rope.get("rope_type", "default") != "default":
                config.setdefault("rope_scaling", {k: v for k, v in rope.items() if k != "rope_theta"})
        _write(file, config)
    file = folder / "tokenizer_config.json"
    tokenizer = _read(file)
    if tokenizer.get("tokenizer_class") == "TokenizersBackend":
        tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"
    template = folder / "chat_template.jinja"
    if template.is_file():
        tokenizer.setdefault("chat_template", template.read_text(encoding="utf-8"))
    _write(file, tokenizer)


def _read(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
