"""`mapo export`: from a run to a plain Hugging Face folder, adapters merged, for `mapo eval` and vLLM.

The checkpoint's checksums are verified first; the folder is written whole or not at all.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import torch

from mapo.errors import InputError
from mapo.local_model.files import beside
from mapo.local_model.policy import load_policy, quiet
from mapo.store import RunDir
from mapo.train.checkpoint import all_steps, check, inspect, latest

_RUN_ONLY = {"state.json", "optimizer.safetensors"}


def export(
    run_or_checkpoint: Path,
    out: Path,
    *,
    step: str = "best",
    merge: bool = True,
    dtype: Literal["float32", "bfloat16"] | None = None,
) -> Path:
    """The model of a run (or of one checkpoint) at `out`.

    `step`: best, last or a number. `merge=False` leaves an adapter an adapter. `dtype`: that of the
    training unless given.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError("is there already", where=str(out), fix="Choose another --out, or remove it")
    checkpoint = find_checkpoint(run_or_checkpoint, step)
    if _plain(checkpoint):  # another engine's: a whole model already
        body: dict[str, Any] = {"model": {"lora": None, "dtype": _dtype(checkpoint)}}
    else:
        body = inspect(checkpoint)
        check(checkpoint, body)
    if body["model"]["lora"] and not merge:
        with beside(out) as draft:
            for name in set(body["files"]) - _RUN_ONLY:
                shutil.copyfile(checkpoint / name, draft / name)
            _for_older_readers(draft)
        return out
    # merged in float32 and rounded once, whatever it was trained in
    policy = load_policy(str(checkpoint), dtype="float32", device="cpu")
    model = policy.model.merge_and_unload(safe_merge=True) if policy.lora else policy.model
    model = model.to(getattr(torch, dtype or body["model"]["dtype"]))
    with beside(out) as draft, quiet():
        model.save_pretrained(draft, max_shard_size="5GB")
        policy.tokenizer.save_pretrained(draft)
        _for_older_readers(draft)
        for weights in draft.glob("*.safetensors"):  # the library leaves them readable to their owner alone
            weights.chmod((draft / "config.json").stat().st_mode)
    return out


def find_checkpoint(place: Path, step: str = "best") -> Path:
    """The checkpoint meant by a run's folder and a step, or `place` itself where it is one."""
    if (place / "state.json").is_file() or _plain(place):
        return place
    if not place.is_dir():
        raise InputError("there is no such folder", where=str(place), fix="Give a run's folder")
    run = RunDir(place)
    parent = run.checkpoints
    if step.isdecimal():
        wanted: Path | None = run.checkpoint(int(step))
    elif step == "best" and run.best.is_file():
        wanted = run.checkpoint(_best(run.best))
    elif step in ("best", "last"):  # a run without validation has no best
        wanted = latest(parent) or max(filter(_plain, parent.glob("step_*")), default=None)
    else:
        raise InputError(f"is no step: {step}", where="--step", fix="best, last or a number")
    if wanted is None or not wanted.is_dir():
        steps = ", ".join(str(found.step) for found in all_steps(parent))
        fix = f"There are: {steps}" if steps else "Give a run that has saved checkpoints"
        known = parent.is_dir()
        told = "has no whole checkpoint of that step" if known else "has no checkpoints, and is none"
        raise InputError(told, where=f"{place}, step {step}", fix=fix)
    return wanted


def _plain(folder: Path) -> bool:
    """A model's folder as any library writes it, and no checkpoint of the local engine."""
    return (folder / "config.json").is_file() and not (folder / "state.json").exists()


def _dtype(folder: Path) -> str:
    told = _read(folder / "config.json")
    return str(told.get("dtype") or told.get("torch_dtype") or "float32")


def _best(path: Path) -> int:
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"names no step ({error})", where=str(path), fix="Use --step last") from error


def _for_older_readers(folder: Path) -> None:
    """The names other programs and older versions look for, beside those transformers 5 writes."""
    config = folder / "config.json"
    if config.is_file():
        told = _read(config)
        told.setdefault("torch_dtype", told.get("dtype"))
        rope = told.get("rope_parameters") or {}
        if "rope_theta" in rope:
            told.setdefault("rope_theta", rope["rope_theta"])
            if rope.get("rope_type", "default") != "default":
                told.setdefault("rope_scaling", {k: v for k, v in rope.items() if k != "rope_theta"})
        _write(config, told)
    tokenizer = folder / "tokenizer_config.json"
    told = _read(tokenizer)
    if told.get("tokenizer_class") == "TokenizersBackend":
        told["tokenizer_class"] = "PreTrainedTokenizerFast"
    template = folder / "chat_template.jinja"
    if template.is_file():
        told.setdefault("chat_template", template.read_text(encoding="utf-8"))
    _write(tokenizer, told)


def _read(path: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return told


def _write(path: Path, told: dict[str, Any]) -> None:
    path.write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
