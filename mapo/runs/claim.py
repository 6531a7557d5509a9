"""Claiming a folder for a benchmark run: its manifest says which run it is, and only that run may resume."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mapo.errors import InputError
from mapo.records import encode
from mapo.runs.provenance import KEYS, provenance
from mapo.store import CACHE, RunDir, write_atomic
from mapo.untrusted import parse_json, read_file

_LEFTOVERS = re.compile(rf"{re.escape(CACHE)}(-wal|-shm|-journal)?|\..+\.\d+\.tmp|ledger\.json(-journal)?")
"""Files that a run may leave before it has a manifest: cache, ledger, and partially written files."""

ADDED_LATER = ("context", "prompts", "trained_on_test")
"""Entries that older manifests lack; they are not compared with those."""


def digest(data: object) -> str:
    """Return a short hash of plain data, for manifests."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def check_folder(out: Path, settings: Mapping[str, Any], *, resume: bool) -> None:
    """Raise InputError if a run with these manifest entries may not start or resume in the folder `out`.
    Nothing is written."""
    run = RunDir(out)
    if out.exists() and not out.is_dir():
        raise InputError("is a file", where=str(out), fix="Give a folder as --out")
    if resume and not run.manifest.exists():
        raise InputError("no run to resume", where=str(out), fix="Check --out, or remove --resume")
    if run.manifest.exists():
        if not resume:
            raise InputError("holds a run already", where=str(out), fix="Add --resume, or use another --out")
        _check_same(read_manifest(run.manifest), settings, out)
    elif out.is_dir() and not all(_LEFTOVERS.fullmatch(f.name) for f in out.iterdir()):
        raise InputError("is not empty and is not a run", where=str(out), fix="Choose another --out")


def claim(out: Path, settings: Mapping[str, Any]) -> None:
    """Write the manifest of a run to the folder `out` unless it has one. Call this after everything that may
    fail at the start, so that a failed start does not block the next one."""
    manifest = RunDir(out).manifest
    if not manifest.exists():
        private = str(settings.get("schema")).startswith("mapo.realsim/")  # the command names private files
        record = {**({} if private else provenance()), **settings}
        write_atomic(manifest, encode(record, str(manifest)) + b"\n")


def read_manifest(path: Path) -> dict[str, Any]:
    """Read a manifest. Raises InputError if it is damaged."""
    try:
        data = parse_json(read_file(path))
        if not isinstance(data, dict):
            raise ValueError("not a JSON object")
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read ({error})", where=str(path), fix="Choose another --out") from None
    return data


def _check_same(old: Mapping[str, Any], new: Mapping[str, Any], out: Path) -> None:
    keys = {*old, *new} - {"addresses", *KEYS}  # a changed address is only a warning (`identity.moved`)
    keys -= {key for key in ADDED_LATER if key not in old}
    changed = sorted(key for key in keys if old.get(key) != new.get(key))
    if changed:
        changes = "; ".join(
            f"{k}: {_short(old.get(k))} there, {_short(new.get(k))} here" for k in changed[:3]
        )
        raise InputError(
            f"the run there is another one ({changes})", where=str(out), fix="Resume with the same settings"
        )


def _short(value: object) -> str:
    if isinstance(value, dict):
        return f"{len(value)} entries"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
