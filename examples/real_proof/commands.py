"""Running the commands of a stage: several at a time, resumable, within a time limit.

A command is finished when WORK/stages/NAME.json says so; its output is appended to WORK/logs/NAME.log. One
that was begun is called again with --resume, and continues from what it has on disk.

An evaluation that ends without some of its dialogues is tried once more and then counts as finished: a
dialogue that can never be played must not stop the study. An attempt that dies before it has tried all
dialogues is a failure instead, and does not count.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path

from measures import end_files, has_ended, lost_cases

from mapo.errors import InputError, MapoError
from mapo.evals.processes import run_logged
from mapo.evals.reproduce.execute import StageFiles
from mapo.evals.reproduce.stages import Stage
from mapo.store import RunDir
from mapo.untrusted import PYTHON

SCRIPT = "script"
ATTEMPTS = 2
"""How often an evaluation may try to play the dialogues that it misses."""
SAFETY = 1.3
"""How much longer than earlier ones a test may take."""


def mapo(name: str, folder: Path, *words: object) -> Stage:
    """Return a `mapo` command that writes to `folder` and can be resumed."""
    arguments = tuple(map(str, words))
    return Stage(name, "mapo", folder, (*arguments, "--out", str(folder)), arguments)


def script(name: str, file: Path, *words: object) -> Stage:
    """Return a Python script beside this one, which skips what it has already done."""
    arguments = tuple(map(str, words))
    return Stage(name, SCRIPT, file, arguments, arguments)


class OutOfTimeError(Exception):
    """The time limit was reached; what is on disk can be continued."""


class Runner:
    """Runs commands in `work`, `jobs` at a time, until `deadline` (of time.monotonic). `only` are patterns of
    command names. `failed` maps commands to the reason."""

    def __init__(
        self, work: Path, jobs: int = 1, deadline: float | None = None, only: Sequence[str] = ()
    ) -> None:
        self.work, self.jobs, self.deadline, self.only = work, jobs, deadline, only
        self.files, self.began = StageFiles(work), time.monotonic()
        self.failed: dict[str, str] = {}

    def finished(self, command: Stage) -> bool:
        """Return whether a command is finished. Raises InputError if it was begun with other settings."""
        try:
            return self.files.finished(command)
        except InputError as error:
            fix = "Repeat the earlier settings, or use another --work"
            raise InputError(error.problem, where=error.where, fix=fix) from None

    async def run(
        self,
        commands: Sequence[Stage],
        *,
        always: bool = False,
        repeat: Callable[[Stage], bool] = lambda _: True,
    ) -> None:
        """Run the commands that are not finished and that `only` names (with `always`, all). A failed one
        does not stop the others. Raises OutOfTimeError at the deadline, and MapoError if a file cannot be
        read, after ending those that run.

        `repeat` says whether a command that left something out is tried again.
        """
        chosen = [
            c for c in commands if always or not self.only or any(matches(c.name, p) for p in self.only)
        ]
        unfinished = [command for command in chosen if not self.finished(command)]
        gate, late = asyncio.Semaphore(self.jobs), []

        async def one(command: Stage) -> None:
            async with gate:
                if self._fits(command):
                    await self._run(command, repeat)
                else:
                    late.append(command.name)
                    print(f"{command.name} postponed: not enough time left", flush=True)

        try:
            async with asyncio.timeout_at(self._loop_deadline()), asyncio.TaskGroup() as group:
                for command in unfinished:
                    group.create_task(one(command))
        except TimeoutError:
            raise OutOfTimeError from None
        except ExceptionGroup as group:
            if all(isinstance(error, MapoError) for error in group.exceptions):
                raise group.exceptions[0] from None
            raise
        if late:
            raise OutOfTimeError

    def _fits(self, command: Stage) -> bool:
        """Return whether a test can be expected to end before the deadline, judging by earlier ones. All its
        dialogues are in progress until it ends, and would have to be played again."""
        if self.deadline is None or not command.name.startswith("test_"):
            return True
        folder = self.files.path(command).parent
        records = [json.loads(file.read_bytes()) for file in folder.glob("test_*.json")]
        # The time of the shortest one: that of others may include an interruption.
        needed = SAFETY * min((float(r["seconds"]) for r in records if r["finished"]), default=0.0)
        return needed <= self.deadline - time.monotonic() or needed > self.deadline - self.began

    async def _run(self, command: Stage, repeat: Callable[[Stage], bool]) -> None:
        began, earlier = time.monotonic(), float(self.files.read(command).get("seconds", 0.0))
        self.files.write(command, finished=False, seconds=earlier)
        print(f"{command.name} begins", flush=True)
        problem: str | None = "it was stopped"
        try:
            problem = await self._attempt(command, repeat)
        finally:
            seconds = earlier + time.monotonic() - began
            self.files.write(command, finished=problem is None, seconds=seconds)
        if problem is not None:
            self.failed[command.name] = problem
        print(f"{command.name} {f'failed: {problem}' if problem else f'took {seconds:.0f} s'}", flush=True)

    async def _attempt(self, command: Stage, repeat: Callable[[Stage], bool]) -> str | None:
        """Return why a command failed, if it did. One that ends without some of its dialogues or items is
        tried again, and then counts as finished."""
        log = RunDir(self.work).logs / f"{command.name}.log"
        for attempt in range(1, ATTEMPTS + 1):
            for file in end_files(command.folder):  # those of an earlier attempt say nothing about this one
                file.unlink()
            problem = await run_logged(_words(command), log)
            lost = lost_cases(command.folder) if RunDir(command.folder).health.exists() else set()
            if problem is None and not lost:
                return None
            if not has_ended(command.folder):
                return problem or f"{len(lost)} cases could not be played"
            if attempt == ATTEMPTS or not repeat(command):
                break
        print(f"{command.name} goes on without {', '.join(sorted(lost)) or 'some items'}", flush=True)
        return None

    def _loop_deadline(self) -> float | None:
        if self.deadline is None:
            return None
        return asyncio.get_running_loop().time() + self.deadline - time.monotonic()


def matches(name: str, pattern: str) -> bool:
    """Return whether a command has this name; "mapo_0" also means "train_mapo_0" and the like."""
    return fnmatch(name, pattern) or fnmatch(name.partition("_")[2], pattern)


def _words(command: Stage) -> list[str]:
    if command.kind == SCRIPT:
        return [*PYTHON, str(command.folder), *command.arguments]
    resume = ["--resume"] if RunDir(command.folder).manifest.exists() else []
    return [*PYTHON, "-m", "mapo", *command.arguments, *resume]
