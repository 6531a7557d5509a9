"""What this machine has to offer, for `mapo doctor`: torch and its devices, memory, room for runs.

Looked up, not measured. A machine that cannot train is no failure: evaluating needs neither torch nor a card.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from mapo.errors import MapoError

Check = tuple[str, bool, str]

MEMORY, DISK = 3, 5
"""GiB below which there is little: what the embedded model's training takes; room for a few checkpoints."""
_GIB = 2**30
_CGROUPS = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""The files of a container's limit, by version: the limit, what is used, what of that may go at any time."""


def machine_checks(runs: Path = Path("runs")) -> list[Check]:
    """Each thing with what there is to tell of it, and whether that is enough."""
    return [*_torch(), _memory(), _disk(runs)]


def _torch() -> list[Check]:
    from mapo.local_model.requirements import require_torch

    try:
        require_torch()
        from mapo.local_model.devices import devices, version

        return [("torch", True, version()), ("devices", True, "; ".join(devices()))]
    except MapoError as error:
        return [("torch", False, f"no training here: {error}")]
    except (ImportError, OSError, RuntimeError) as error:  # installed, and broken: a library, a driver
        return [("torch", False, f"cannot be used ({type(error).__name__}: {error})")]


def _memory() -> Check:
    found = memory()
    if found is None:
        return "memory", True, "unknown on this system"
    available, total = (amount / _GIB for amount in found)
    little = f"; little: training the embedded model takes {MEMORY} GiB" if available < MEMORY else ""
    return "memory", not little, f"{available:.1f} GiB available of {total:.1f}{little}"


def memory(root: Path = Path("/")) -> tuple[int, int] | None:
    """Bytes that are available and bytes in all, within the limits of a container; None where nobody says."""
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
        told = {name: int(rest.split()[0]) * 1024 for name, _, rest in (x.partition(":") for x in lines)}
        found = [(told["MemAvailable"], told["MemTotal"]), *_limits(root)]
    except (OSError, ValueError, KeyError, IndexError):
        return None
    return min(left for left, _ in found), min(limit for _, limit in found)


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """What a container may still take, and its limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for _, kind, path in (line.split(":", 2) for line in lines):
        base = root / "sys/fs/cgroup" / kind
        own = base / path.lstrip("/")
        above = own.parents[: len(own.parts) - len(base.parts)]  # a limit anywhere on the way down holds
        for folder in (own, *above) if kind in _CGROUPS else ():
            limit, used, idle = _CGROUPS[kind]
            try:
                most, now = (int((folder / name).read_text(encoding="ascii")) for name in (limit, used))
                stat = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
            except (OSError, ValueError):  # no limit, or not seen from here
                continue
            yield most - now + sum(int(x.split()[1]) for x in stat if x.split()[0] == idle), most


def _disk(runs: Path) -> Check:
    """Free where runs go; a folder that is not there yet will be made in the nearest one that is."""
    place = runs.resolve()
    try:
        there = next(folder for folder in (place, *place.parents) if folder.exists())
        free = shutil.disk_usage(there).free / _GIB
    except OSError as error:
        return "disk", False, f"{place}: {error.strerror}"
    if not there.is_dir() or not os.access(there, os.W_OK):
        return "disk", False, f"{there} cannot be written to; say where runs go: --out"
    little = "; little: checkpoints of a real model take that much" if free < DISK else ""
    return "disk", not little, f"{free:.1f} GiB free for {place}{little}"
