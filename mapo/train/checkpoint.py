"""Checkpoints: a folder a step, whole or not there.

    checkpoints/step_00010/model.safetensors      all weights, with config.json and the tokenizer: a plain
                                                  Hugging Face folder (whole models)
                           adapter_model.safetensors, adapter_config.json, the tokenizer (LoRA)
                           optimizer.safetensors  moments, step counts and float32 masters by name
                           state.json             where the run stands; sizes and checksums of the rest

Everything is written into a folder beside, synced, and renamed: a kill at any instant leaves no folder of
that name or a whole one, and the next save clears away what was left. Loading verifies the checksums.
Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mapo.errors import StoreError
from mapo.local_model.files import beside, read_tensors, remove, write_tensors
from mapo.local_model.policy import LocalPolicy
from mapo.records import encode
from mapo.store import write_atomic
from mapo.train.optim import Optimizer

SCHEMA = "mapo.checkpoint/1"
LEFTOVERS = ".step_*.tmp"
"""What a kill may leave beside checkpoints."""
_STEP = re.compile(r"step_(\d+)")


# ---- saving and loading


def save(folder: Path, policy: LocalPolicy, optimizer: Optimizer | None, state: dict[str, Any]) -> Path:
    """The checkpoint at `folder`, complete when this returns. `state` is the caller's own, plain JSON."""
    with beside(folder, leftovers=LEFTOVERS) as draft:
        _save_model(draft, policy)
        if optimizer is not None:
            write_tensors(draft / "optimizer.safetensors", optimizer.tensors())
        body = {
            "schema": SCHEMA,
            "model": describe(policy),
            "state": state,
            "files": {file.name: _describe_file(file) for file in sorted(draft.iterdir())},
        }
        write_atomic(draft / "state.json", encode({**body, "sha256": _digest(body)}, str(folder)))
    return folder


def load(
    folder: Path, policy: LocalPolicy, optimizer: Optimizer | None = None, *, verify: bool = True
) -> dict[str, Any]:
    """Put the checkpoint's weights and moments into `policy` and `optimizer`; returns the state saved.

    `verify=False` where `latest` has read all checksums a moment ago.
    """
    body = inspect(folder)
    if verify:
        check(folder, body)
    told = body["model"]
    if bool(told["lora"]) != policy.lora:
        kind = {True: "LoRA adapters", False: "a whole model"}
        raise StoreError(
            f"holds {kind[bool(told['lora'])]}, but the run trains {kind[policy.lora]}",
            where=str(folder),
            fix="Resume with the settings the run was started with",
        )
    own = _dtype(policy)
    if told["dtype"] != own:  # "auto" follows the device, and masters would be lost or missing
        raise StoreError(
            f"was trained in {told['dtype']}, but the run is in {own}",
            where=str(folder),
            fix=f"Set model.dtype={told['dtype']}",
        )
    _load_model(folder, policy)
    if optimizer is not None:
        if "optimizer.safetensors" not in body["files"]:
            raise StoreError(
                "was saved without its optimizer", where=str(folder), fix="Start a new run from it"
            )
        try:
            optimizer.restore(read_tensors(folder / "optimizer.safetensors"))
        except ValueError as error:
            raise _other_model(folder / "optimizer.safetensors", str(error)) from error
    state: dict[str, Any] = body["state"]
    return state


def describe(policy: LocalPolicy) -> dict[str, Any]:
    """What is needed to load the same kind of policy again: its source and, with LoRA, the settings."""
    lora = None
    if policy.lora:
        config = policy.model.peft_config["default"]
        lora = {"rank": config.r, "alpha": config.lora_alpha, "dropout": config.lora_dropout}
    return {"source": policy.source, "name": policy.name, "dtype": _dtype(policy), "lora": lora}


def _dtype(policy: LocalPolicy) -> str:
    return str(policy.dtype).removeprefix("torch.")


