"""Checkpoints: one folder per step, written atomically.

    checkpoints/step_00010/model.safetensors      all weights, with config.json and the tokenizer: a plain
                                                  Hugging Face folder (training of all weights)
                           adapter_model.safetensors, adapter_config.json, the tokenizer (LoRA)
                           optimizer.safetensors  moments, step counts and float32 masters by name
                           state.json             progress of the run; sizes and checksums of the other files

A checkpoint is written into a temporary folder next to it, synced and renamed, so a kill at any time leaves
either a complete checkpoint or none. The next save removes temporary folders. Loading verifies the checksums.
Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mapo.errors import RecordError, StoreError
from mapo.local_model.files import atomic_folder, read_tensors, remove, stream_tensors, write_tensors
from mapo.local_model.policy import LocalPolicy
from mapo.records import encode
from mapo.store import write_atomic
from mapo.train.optim import PolicyOptimizer
from mapo.untrusted import open_regular, parse_json, read_file

SCHEMA = "mapo.checkpoint/1"
LEFTOVERS = ".step_*.tmp"
"""Temporary folders that a killed process leaves next to checkpoints."""
_STEP = re.compile(r"step_(\d{1,9})", re.ASCII)
_FILE_NAME = re.compile(r"\w[\w.-]*", re.ASCII)


# ---- saving and loading


def save(folder: Path, policy: LocalPolicy, optimizer: PolicyOptimizer | None, state: dict[str, Any]) -> Path:
    """Write a checkpoint to `folder`. `state` is any JSON data of the caller, returned by `load`.

    If the optimizer's state is divided among processes, the others call `send_state` meanwhile.
    """
    with atomic_folder(folder, leftovers=LEFTOVERS) as draft:
        save_model(draft, policy)
        if optimizer is not None:
            stream_tensors(draft / "optimizer.safetensors", *optimizer.saved_state())
        body = {
            "schema": SCHEMA,
            "model": describe(policy),
            "state": state,
            "files": {file.name: _describe_file(file) for file in sorted(draft.iterdir())},
        }
        write_atomic(draft / "state.json", encode({**body, "sha256": _digest(body)}, str(folder)))
    return folder


def send_state(optimizer: PolicyOptimizer) -> None:
    """Take part in a `save` of another process."""
    for _ in optimizer.saved_state().tensors:
        pass


def load(
    folder: Path, policy: LocalPolicy, optimizer: PolicyOptimizer | None = None, *, verify: bool = True
) -> dict[str, Any]:
    """Load weights and moments into `policy` and `optimizer`, and return the saved state.

    `verify=False` skips the checksums, for a checkpoint that `latest` has just verified.
    """
    body = inspect(folder)
    if verify:
        check(folder, body)
    saved = body["model"]
    if bool(saved["lora"]) != policy.lora:
        kind = {True: "LoRA adapters", False: "all weights"}
        raise StoreError(
            f"the checkpoint holds {kind[bool(saved['lora'])]}, but the run trains {kind[policy.lora]}",
            where=str(folder),
            fix="Resume with the settings the run was started with",
        )
    dtype = _dtype(policy)
    if saved["dtype"] != dtype:  # "auto" depends on the device; masters would be lost or missing
        raise StoreError(
            f"the checkpoint was trained in {saved['dtype']}, but the run uses {dtype}",
            where=str(folder),
            fix=f"Set model.dtype={saved['dtype']}",
        )
    _load_model(folder, policy)
    if optimizer is not None:
        if "optimizer.safetensors" not in body["files"]:
            raise StoreError(
                "the checkpoint has no optimizer state", where=str(folder), fix="Start a new run from it"
            )
        try:
            optimizer.restore(read_tensors(folder / "optimizer.safetensors"))
        except ValueError as error:
            raise _other_model(folder / "optimizer.safetensors", str(error)) from error
    state: dict[str, Any] = body["state"]
    return state


def describe(policy: LocalPolicy) -> dict[str, Any]:
    """Return what is needed to load the same kind of policy: its source and, with LoRA, its settings."""
    lora = None
    if policy.lora:
        config = policy.model.peft_config["default"]
        lora = {"rank": config.r, "alpha": config.lora_alpha, "dropout": config.lora_dropout}
    return {"source": policy.source, "name": policy.name, "dtype": _dtype(policy), "lora": lora}


def _dtype(policy: LocalPolicy) -> str:
    return str(policy.dtype).removeprefix("torch.")


def save_model(draft: Path, policy: LocalPolicy) -> None:
    """Write the weights (with LoRA, the adapters), the config and the tokenizer to a folder."""
    if policy.lora:
        write_tensors(draft / "adapter_model.safetensors", _adapter_tensors(policy))
        policy.model.peft_config["default"].save_pretrained(str(draft))
    else:
        write_tensors(draft / "model.safetensors", _weights(policy.model))
        policy.model.config.save_pretrained(draft)
        if getattr(policy.model, "generation_config", None) is not None:
            policy.model.generation_config.save_pretrained(draft)
    policy.tokenizer.save_pretrained(draft)


def _load_model(folder: Path, policy: LocalPolicy) -> None:
    name = "adapter_model.safetensors" if policy.lora else "model.safetensors"
    tensors = read_tensors(folder / name)
    targets = _adapter_tensors(policy) if policy.lora else _weights(policy.model)
    different = sorted(set(targets) ^ set(tensors))
    different = different or [n for n in targets if targets[n].shape != tensors[n].shape]
    if different:
        reason = f"{len(different)} tensors differ in name or shape, such as {different[0]}"
        raise _other_model(folder / name, reason)
    with torch.no_grad():
        for key, tensor in targets.items():
            tensor.copy_(tensors[key])


def _weights(model: Any) -> dict[str, torch.Tensor]:
    """Return the model's tensors by name, tied tensors once under their first name."""
    seen: set[tuple[int, int, torch.Size]] = set()
    weights = {}
    for name, tensor in model.state_dict().items():
        place = (tensor.data_ptr(), tensor.storage_offset(), tensor.shape)
        if place not in seen:
            seen.add(place)
            weights[name] = tensor
    return weights


