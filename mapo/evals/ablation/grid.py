"""The grid of an ablation on disk: which runs it has and which settings they share.

OUT/config.toml holds what all runs share (and one value of what varies), OUT/manifest.json the grid,
OUT/METHOD_REWARD_seedK and the like the runs (`GridCell.name`), and OUT/logs their output.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from mapo.config import Config, dump_config, load_config, set_earlier_defaults
from mapo.errors import InputError
from mapo.evals.ablation.cells import METHOD, REWARD, SEED, GridCell, axes_of, cells_of, toml_value
from mapo.runs.provenance import provenance
from mapo.store import RunDir, write_atomic
from mapo.untrusted import parse_json, read_file

SCHEMA, SCHEMA_ANY = "mapo.ablate/1", "mapo.ablate/2"
"""A grid of methods and rewards, and a grid of any settings (`vary` instead of `methods` and `rewards`)."""
RESUMABLE = {
    *(f"run.{key}" for key in ("threads", "processes", "shard", "trackers", "keep", "checkpoint_every")),
    *(f"model.{key}" for key in ("device", "compile", "checkpointing", "stream")),
    "rollout.vllm_memory",
}
"""Settings that may differ when a grid is resumed: they affect how runs are executed, not their results."""
FIXED = {
    "run.threads": "each run has one thread",
    "run.processes": "each run has one process",
    "run.shard": "each run has one process",
}
"""Settings that cannot vary on the local engine."""
LARGEST = 2000
"""Most runs of a grid."""


def as_grid(axes: Mapping[str, Sequence[Any]], seeds: Sequence[int]) -> dict[str, Any]:
    """Return a grid as its manifest stores it, from the values of each varied setting.

    Methods and rewards come first.
    """
    order = [key for key in (METHOD, REWARD) if key in axes]
    values = {key: _union(axes[key], ()) for key in dict.fromkeys([*order, *axes])}
    if list(values) == [METHOD, REWARD]:
        return {"methods": values[METHOD], "rewards": values[REWARD], "seeds": list(seeds)}
    return {"vary": values, "seeds": list(seeds)}


def configs_of(
    source: str | None,
    overrides: Sequence[str],
    cells: Sequence[GridCell],
    *,
    engine: str = "local",
    flat: bool = False,
) -> dict[GridCell, Config]:
    """Return the config of every run, which checks all combinations before anything is started.

    `source` is a config file or the name of a shipped config; `flat` as in `load_config`.
    """
    for key, _ in cells[0].settings if cells and engine == "local" else ():
        if key in FIXED:
            raise InputError(f"{key} cannot vary: {FIXED[key]}", where="--vary", fix="Leave it out")
    if len(cells) > LARGEST:
        raise InputError(f"the grid has {len(cells)} runs", fix=f"A grid has at most {LARGEST}")
    if len({cell.name.casefold() for cell in cells}) < len(cells):
        raise InputError("two runs of the grid would have the same folder name", where="--vary")
    known: dict[tuple[tuple[str, str], ...], Config] = {}
    for cell in cells:
        if cell.settings not in known:
            config = known[cell.settings] = load_config(source, [*overrides, *cell.overrides], flat=flat)
            working = ("roles.agents", "roles.judge.")
            idle = [k for k, _ in cell.settings if k.startswith("roles.") and not k.startswith(working)]
            if idle and config.roles.agents == "scripted":
                raise InputError(
                    f"{idle[0]} has no effect: user, director and judge are scripted",
                    where="--vary",
                    fix="Add roles.agents=llm and the models of the roles",
                )
    return {cell: known[cell.settings] for cell in cells}


def claim_grid(out: Path, config: Config, wanted: Mapping[str, Any], *, engine: str = "local") -> None:
    """Write the grid and the shared config to `out`, or extend the grid that is there.

    `config` is that of any run of the grid. A folder of something else, or a grid with other settings, is
    refused with nothing written.
    """
    axes = axes_of(wanted)
    settings = _shared_settings(config.model_dump(mode="json"), axes)
    path = RunDir(out).manifest
    if path.exists():
        earlier = read_grid(out)
        _check_same(out, earlier, axes, settings, engine)
        before = axes_of(earlier)
        wanted = as_grid(
            {key: _union(before[key], axes[key]) for key in before}, _union(earlier["seeds"], wanted["seeds"])
        )
    elif out.exists() and any(not e.name.startswith((".", RunDir.config.name)) for e in out.iterdir()):
        raise InputError(
            "the folder is not empty and not an ablation", where=str(out), fix="Choose another --out"
        )
    write_atomic(RunDir(out).config, dump_config(config))
    grid = {
        "schema": SCHEMA_ANY if "vary" in wanted else SCHEMA,
        "config": _hash(settings),
        **wanted,
        **({} if engine == "local" else {"engine": engine}),
        "settings": settings,
        **provenance(),
    }
    write_atomic(path, json.dumps(grid, indent=1, allow_nan=False) + "\n")


def read_grid(out: Path) -> dict[str, Any]:
    """Read and check the manifest of an ablation."""
    path = RunDir(out).manifest
    try:
        grid = dict(parse_json(read_file(path)))
        expected = SCHEMA_ANY if "vary" in grid else SCHEMA
        if grid["schema"] != expected or grid["config"] != _hash(grid["settings"]):
            raise ValueError("it has another schema or was edited")
        if math.prod(map(len, (grid["seeds"], *axes_of(grid).values()))) > 100 * LARGEST:
            raise ValueError("it has too many runs")
        cells_of(grid)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"the file is not the manifest of an ablation ({error})", where=str(path), fix="Check --out"
        ) from None
    return grid


def engine_of(grid: Mapping[str, Any]) -> str:
    """Return the engine that trains the runs of a grid."""
    return str(grid.get("engine", "local"))


def _union(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    """Return the values of both, each once, in order."""
    values: dict[str, Any] = {}
    for value in (*a, *b):
        values.setdefault(toml_value(value), value)
    return list(values.values())


def _shared_settings(data: dict[str, Any], varied: Collection[str]) -> dict[str, Any]:
    """Return the settings that all runs share and that affect their results."""

    def kept(part: dict[str, Any], prefix: str) -> dict[str, Any]:
        return {
            key: kept(value, f"{prefix}{key}.") if isinstance(value, dict) else value
            for key, value in part.items()
            if f"{prefix}{key}" not in {*varied, SEED, *RESUMABLE}
        }

    return kept(data, "")


def _check_same(
    out: Path, earlier: dict[str, Any], axes: Mapping[str, Any], now: dict[str, Any], engine: str
) -> None:
    """Refuse to continue a grid of other axes, other settings or another engine."""
    before = axes_of(earlier)
    if set(before) != set(axes):
        raise InputError(
            f"the ablation in this folder varies {', '.join(before)}",
            where=str(out),
            fix="Vary the same settings, or use another --out",
        )
    if engine_of(earlier) != engine:
        raise InputError(
            f"the ablation in this folder was trained with the engine {engine_of(earlier)}",
            where=str(out),
            fix=f"Use --engine {engine_of(earlier)}, or another --out",
        )
    # A setting that did not exist when the grid was started had its default.
    defaults = _flat(_shared_settings(Config().model_dump(mode="json"), axes))
    recorded = deepcopy(earlier["settings"])
    if "advantage.endings" not in axes:
        set_earlier_defaults(recorded)
    then, current = {**defaults, **_flat(recorded)}, _flat(now)
    changed = [key for key in {**current, **then} if then.get(key) != current.get(key)]
    if changed:
        raise InputError(
            f"the ablation in this folder has other settings: {', '.join(changed[:5])}",
            where=str(out),
            fix="Omit the config to continue with its settings, or use another --out",
        )


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by their dotted name."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _hash(data: object) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
