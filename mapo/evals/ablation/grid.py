"""The grid of an ablation on disk: which runs it has and which settings they share.

OUT/config.toml holds what all runs share, OUT/manifest.json the grid, OUT/METHOD_REWARD_seedK the runs and
OUT/logs their output.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mapo.config import Config, dump_config
from mapo.errors import InputError, StoreError
from mapo.evals.ablation.analysis import GridCell
from mapo.runs.provenance import provenance
from mapo.store import RunDir, write_atomic

SCHEMA = "mapo.ablate/1"
VARIED = {"advantage.method", "reward.name", "run.seed"}
"""Settings that differ from run to run."""
RESUMABLE = {
    "run": {"threads", "processes", "trackers", "keep", "checkpoint_every"},
    "model": {"device", "compile", "checkpointing", "stream"},
}
"""Settings that may differ when a grid is resumed: they affect how runs are executed, not their results."""


def cells_of(grid: Mapping[str, list[Any]]) -> list[GridCell]:
    """Return the runs of a grid, seed by seed, so that the finished ones can be compared at any time."""
    return [GridCell(m, r, seed) for seed in grid["seeds"] for r in grid["rewards"] for m in grid["methods"]]


def claim_grid(out: Path, config: Config, wanted: Mapping[str, list[Any]]) -> None:
    """Write the grid and the shared config to `out`, or extend the grid that is there.

    A folder of something else, or a grid with other settings, is refused with nothing written.
    """
    settings = _shared_settings(config.model_dump(mode="json"))
    path = RunDir(out).manifest
    if path.exists():
        earlier = read_grid(out)
        _check_same(out, earlier["settings"], settings)
        wanted = {key: list(dict.fromkeys([*earlier[key], *wanted[key]])) for key in wanted}
    elif out.exists() and any(not e.name.startswith((".", RunDir.config.name)) for e in out.iterdir()):
        raise InputError(
            "the folder is not empty and not an ablation", where=str(out), fix="Choose another --out"
        )
    write_atomic(RunDir(out).config, dump_config(config))
    grid = {
        "schema": SCHEMA,
        "config": _hash(settings),
        **wanted,
        "settings": settings,
        **provenance(),
    }
    write_atomic(path, json.dumps(grid, indent=1, allow_nan=False) + "\n")


def read_grid(out: Path) -> dict[str, Any]:
    """Read and check the manifest of an ablation."""
    path = RunDir(out).manifest
    try:
        grid = dict(json.loads(path.read_bytes()))
        if grid["schema"] != SCHEMA or grid["config"] != _hash(grid["settings"]):
            raise ValueError("it has another schema or was edited")
        cells_of(grid)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"the file is not the manifest of an ablation ({error})", where=str(path), fix="Check --out"
        ) from None
    return grid


def _shared_settings(data: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that all runs share and that affect their results."""
    return {
        section: {
            key: value
            for key, value in part.items()
            if f"{section}.{key}" not in VARIED and key not in RESUMABLE.get(section, ())
        }
        for section, part in data.items()
    }


def _check_same(out: Path, earlier: dict[str, Any], now: dict[str, Any]) -> None:
    changed = [f"{s}.{k}" for s in now for k in now[s] if earlier.get(s, {}).get(k) != now[s][k]]
    if changed:
        raise InputError(
            f"the ablation in this folder has other settings: {', '.join(changed[:5])}",
            where=str(out),
            fix="Omit the config to continue with its settings, or use another --out",
        )


def _hash(data: object) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Create `out` if needed and allow one ablation at a time in it."""
    import fcntl

    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = open(RunDir(out).ablation_lock, "w")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise StoreError(f"the folder cannot be written ({error.strerror})", where=str(out)) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                "another ablation is running in this folder", where=str(out), fix="Wait until it ends"
            ) from None
        yield
