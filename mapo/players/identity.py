"""Which model was it? A name is not enough: folders are trained on, and addresses serve what they like.

A local model's weights have a fingerprint, and a run is not resumed with others. An endpoint can be known by
its address alone; that is written down, and told where it changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mapo.players.who import Who

_WEIGHTS = (".safetensors", ".bin", ".pt")
_BLOCKS, _BLOCK = 64, 1 << 14


def identity(**who: Who | None) -> dict[str, Any]:
    """For a manifest: `addresses` by role, and `weights` where the model is a folder."""
    known = {role: someone for role, someone in who.items() if someone is not None}
    addresses = {role: someone.address for role, someone in known.items() if someone.address}
    weights = {role: hashed for role, someone in known.items() if (hashed := _weights_of(someone))}
    return {"addresses": addresses, **({"weights": weights} if weights else {})}


def _weights_of(who: Who) -> str | None:
    folder = Path(who.local).expanduser() if who.local else None
    return fingerprint(folder) if folder is not None and folder.is_dir() else None


def fingerprint(folder: Path) -> str:
    """A short hash of a model's folder: its JSON files, the names and sizes of its weights, and blocks taken
    from all over them, so that a step of training shows and large files need not be read."""
    seen = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.suffix == ".json":
            seen.update(f"{file.name}\n".encode() + file.read_bytes())
        elif file.suffix in _WEIGHTS:
            size = file.stat().st_size
            seen.update(f"{file.name} {size}\n".encode())
            with open(file, "rb") as data:
                for at in range(_BLOCKS):
                    data.seek(max(0, size - _BLOCK) * at // (_BLOCKS - 1))
                    seen.update(data.read(_BLOCK))
    return seen.hexdigest()[:16]


def moved(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Where a role's address is another one than in the manifest before."""
    then = before.get("addresses") or {}
    return [
        f"{role} was at {then[role]}, and is now at {address}: is it the same model?"
        for role, address in now["addresses"].items()
        if then.get(role, address) != address
    ]