def _adapter_tensors(policy: LocalPolicy) -> dict[str, torch.Tensor]:
    from peft import get_peft_model_state_dict

    # Without this argument peft asks a model hub whether the vocabulary has grown.
    return dict(get_peft_model_state_dict(policy.model, save_embedding_layers=False))


def _other_model(path: Path, reason: str) -> StoreError:
    return StoreError(
        f"the file belongs to another model ({reason})",
        where=str(path),
        fix="Resume with the model it was saved from",
    )


# ---- finding and removing checkpoints


@dataclass(frozen=True, slots=True)
class SavedStep:
    """A folder named like a checkpoint, complete or not."""

    step: int
    folder: Path


def all_steps(parent: Path) -> list[SavedStep]:
    """Return the folders named like checkpoints, sorted by step, complete or not."""
    if not parent.is_dir():
        return []
    named = ((_STEP.fullmatch(entry.name), entry) for entry in parent.iterdir() if entry.is_dir())
    return sorted((SavedStep(int(m[1]), entry) for m, entry in named if m), key=lambda saved: saved.step)


def latest(parent: Path) -> Path | None:
    """Return the newest checkpoint whose checksums are all correct, or None."""
    for saved in reversed(all_steps(parent)):
        with contextlib.suppress(StoreError):
            check(saved.folder, inspect(saved.folder))
            return saved.folder
    return None


def remove_old(parent: Path, last: int, also: Collection[int] = ()) -> list[Path]:
    """Remove all checkpoints but the newest `last` and the steps in `also`; return the removed folders.

    Only checkpoints that look complete count among the newest, so a damaged one does not displace a good one.
    """
    complete = [saved.step for saved in all_steps(parent) if _looks_complete(saved.folder)]
    oldest = min(complete[-last:], default=float("inf")) if last > 0 else float("inf")
    removed = [s.folder for s in all_steps(parent) if s.step < oldest and s.step not in also]
    for folder in removed:
        remove(folder)
    return removed


def inspect(folder: Path) -> dict[str, Any]:
    """Return the verified content of state.json: schema, model, state and files."""
    path = folder / "state.json"
    try:
        body = parse_json(read_file(path))
        checksum = body.pop("sha256")
        valid = body["schema"] == SCHEMA and checksum == _digest(body) and _is_valid(body)
    except OSError as error:
        raise StoreError(
            f"this is not a checkpoint (state.json: {error.strerror})", where=str(folder), fix=_FIX
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecordError):
        valid = False
    if not valid:
        raise _damaged(path)
    return dict(body)


def _is_valid(body: dict[str, Any]) -> bool:
    """Return whether the content has the right types. A checksum is not a signature: the checkpoint may come
    from somebody else, so the names of its files must not lead out of its folder."""
    files, model, state = body["files"], body["model"], body["state"]
    lora = model["lora"] or {}
    return (
        isinstance(state, dict)
        and isinstance(lora, dict)
        and all(isinstance(model[key], str) for key in ("source", "name", "dtype"))
        and all(_FILE_NAME.fullmatch(name) for name in files)
        and all(type(file["bytes"]) is int and isinstance(file["sha256"], str) for file in files.values())
    )


def check(folder: Path, body: dict[str, Any]) -> None:
    """Raise StoreError with the name of the file unless all files have their recorded checksums."""
    for name, recorded in body["files"].items():
        file = folder / name
        try:
            valid = file.stat().st_size == recorded["bytes"] and _sha256(file) == recorded["sha256"]
        except OSError:
            valid = False
        if not valid:
            raise _damaged(file)


def _looks_complete(folder: Path) -> bool:
    """Return whether all files have their recorded sizes. The large ones are not read."""
    try:
        files = inspect(folder)["files"]
        return all((folder / name).stat().st_size == recorded["bytes"] for name, recorded in files.items())
    except (StoreError, OSError):
        return False


_FIX = "Use an earlier checkpoint"


def _damaged(path: Path) -> StoreError:
    return StoreError("the file is damaged: its checksum does not match", where=str(path), fix=_FIX)


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(encode(body, "state.json")).hexdigest()


def _describe_file(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
