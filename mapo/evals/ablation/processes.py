"""Run the cells of an ablation, several at a time, each as a `mapo train` in its own process.

A run that fails does not affect the others. When the ablation is stopped, its runs are stopped too; they
resume from their last checkpoint.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from mapo.evals.ablation.cells import GridCell, label_of
from mapo.evals.processes import last_step, run_logged
from mapo.show.progress import Progress, clock
from mapo.store import RunDir
from mapo.untrusted import PYTHON

TRAIN = [*PYTHON, "-m", "mapo", "train"]
_ALONE = ["run.threads=1", "run.processes=1", "run.shard=false"]


async def run_cells(progress: GridProgress) -> None:
    """Run every unfinished cell; the failed ones end up in `progress.failed`."""
    gate = asyncio.Semaphore(progress.jobs)

    async def one(cell: GridCell) -> None:
        async with gate:
            progress.begins(cell)
            try:
                problem = await _train(progress.out, cell, progress.engine)
            except (
                OSError
            ) as error:  # the process or its log could not be created; continue with the next cell
                problem = str(error)
            progress.ends(cell, problem)

    async def tick() -> None:
        while True:
            progress.update()
            await asyncio.sleep(2)

    ticking = asyncio.create_task(tick())
    try:
        async with asyncio.TaskGroup() as group:
            for cell in progress.todo:
                group.create_task(one(cell))
    finally:
        ticking.cancel()


def _command(out: Path, cell: GridCell, engine: str) -> list[str]:
    """Return the command of a run; one that was begun is resumed."""
    folder = out / cell.name
    return [
        *TRAIN,
        str(RunDir(out).config),
        *cell.overrides,
        *(_ALONE if engine == "local" else [f"--engine={engine}"]),
        f"--out={folder}",
        *(["--resume"] if RunDir(folder).manifest.exists() else []),
    ]


async def _train(out: Path, cell: GridCell, engine: str) -> str | None:
    """Run one cell in its own process; return why it failed, if it did. If cancelled, end the process."""
    path = RunDir(out).logs / f"{cell.name}.log"
    variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS") if engine == "local" else ()
    threads = dict.fromkeys(variables, "1")
    problem = await run_logged(_command(out, cell, engine), path, threads)
    if problem is None and not RunDir(out / cell.name).summary.exists():
        return "it ended without a summary"
    return problem


class GridProgress:
    """Progress of a grid: one line per finished run, and the display of the runs in progress."""

    def __init__(
        self,
        out: Path,
        cells: list[GridCell],
        jobs: int,
        steps: int | Mapping[GridCell, int],
        engine: str = "local",
    ) -> None:
        self.out, self.cells, self.jobs, self.engine = out, cells, jobs, engine
        self.steps = {cell: steps if isinstance(steps, int) else steps[cell] for cell in cells}
        self.todo = [c for c in cells if not RunDir(out / c.name).summary.exists()]
        self.total, self.done = len(cells), len(cells) - len(self.todo)
        self.running: dict[GridCell, float] = {}
        self.failed: dict[GridCell, str] = {}
        self.progress = Progress()

    def __enter__(self) -> Self:
        self.progress.print(self.plan())
        self.progress.begin("", self.total, self.done, unit="done", work=self._work())
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.close()

    def plan(self) -> str:
        """Say which runs there are, which of them are finished, and where their logs are."""
        parts: dict[str, list[str]] = {}
        for key in self.cells[0].shown if self.cells else ():
            name = {"method": "methods", "reward": "rewards"}.get(label_of(key), label_of(key))
            parts[name] = [c.shown[key] for c in self.cells]
        parts["seeds"] = [str(c.seed) for c in self.cells]
        grid = "; ".join(f"{name} {', '.join(dict.fromkeys(values))}" for name, values in parts.items())
        headline = f"{self.total} runs, {self.done} of them finished: {grid}"
        if not self.todo:
            return f"{headline}\nNothing is left to train in {self.out}."
        parallel = min(self.jobs, len(self.todo))
        steps = " or ".join(str(n) for n in sorted(set(self.steps.values())))
        return (
            f"{headline}\n{parallel} in parallel, {steps} steps each, in {self.out}; "
            f"logs: {RunDir(self.out).logs}"
        )

    def begins(self, cell: GridCell) -> None:
        self.running[cell] = time.monotonic()
        self.update()

    def ends(self, cell: GridCell, problem: str | None) -> None:
        spent = time.monotonic() - self.running.pop(cell)
        if problem is None:
            self.done += 1
            outcome = f"finished in {clock(spent)}"
        else:
            self.failed[cell] = problem
            outcome = f"failed: {problem}"
        self.progress.print(f"{cell.name} {outcome}; {self.done}/{self.total} done")
        self.update()

    def update(self) -> None:
        failed = f"{len(self.failed)} failed" if self.failed else ""
        at = [
            f"{c.name} at step {last_step(RunDir(self.out / c.name).metrics)}/{self.steps[c]}"
            for c in self.running
        ]
        self.progress.update(self.done, failed, f"{len(self.running)} running", *at, work=self._work())

    def saved(self) -> str:
        """Say what is on disk when the ablation is stopped."""
        return f"{self.done} of {self.total} runs are finished; the others resume from their last checkpoint"

    def _work(self) -> float:
        """Return how much of the grid is done, in runs; failed runs count as over."""
        todo = sum(1.0 if c in self.failed else self._share(c) for c in self.todo)
        return self.total - len(self.todo) + todo

    def _share(self, cell: GridCell) -> float:
        """Return the share of a run's steps that is done."""
        folder = self.out / cell.name
        if RunDir(folder).summary.exists():
            return 1.0
        return min(last_step(RunDir(folder).metrics) / max(1, self.steps[cell]), 0.99)
