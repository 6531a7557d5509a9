"""Whose folder is it? A benchmark's run is claimed by a manifest, and only the same run may go on in it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mapo.errors import InputError
from mapo.records import encode
from mapo.store import CACHE, RunDir, write_atomic

_LEFT_BEHIND = re.compile(rf"{re.escape(CACHE)}(-wal|-shm|-journal)?|\..+\.\d+\.tmp|ledger\.json(-journal)?")
"""The cache, the costs, and what a kill leaves of files being written."""


def digest(data: object) -> str:
    """A short hash of plain data, for manifests."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def look(out: Path, asked: Mapping[str, Any], *, resume: bool) -> None:
    """Refuse a folder that is not free for this run, or holds another one. Nothing is written."""
    run = RunDir(out)
    if out.exists() and not out.is_dir():
        raise InputError("is a file", where=str(out), fix="--out is a folder")
    if resume and not run.manifest.exists():
        raise InputError("no run to resume", where=str(out), fix="Check --out, or leave out --resume")
    if run.manifest.exists():
        if not resume:
            raise InputError("holds a run already", where=str(out), fix="Add --resume, or use another --out")
        _same(read_manifest(run.manifest), asked, out)
    elif out.is_dir() and not all(_LEFT_BEHIND.fullmatch(f.name) for f in out.iterdir()):
        raise InputError("is not empty and no run", where=str(out), fix="Choose another --out")


def claim(out: Path, asked: Mapping[str, Any]) -> None:
    """Make the folder this run's, unless it is. After everything that may fail at the start: what did not
    start shall not be in the way of what does."""
    manifest = RunDir(out).manifest
    if not manifest.exists():
        write_atomic(manifest, encode(dict(asked), str(manifest)) + b"\n")


def read_manifest(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
        if not isinstance(data, dict):
            raise ValueError("no JSON object")
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read ({error})", where=str(path), fix="Choose another --out") from None
    return data


def _same(there: Mapping[str, Any], asked: Mapping[str, Any], out: Path) -> None:
    keys = {*there, *asked} - {"addresses"}  # a server may move; `identity.moved` tells
    other = sorted(key for key in keys if there.get(key) != asked.get(key))
    if other:
        told = "; ".join(f"{k}: {_short(there.get(k))} there, {_short(asked.get(k))} here" for k in other[:3])
        raise InputError(
            f"the run there is another one ({told})", where=str(out), fix="Resume with the same settings"
        )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
