"""LoRA checkpoints of verl -> adapter folders that `mapo eval`, `mapo export` and peft read.

verl stores adapters as one file of tensor shards per rank. Its own export of a LoRA model writes tensors
under names that no library loads, so it is switched off and the shards are joined here.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from mapo.config import Lora
from mapo.errors import StoreError
from mapo.local_model.files import atomic_folder, write_tensors

ADAPTER = "adapter"
"""Folder inside a checkpoint's actor/ folder, next to verl's own files."""
_LAYER_SUFFIXES = (".lora_A.default.weight", ".lora_B.default.weight")


def write_adapter(actor: Path, lora: Lora, base: str) -> Path:
    """Write the adapter of a complete verl checkpoint, unless it is there already; return its folder."""
    from peft import LoraConfig, TaskType

    out = actor / ADAPTER
    if out.exists():
        return out
    tensors = read_adapter(actor)
    config = LoraConfig(
        task_type=TaskType.CAUSAL_LM,
        base_model_name_or_path=base,
        r=lora.rank,
        lora_alpha=int(lora.alpha),
        target_modules=sorted({name.split(".")[-3] for name in tensors}),
        inference_mode=True,
    )
    with atomic_folder(out) as draft:
        shutil.copytree(actor / "huggingface", draft, dirs_exist_ok=True)  # config.json and the tokenizer
        write_tensors(draft / "adapter_model.safetensors", tensors)
        config.save_pretrained(str(draft))
    return out


def read_adapter(actor: Path) -> dict[str, torch.Tensor]:
    """Return the adapter's tensors, joined from the shards of all ranks, under the names that peft writes."""
    files = sorted(actor.glob("model_world_size_*_rank_*.pt"), key=lambda file: int(file.stem.split("_")[-1]))
    expected = int(files[0].stem.split("_")[3]) if files else 1
    if len(files) != expected:
        raise StoreError(
            f"the checkpoint has the weights of {len(files)} of {expected} ranks",
            where=str(actor),
            fix="Every node must write to the same folder: use a shared file system for runs",
        )
    ranks = [_load_shards(file) for file in files]
    names = [name for name in ranks[0] if name.endswith(_LAYER_SUFFIXES)]
    if not names:
        raise StoreError("the checkpoint holds no adapter", where=str(files[0]))
    return {
        name.replace(".default.weight", ".weight"): _join([rank[name] for rank in ranks], files[0])
        for name in names
    }


def _load_shards(file: Path) -> dict[str, Any]:
    import torch.distributed.tensor  # registers its types with the loader

    try:
        shards: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged file makes torch raise
        raise StoreError(f"the checkpoint cannot be read ({error})", where=str(file)) from error
    return shards


def _join(shards: list[Any], file: Path) -> torch.Tensor:
    """Join the shards of one tensor. FSDP2 splits it along one dimension; with one rank it may be whole."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    if not isinstance(shards[0], DTensor):
        return torch.as_tensor(shards[0])
    placements = shards[0].placements
    parts = [shard._local_tensor for shard in shards]
    if len(placements) == 1 and isinstance(placements[0], Shard):
        return torch.cat(parts, dim=placements[0].dim)
    if all(isinstance(placement, Replicate) for placement in placements):
        whole: torch.Tensor = parts[0]
        return whole
    raise StoreError(
        f"the weights are distributed as {placements}, which mapo cannot join",
        where=str(file),
        fix="Remove fsdp_size from verl.settings",
    )