def _save_model(draft: Path, policy: LocalPolicy) -> None:
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
    own = _adapter_tensors(policy) if policy.lora else _weights(policy.model)
    wrong = sorted(set(own) ^ set(tensors)) or [n for n in own if own[n].shape != tensors[n].shape]
    if wrong:
        raise _other_model(folder / name, f"{len(wrong)} tensors differ in name or shape, such as {wrong[0]}")
    with torch.no_grad():
        for key, tensor in own.items():
            tensor.copy_(tensors[key])


def _weights(model: Any) -> dict[str, torch.Tensor]:
    """The model's own tensors by name, tied ones once, under their first name."""
    seen: set[tuple[int, int, torch.Size]] = set()
    found = {}
    for name, tensor in model.state_dict().items():
        place = (tensor.data_ptr(), tensor.storage_offset(), tensor.shape)
        if place not in seen:
            seen.add(place)
            found[name] = tensor
    return found


def _adapter_tensors(policy: LocalPolicy) -> dict[str, torch.Tensor]:
    from peft import get_peft_model_state_dict

    # never asks a hub whether the vocabulary grew: adapters here leave embeddings alone
    return dict(get_peft_model_state_dict(policy.model, save_embedding_layers=False))


def _other_model(path: Path, how: str) -> StoreError:
    return StoreError(
        f"is of another model ({how})", where=str(path), fix="Resume with the model it was saved from"
    )


# ---- which checkpoints there are


@dataclass(frozen=True, slots=True)
class Found:
    step: int
    folder: Path


def all_steps(parent: Path) -> list[Found]:
    """Folders named as checkpoints, by step; whether they are whole is another question."""
    if not parent.is_dir():
        return []
    named = ((_STEP.fullmatch(entry.name), entry) for entry in parent.iterdir() if entry.is_dir())
    return sorted((Found(int(m[1]), entry) for m, entry in named if m), key=lambda found: found.step)


def latest(parent: Path) -> Path | None:
    """The newest checkpoint that is whole, all checksums verified; damaged ones are passed over."""
    for found in reversed(all_steps(parent)):
        with contextlib.suppress(StoreError):
            check(found.folder, inspect(found.folder))
            return found.folder
    return None


def keep(parent: Path, last: int, also: Collection[int] = ()) -> list[Path]:
    """Remove all but the newest `last` and the steps in `also`; returns what went.

    Only checkpoints that look whole count as kept, so a damaged one never costs a good one its place.
    """
    whole = [found for found in all_steps(parent) if _looks_whole(found.folder)]
    kept = {found.step for found in whole[-last:]} if last > 0 else set()
    oldest = min(kept, default=float("inf"))
    gone = [f.folder for f in all_steps(parent) if f.step < oldest and f.step not in also]
    for folder in gone:
        remove(folder)
    return gone


def inspect(folder: Path) -> dict[str, Any]:
    """The checked content of state.json: the keys schema, model, state and files."""
    path = folder / "state.json"
    try:
        body = json.loads(path.read_bytes())
        claimed = body.pop("sha256")
        fine = body["schema"] == SCHEMA and claimed == _digest(body)
    except OSError as error:
        raise StoreError(
            f"is no checkpoint (state.json: {error.strerror})", where=str(folder), fix=_FIX
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError):
        fine = False
    if not fine:
        raise _damaged(path)
    return dict(body)


def check(folder: Path, body: dict[str, Any]) -> None:
    """Raise StoreError, naming the file, unless every file is as it was written."""
    for name, told in body["files"].items():
        try:
            fine = (folder / name).stat().st_size == told["bytes"] and _sha256(folder / name) == told[
                "sha256"
            ]
        except OSError:
            fine = False
        if not fine:
            raise _damaged(folder / name)


def _looks_whole(folder: Path) -> bool:
    """Without reading the large files."""
    try:
        files = inspect(folder)["files"]
        return all((folder / name).stat().st_size == told["bytes"] for name, told in files.items())
    except (StoreError, OSError):
        return False


_FIX = "Take an earlier checkpoint"


def _damaged(path: Path) -> StoreError:
    return StoreError("is damaged: its checksum does not match", where=str(path), fix=_FIX)


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(encode(body, "state.json")).hexdigest()


def _describe_file(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
