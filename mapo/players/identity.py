"""What identifies a model beyond its name: the weights of a local one, the address of a served one.

A run is not resumed with other weights. An endpoint may serve anything, so only its address can be recorded,
and a resume that uses another address gets a warning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mapo.body_fields import compact_body
from mapo.local_model.shipped import local_folder

if TYPE_CHECKING:
    from mapo.players.spec import ModelSpec

_WEIGHTS = (".safetensors", ".bin", ".pt")
_BLOCKS, _BLOCK = 64, 1 << 14


def identity(**models: ModelSpec | None) -> dict[str, Any]:
    """Return the manifest entries of models: `addresses` by role, and `weights` of those in folders."""
    known = {role: spec for role, spec in models.items() if spec is not None}
    addresses = {role: spec.address for role, spec in known.items() if spec.address}
    weights = {role: hashed for role, spec in known.items() if (hashed := _weights_of(spec))}
    return {"addresses": addresses, **({"weights": weights} if weights else {})}


def body_entry(spec: ModelSpec, key: str = "body") -> dict[str, str]:
    """Return the manifest entry of a model's body fields, in their compact form; nothing if it has none."""
    return {key: compact_body(spec.sampling.body)} if spec.sampling.body else {}


def _weights_of(spec: ModelSpec) -> str | None:
    folder = local_folder(spec.local) if spec.local else None
    return fingerprint(folder) if folder is not None and folder.is_dir() else None


def fingerprint(folder: Path) -> str:
    """Return a short hash of a model's folder: its JSON files, the names and sizes of its weight files, and
    blocks sampled across them. A training step changes it, and large files need not be read completely."""
    hasher = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if not file.is_file():  # reading a pipe would wait forever
            continue
        if file.suffix == ".json":
            hasher.update(f"{file.name}\n".encode() + file.read_bytes())
        elif file.suffix in _WEIGHTS:
            size = file.stat().st_size
            hasher.update(f"{file.name} {size}\n".encode())
            with open(file, "rb") as data:
                for at in range(_BLOCKS):
                    data.seek(max(0, size - _BLOCK) * at // (_BLOCKS - 1))
                    hasher.update(data.read(_BLOCK))
    return hasher.hexdigest()[:16]


def moved(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return one line per role whose address differs from the one in the manifest."""
    old = before.get("addresses") or {}
    return [
        f"{role} was at {old[role]}, and is now at {address}: is it the same model?"
        for role, address in now["addresses"].items()
        if old.get(role, address) != address
    ]
