"""mapo ablate: the same training under every method, reward and seed, and what that shows.

Each run of the grid is a `mapo train` of its own in a process with one thread, several at once (`grid.py`).
Everything is on disk: called again with the same --out, it plays what is missing. OUT/config.toml is what
all runs share, OUT/manifest.json the grid, OUT/METHOD_REWARD_seedK the runs, OUT/logs what they said.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mapo.cli.common.say import say

if TYPE_CHECKING:
    from mapo.evals.ablation.analysis import Cell

METHODS = "mapo,turn,batch,grpo,reinforce++,reinforce++_turn"
GRID = {"advantage.method": "--methods", "reward.name": "--rewards", "run.seed": "--seeds"}
"""What the grid sets in every run, and the option that says to what."""
APART = {
    "run": {"threads", "processes", "trackers", "keep", "checkpoint_every"},
    "model": {"device", "compile", "checkpointing", "stream"},
}
"""What may differ when a grid is taken up again: how a run is done, not what it learns from."""


def ablate(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG|KEY.PATH=VALUE",
            help="What all runs share: a config file or a shipped one's name (pocket), and settings on top.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where it goes (default: runs/ablate-TIME).")] = None,
    methods: Annotated[str | None, typer.Option(help=f"The estimators (default: {METHODS}).")] = None,
    rewards: Annotated[str | None, typer.Option(help="The rewards (default: idr,adr).")] = None,
    seeds: Annotated[str | None, typer.Option(help="How many seeds (5), or which (0,1,2).")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at once (default: the cores).")] = None,
    reach: Annotated[
        float | None, typer.Option(help="Count dialogues up to this training score (default: grpo's last).")
    ] = None,
    only_report: Annotated[bool, typer.Option("--only-report", help="Train nothing; report.")] = False,
) -> None:
    """Train a grid of methods, rewards and seeds at equal numbers of dialogues, and compare them.

    Called again with the same --out, it goes on where it was, by default with the same grid; more methods,
    rewards and seeds may be added. Exit status: 0 all well; 1 some runs failed.
    """
    from mapo.cli.training.grid import play_grid
    from mapo.players.stage import need_torch

    folder = out or Path("runs") / f"ablate-{time.strftime('%Y%m%d-%H%M%S')}"
    if only_report:
        _report(folder, reach)
        return
    asked = _asked(folder, methods, rewards, seeds)
    need_torch()
    with _alone(folder):
        steps = _prepare(folder, given or [], asked)
        failed = play_grid(folder, _cells(asked), jobs or _cores(), steps)
        if any((folder / cell.name / "summary.json").exists() for cell in _cells(_grid(folder))):
            _report(folder, reach)
    for cell, line in failed.items():
        say(f"failed: {cell.name}: {line} ({folder / 'logs' / cell.name}.log)")
    if failed:
        say(f"{len(failed)} runs failed; the same command tries them again")
        raise typer.Exit(1)


# ---- the grid


def _asked(out: Path, methods: str | None, rewards: str | None, seeds: str | None) -> dict[str, list[Any]]:
    """The grid as named; what is not named is as it was in `out`, or the default."""
    there = _grid(out) if (out / "manifest.json").exists() else {}
    asked = {
        "methods": there.get("methods", METHODS.split(",")) if methods is None else _names(methods),
        "rewards": there.get("rewards", ["idr", "adr"]) if rewards is None else _names(rewards),
        "seeds": there.get("seeds", [0, 1, 2, 3, 4]) if seeds is None else _seeds(seeds),
    }
    _known(asked)
    return asked


def _names(text: str) -> list[Any]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _seeds(text: str) -> list[Any]:
    from mapo.errors import InputError

    try:
        found = [int(part) for part in _names(text)]
    except ValueError:
        found = []
    if not found or min(found) < 0 or (found == [0] and "," not in text):
        raise InputError(f"--seeds is '{text}'", fix="A number of seeds (5), or a list of them (0,1,2)")
    return found if "," in text else list(range(found[0]))


def _known(asked: dict[str, list[Any]]) -> None:
    from mapo.advantage import METHODS as ESTIMATORS
    from mapo.errors import InputError
    from mapo.measure.reward import REWARDS

    for option, known in (("methods", ESTIMATORS), ("rewards", tuple(REWARDS))):
        wrong = [name for name in asked[option] if name not in known]
        if wrong or not asked[option]:
            told = f"unknown: {', '.join(wrong)}" if wrong else "is empty"
            raise InputError(told, where=f"--{option}", fix=f"Use some of: {','.join(known)}")


def _cells(grid: dict[str, list[Any]]) -> list[Cell]:
    """Seed by seed, so that what is finished can be compared at any time."""
    from mapo.evals.ablation.analysis import Cell

    return [Cell(m, r, seed) for seed in grid["seeds"] for r in grid["rewards"] for m in grid["methods"]]


def _prepare(out: Path, given: list[str], asked: dict[str, list[Any]]) -> int:
    """Write down what all runs share and the grid, or check that they are what is there; the steps a run."""
    from mapo.config import dump_config, load_config
    from mapo.errors import InputError
    from mapo.store import write_atomic

    files = [text for text in given if "=" not in text]
    overrides = [text for text in given if "=" in text]
    if len(files) > 1:
        raise InputError(f"two configs: {', '.join(files)}", fix="Settings are written key.path=value")
    for text in overrides:
        if (key := text.partition("=")[0].strip()) in GRID:
            raise InputError(f"{key} differs from run to run", fix=f"Say which with {GRID[key]}")
    if not files and (out / "config.toml").is_file():
        files = [str(out / "config.toml")]
    config = load_config(files[0] if files else None, overrides)
    settings = _settings(config.model_dump(mode="json"))
    path = out / "manifest.json"
    if path.exists():
        there = _grid(out)
        _same(out, there["settings"], settings)
        asked = {key: list(dict.fromkeys([*there[key], *asked[key]])) for key in asked}
    elif out.exists() and any(not e.name.startswith((".", "config.toml")) for e in out.iterdir()):
        raise InputError("is not empty and no ablation", where=str(out), fix="Choose another --out")
    write_atomic(out / "config.toml", dump_config(config))
    grid = {"schema": "mapo.ablate/1", "config": _hash(settings), **asked, "settings": settings}
    write_atomic(path, _json(grid))
    return config.optim.steps


def _settings(data: dict[str, Any]) -> dict[str, Any]:
    """What decides the course of all runs alike."""
    mine = {key.partition(".")[::2] for key in GRID}
    return {
        section: {
            k: v for k, v in part.items() if (section, k) not in mine and k not in APART.get(section, ())
        }
        for section, part in data.items()
    }


def _same(out: Path, there: dict[str, Any], here: dict[str, Any]) -> None:
    from mapo.errors import InputError

    other = [f"{s}.{k}" for s in here for k in here[s] if there.get(s, {}).get(k) != here[s][k]]
    if other:
        raise InputError(
            f"the ablation there has other settings: {', '.join(other[:5])}",
            where=str(out),
            fix="Leave out the config to go on with its own, or use another --out",
        )


def _grid(out: Path) -> dict[str, Any]:
    import json

    from mapo.errors import InputError

    path = out / "manifest.json"
    try:
        grid = dict(json.loads(path.read_bytes()))
        if grid["schema"] != "mapo.ablate/1" or grid["config"] != _hash(grid["settings"]):
            raise ValueError("another schema, or changed by hand")
        _cells(grid)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"no ablation ({error})", where=str(path), fix="Check --out") from None
    return grid


def _hash(data: object) -> str:
    import hashlib
    import json

    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def _json(data: object) -> str:
    import json

    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _alone(out: Path) -> Any:
    """One `mapo ablate` at a time in a folder."""
    import fcntl
    from contextlib import contextmanager

    from mapo.errors import InputError, StoreError

    @contextmanager
    def held() -> Any:
        try:
            out.mkdir(parents=True, exist_ok=True)
            lock = open(out / ".lock", "w")  # noqa: SIM115 (closed below)
        except OSError as error:
            raise StoreError(f"cannot be written ({error.strerror})", where=str(out)) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError("an ablation is running there", where=str(out), fix="Wait for it") from None
            yield

    return held()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---- reporting it


def _report(out: Path, reach: float | None) -> None:
    """ablation.json, ablation.md, ablation.png and ablation.svg of the runs that are finished."""
    from mapo.errors import InputError
    from mapo.evals.ablation.analysis import analyse, read_run
    from mapo.evals.ablation.report import draw, markdown, print_report
    from mapo.scripted.notice import scripted_world
    from mapo.store import write_atomic

    grid = _grid(out)
    cells = _cells(grid)
    found = [run for cell in cells if (run := read_run(out, cell)) is not None]
    report = analyse(found, wanted=len(cells), reach=reach)
    write_atomic(out / "ablation.json", _json(report))
    told = grid["settings"]
    scripted = told["roles"]["agents"] == "scripted"
    caution = scripted_world([told["scenarios"]["domain"]]) if scripted else ""
    write_atomic(out / "ablation.md", markdown(report, caution=caution))
    print_report(report, caution=caution)
    try:
        draw(report, out)
    except InputError as error:
        say(f"warning: no figure: {error}")
    say(f"report: {out / 'ablation.md'}")
