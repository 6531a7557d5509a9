"""The runs of a grid, several at once, each a `mapo train` in a process of its own.

A run that fails costs itself alone. When the whole is stopped, the runs are stopped with it: they are made to
be cut off at any instant, and go on from their last checkpoint.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from shlex import quote

from mapo.cli.common.say import say
from mapo.cli.common.stop import until_stopped
from mapo.errors import RecordError
from mapo.evals.ablation.analysis import Cell
from mapo.records import parse
from mapo.store import RunDir
from mapo.text import printable

TRAIN = [sys.executable, "-m", "mapo", "train"]
PAUSE = 60
"""Seconds between two lines about runs under way, where there is no terminal."""
TAIL = 1 << 16
"""Bytes at the end of metrics.jsonl that hold its last line; files grow long, and are looked at often."""


def _command(out: Path, cell: Cell) -> list[str]:
    """The cell's run; one that was begun goes on."""
    folder = out / cell.name
    return [
        *TRAIN,
        str(RunDir(out).config),
        f'advantage.method="{cell.method}"',
        f'reward.name="{cell.reward}"',
        f"run.seed={cell.seed}",
        "run.threads=1",
        "run.processes=1",
        f"--out={folder}",
        *(["--resume"] if RunDir(folder).manifest.exists() else []),
    ]


def play_grid(out: Path, cells: list[Cell], jobs: int, steps: int) -> dict[Cell, str]:
    """Play what is missing; the runs that failed, each with the last line it said."""
    with Board(out, cells, jobs, steps) as board:
        until_stopped(_all(out, board, jobs), out, board.kept, command=f"mapo ablate --out {quote(str(out))}")
    return board.failed


async def _all(out: Path, board: Board, jobs: int) -> None:
    gate = asyncio.Semaphore(jobs)

    async def one(cell: Cell) -> None:
        async with gate:
            board.begins(cell)
            try:
                problem = await _play(out, cell)
            except OSError as error:  # no process, or no log: the next one may have more luck
                problem = str(error)
            board.ends(cell, problem)

    async def tick() -> None:
        while True:
            board.show()
            await asyncio.sleep(2)

    ticking = asyncio.create_task(tick())
    try:
        async with asyncio.TaskGroup() as group:
            for cell in board.todo:
                group.create_task(one(cell))
    finally:
        ticking.cancel()


async def _play(out: Path, cell: Cell) -> str | None:
    """One run in a process of its own; why it failed, if it did. A run that is cut off is ended."""
    log = RunDir(out).logs / f"{cell.name}.log"
    log.parent.mkdir(exist_ok=True)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    with open(log, "ab") as said:
        begin = said.tell()  # of what this try says, after those before it
        process = await asyncio.create_subprocess_exec(
            *_command(out, cell),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env={**os.environ, **threads},
        )
        try:
            status = await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                try:
                    await asyncio.wait_for(process.wait(), 10)
                except TimeoutError:
                    process.kill()
                    await process.wait()
    if status == 0 and RunDir(out / cell.name).summary.exists():
        return None
    lines = log.read_bytes()[begin:].decode(errors="replace").splitlines()
    return next((x.strip() for x in reversed(lines) if x.strip()), "") or f"exit status {status}"


class Board:
    """How the grid stands, on standard error: a line a finished run, and about those under way a line that is
    written anew on a terminal, and elsewhere one a minute."""

    def __init__(self, out: Path, cells: list[Cell], jobs: int, steps: int) -> None:
        from rich.status import Status

        from mapo.text import terminal

        self.out, self.steps, self.jobs, self.cells = out, steps, jobs, cells
        self.todo = [c for c in cells if not RunDir(out / c.name).summary.exists()]
        self.total, self.done = len(cells), len(cells) - len(self.todo)
        self.running: dict[Cell, float] = {}
        self.failed: dict[Cell, str] = {}
        self.began = self.said = time.monotonic()
        self.before = sum(map(self._share, self.todo))
        self.console = terminal(stderr=True, soft_wrap=True)
        self.live = Status("", console=self.console) if self.console.is_terminal else None

    def __enter__(self) -> Board:
        say(self.plan())
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def plan(self) -> str:
        """What there is to do, and where to look meanwhile."""
        parts = {
            "methods": [c.method for c in self.cells],
            "rewards": [c.reward for c in self.cells],
            "seeds": [str(c.seed) for c in self.cells],
        }
        grid = "; ".join(f"{name} {', '.join(dict.fromkeys(all_))}" for name, all_ in parts.items())
        first = f"{self.total} runs, {self.done} of them finished: {grid}"
        if not self.todo:
            return f"{first}\nnothing is left to train in {self.out}"
        at_once = min(self.jobs, len(self.todo))
        logs = RunDir(self.out).logs
        return f"{first}\n{at_once} at once, {self.steps} steps each, in {self.out}; what they say: {logs}"

    def begins(self, cell: Cell) -> None:
        self.running[cell] = time.monotonic()
        self.show()

    def ends(self, cell: Cell, problem: str | None) -> None:
        spent = time.monotonic() - self.running.pop(cell)
        if problem is None:
            self.done += 1
            word = f"finished in {_clock(spent)}"
        else:
            self.failed[cell] = problem
            word = f"failed: {problem}"
        self._print(f"{cell.name} {word}; {self.text()}")
        self.show()

    def text(self) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"{self.done}/{self.total} done, {len(self.running)} running{failed}, {self._left()} left"

    def kept(self) -> str:
        return f"{self.done} of {self.total} runs are finished, the others keep what they played"

    def under_way(self) -> str:
        """How it stands; then each run that is being played, and at which step it is."""
        at = [f"{c.name} {last_step(RunDir(self.out / c.name).metrics)}/{self.steps}" for c in self.running]
        return f"{self.text()}; at step: {', '.join(at)}" if at else self.text()

    def show(self) -> None:
        if self.live:
            from rich.text import Text

            line = Text(self.under_way())
            line.truncate(self.console.width - 3, overflow="ellipsis")  # beside the spinner
            self.live.update(line)
        elif time.monotonic() - self.said >= PAUSE:
            self._print(self.under_way())

    def _print(self, line: str) -> None:
        self.said = time.monotonic()
        self.console.print(printable(line), markup=False)

    def _left(self) -> str:
        """By how much of all steps was done since the start; failed runs count as over."""
        now = sum(1.0 if c in self.failed else self._share(c) for c in self.todo)
        if now <= self.before:
            return "?"
        return _clock((time.monotonic() - self.began) / (now - self.before) * (len(self.todo) - now))

    def _share(self, cell: Cell) -> float:
        """How much of a run is done."""
        run = RunDir(self.out / cell.name)
        if run.summary.exists():
            return 1.0
        return min(last_step(run.metrics) / max(1, self.steps), 0.99)


def last_step(metrics: Path) -> int:
    """The step of the last line that is whole; 0 before there is one."""
    try:
        with open(metrics, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().splitlines(keepends=True)
    except OSError:
        return 0
    for line in reversed(lines):
        with suppress(RecordError):
            step = parse(line).get("step") if line.endswith(b"\n") else None
            if isinstance(step, int):
                return step
    return 0


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
