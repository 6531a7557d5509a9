"""Metrics of a training step for metrics.jsonl and trackers.

Rewards and returns by turn show where in a dialogue the policy improves. The standard deviations of the
turn-level and batch-level advantages and their correlation show the effect of mixing them. Rewards per axis
and regression show what the reward sums up. Endings, lengths and the share of unscored turns show how
reliable the other numbers are.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from mapo.advantage import Advantages
from mapo.config import Advantage
from mapo.credit import turns_in_state
from mapo.errors import InputError
from mapo.estimators.methods import ESTIMATORS
from mapo.measure.axes import movement_of
from mapo.measure.rubric import Rubric
from mapo.scenarios.scenario import Scenario
from mapo.scoring.attribution import attribution
from mapo.scoring.health import health
from mapo.store import write_error
from mapo.types import Dialogue

Floats = NDArray[np.float64]
CPU = torch.device("cpu")


def dialogue_metrics(
    dialogues: Sequence[Dialogue], scenarios: Sequence[Scenario] = (), rubric: Rubric | None = None
) -> dict[str, Any]:
    """Return metrics of all dialogues of a step, broken ones included. `health` describes the simulated users
    (docs/sandbox.md). The movement per axis needs the `rubric`."""
    turns = [turn for d in dialogues for turn in d.turns]
    rewards = [turn.reward for turn in turns if turn.reward is not None]
    lengths = [len(turn.reply.token_ids or ()) for turn in turns]
    return {
        "dialogues": len(dialogues),
        "broken": sum(not d.usable for d in dialogues),
        "endings": dict(Counter(d.ending.reason.value for d in dialogues if d.ending)),
        "turns": len(turns) / max(1, len(dialogues)),
        "unscored": sum(turn.levels is None for turn in turns) / max(1, len(turns)),
        "reward": _mean(rewards),
        **(movement_of(dialogues, rubric).as_json() if rubric else {}),
        "reply_tokens": _mean(lengths),
        "cut": sum(turn.reply.finish == "length" for turn in turns) / max(1, len(turns)),
        "faults": attribution(dialogues).as_json(),
        "health": health(dialogues, {s.id: s for s in scenarios}).as_json(),
    }


def credit_metrics(rewards: Sequence[Sequence[float | None]], credit: Advantages) -> dict[str, Any]:
    """Return rewards, returns and advantages of the usable dialogues."""
    mask = np.concatenate(credit.mask) if credit.mask else np.zeros(0, bool)
    turn, batch, mixed = (np.concatenate(p)[mask] for p in (credit.turn, credit.batch, credit.mixed))
    totals = [sum(r for r in row if r is not None) for row in rewards]
    return {
        "return": _mean(totals),
        "reward_by_turn": _by_turn([[np.nan if r is None else r for r in row] for row in rewards]),
        "return_by_turn": _by_turn([list(row) for row in credit.returns]),
        "turn_part_std": _std(turn),
        "batch_part_std": _std(batch),
        "advantage_std": _std(mixed),
        "parts_correlation": _correlation(turn, batch),
        "turns_trained": int(mask.sum()),
    }


def fault_metrics(dialogues: Sequence[Dialogue], settings: Advantage) -> dict[str, float]:
    """Return the share of scored turns that were not trained because the user was at fault."""
    if not settings.mask_faults:
        return {}
    at_fault = [turn.user_at_fault for d in dialogues for turn in d.turns if turn.reward is not None]
    return {"masked_faults": sum(at_fault) / max(1, len(at_fault))}


def state_metrics(
    dialogues: Sequence[Dialogue], credit: Advantages, settings: Advantage
) -> dict[str, float | None]:
    """Return, for methods that compare turns in the same state, the share of trained turns with a peer."""
    if settings.method not in ESTIMATORS or ESTIMATORS[settings.method].needs != "states":
        return {}
    peers = [n for row in turns_in_state(dialogues, settings, credit) for n in row if n]
    return {"matched": _mean([float(n > 1) for n in peers])}


def role_time(processes: Sequence[dict[str, dict[str, float]]], rollout_s: float) -> dict[str, Any]:
    """Return the seconds of a rollout in which models on this machine computed, by role and kind, and the
    `rest`: waiting for endpoints, prompts, records. Of several processes, it is the busiest one."""
    busy = [sum(sum(kinds.values()) for kinds in roles.values()) for roles in processes]
    longest = max(range(len(busy)), key=busy.__getitem__)
    return {**processes[longest], "rest": max(0.0, rollout_s - busy[longest])}


def role_ids(processes: Sequence[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    """Return the ids that models on this machine were fed or sampled, by role and kind, in all processes."""
    total: dict[str, dict[str, int]] = {}
    for roles in processes:
        for role, kinds in roles.items():
            counted = total.setdefault(role, {})
            for kind, ids in kinds.items():
                counted[kind] = counted.get(kind, 0) + ids
    return total


def gpu_memory(processes: Sequence[float | None]) -> dict[str, float]:
    """Return the most memory in use on a GPU, of the peaks that the processes saw; nothing without a GPU."""
    peaks = [peak for peak in processes if peak is not None]
    return {"gpu_gb": max(peaks)} if peaks else {}


def reset_memory() -> None:
    """Begin a new peak of this process's memory on the GPU."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def memory_gb() -> float:
    """Return the peak memory of this process in GiB: on the GPU since `reset_memory` if there is one, else in
    main memory."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def _std(values: Floats) -> float:
    return float(values.std()) if len(values) else 0.0


def _correlation(a: Floats, b: Floats) -> float | None:
    """Return the correlation, or None if one of them is constant."""
    if len(a) < 2 or not a.std() or not b.std():
        return None
    return float(np.corrcoef(a, b)[0, 1])


def _by_turn(rows: Sequence[Sequence[float]]) -> list[float | None]:
    """Return the mean at each turn over the dialogues that have a value there."""
    columns: list[list[float]] = [[] for _ in range(max(map(len, rows), default=0))]
    for row in rows:
        for t, value in enumerate(row):
            if not np.isnan(value):
                columns[t].append(value)
    return [_mean(column) for column in columns]


class Stopwatch:
    """Seconds of named parts of some work on a device.

    `start(name)` ends the part before and begins the next one; `seconds()` ends the last one. On a GPU the
    parts are measured on its own clock, by events in the current stream, so nothing waits until the end.
    """

    def __init__(self, device: torch.device = CPU) -> None:
        self._device, self._made = device, time.perf_counter()
        self._marks: list[tuple[str, Any]] = []

    def start(self, name: str) -> None:
        """Begin a part; the time of parts with the same name adds up."""
        self._marks.append((name, self._mark()))

    def seconds(self) -> dict[str, float]:
        """Return the seconds of every part. This synchronises with the device."""
        if not self._marks:
            return {}
        self.start("")
        times = [mark for _, mark in self._marks]
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        parts: dict[str, float] = {}
        for (name, began), ended in zip(self._marks[:-1], times[1:], strict=True):
            parts[name] = parts.get(name, 0.0) + self._between(began, ended)
        self._marks.clear()
        return parts

    def elapsed(self) -> float:
        """Return the seconds since this stopwatch was made."""
        return time.perf_counter() - self._made

    def _mark(self) -> Any:
        """Return the current time, or on a GPU an event that will have the time when the GPU reaches it."""
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _between(self, began: Any, ended: Any) -> float:
        return float(began.elapsed_time(ended) / 1000 if self._device.type == "cuda" else ended - began)


class Tracker(Protocol):
    """A service or file that receives the metrics of each step."""

    def log(self, numbers: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """A TensorBoard event file, written synchronously: tensorboard's own writer uses a thread, which dies
    with a traceback when the disk is full."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"events.out.tfevents.{time.time_ns()}.{os.getpid()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "wb")  # noqa: SIM115 (closed by close)
        except OSError as error:
            raise write_error(self.path, error) from error
        self._write(file_version="brain.Event:2")

    def log(self, numbers: dict[str, float], step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._write(step=step, summary=Summary(value=values))

    def _write(self, **event: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        try:
            RecordWriter(self._file).write(Event(wall_time=time.time(), **event).SerializeToString())
            self._file.flush()
        except OSError as error:
            raise write_error(self.path, error) from error

    def close(self) -> None:
        with contextlib.suppress(OSError):  # reported by _write
            self._file.close()


class HostedTracker:
    """A tracker with the interface of wandb and trackio."""

    def __init__(self, module: Any, name: str, config: dict[str, Any]) -> None:
        self._module = module
        run_id = {"id": name} if module.__name__ == "wandb" else {}
        module.init(project="mapo", name=name, config=config, resume="allow", **run_id)

    def log(self, numbers: dict[str, float], step: int) -> None:
        self._module.log(numbers, step=step)

    def close(self) -> None:
        self._module.finish()


def check_trackers(kinds: Sequence[str]) -> None:
    """Raise InputError if a tracker is not installed."""
    for kind in kinds:
        if importlib.util.find_spec(kind) is None:
            raise InputError(
                f"run.trackers names {kind}, which is not installed",
                fix=f"Run: pip install {kind}, or leave it out: run.trackers=[]",
            )


def open_trackers(kinds: Sequence[str], folder: Path, name: str, config: dict[str, Any]) -> list[Tracker]:
    """Open the trackers of a run; a resumed run continues under its name."""
    check_trackers(kinds)
    return [
        TensorBoard(folder)
        if kind == "tensorboard"
        else HostedTracker(importlib.import_module(kind), name, config)
        for kind in kinds
    ]


def flat(record: dict[str, Any], before: str = "") -> dict[str, float]:
    """Return the numbers of a nested record by path ("health/x", "reward_by_turn/1"), as trackers expect."""
    numbers: dict[str, float] = {}
    for key, value in record.items():
        name = f"{before}{key}"
        if isinstance(value, bool | int | float):
            numbers[name] = float(value)
        elif isinstance(value, dict):
            numbers |= flat(value, f"{name}/")
        elif isinstance(value, list | tuple):
            numbers |= flat({str(i): v for i, v in enumerate(value, 1)}, f"{name}/")
    return numbers
