"""Runs the stages of a reproduction one after another, each as a `mapo` command in its own process.

OUT/stages/NAME.json says what a stage is and whether it is finished; OUT/logs/NAME.log is its output. A stage
that fails does not stop stages that do not need it.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from mapo.errors import InputError
from mapo.evals.processes import last_step, run_logged
from mapo.evals.reproduce.stages import Stage
from mapo.show.progress import Progress, clock
from mapo.store import RunDir, write_atomic
from mapo.untrusted import PYTHON, read_file

FOLDER = "stages"
SCHEMA = "mapo.stage/1"
SECONDS_BETWEEN_UPDATES = 2


class StageFiles:
    """The records of the stages in the folder of a reproduction."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def path(self, stage: Stage) -> Path:
        return self.out / FOLDER / f"{stage.name}.json"

    def read(self, stage: Stage) -> dict[str, Any]:
        """Return the record of a stage, empty if it was not begun. Raises InputError for another stage."""
        path = self.path(stage)
        if not path.exists():
            return {}
        try:
            record = json.loads(read_file(path))
            if record["schema"] != SCHEMA or not isinstance(record["finished"], bool):
                raise ValueError("it has another schema")
            identity = record["identity"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(
                f"the record of a stage cannot be read ({error})", where=str(path), fix="Use another --out"
            ) from None
        if identity != list(stage.identity):
            raise InputError(
                f"stage {stage.name} was begun with other settings",
                where=str(path),
                fix="Repeat the earlier options, or use another --out",
            )
        return dict(record)

    def write(self, stage: Stage, *, finished: bool, seconds: float) -> None:
        path = self.path(stage)
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {
            "schema": SCHEMA,
            "identity": list(stage.identity),
            "finished": finished,
            "seconds": round(seconds, 1),
        }
        write_atomic(path, json.dumps(record, indent=1) + "\n")

    def finished(self, stage: Stage) -> bool:
        return bool(self.read(stage).get("finished"))


class StageRunner:
    """Runs stages and shows their progress. `failed` maps stages to the reason."""

    def __init__(self, out: Path, stages: list[Stage]) -> None:
        self.out, self.stages = out, stages
        self.files = StageFiles(out)
        self.todo = [stage for stage in stages if not self.files.finished(stage)]
        self.failed: dict[str, str] = {}
        self.progress = Progress()

    @property
    def done(self) -> int:
        """The number of finished stages."""
        return sum(self.files.finished(stage) for stage in self.stages)

    async def run(self) -> None:
        """Run all stages that are not finished."""
        total = len(self.stages)
        self.progress.print(f"{total} stages, {total - len(self.todo)} of them finished, in {self.out}")
        self.progress.begin("", total, self.done, unit="stages")
        try:
            for stage in self.todo:
                missing = [name for name in stage.after if name in self.failed]
                problem = f"needs {missing[0]}, which failed" if missing else await self._run(stage)
                if problem is not None:
                    self.failed[stage.name] = problem
        finally:
            self.progress.close()

    async def _run(self, stage: Stage) -> str | None:
        """Run one stage; return why it failed, if it did."""
        if stage.kind == "export" and stage.folder.exists():
            # Exports appear complete or not at all; this one was killed before it was recorded.
            self.files.write(stage, finished=True, seconds=0.0)
            return None
        begin, earlier = time.monotonic(), float(self.files.read(stage).get("seconds", 0.0))
        log = RunDir(self.out).logs / f"{stage.name}.log"
        self.files.write(stage, finished=False, seconds=earlier)
        self.progress.print(f"{stage.name} begins; log: {log}")
        showing = asyncio.create_task(self._show(stage, begin))
        try:
            problem = await run_logged([*PYTHON, "-m", "mapo", *_arguments(stage)], log)
        finally:
            showing.cancel()
            seconds = earlier + time.monotonic() - begin
            self.files.write(stage, finished=False, seconds=seconds)
        self.files.write(stage, finished=problem is None, seconds=seconds)
        outcome = f"finished in {clock(seconds)}" if problem is None else f"failed: {problem}"
        self.progress.print(f"{stage.name} {outcome}")
        self.progress.update(self.done, f"{len(self.failed)} failed" if self.failed else "", "")
        return problem

    async def _show(self, stage: Stage, begin: float) -> None:
        while True:
            failed = f"{len(self.failed)} failed" if self.failed else ""
            at = f"{stage.name}, {clock(time.monotonic() - begin)}{_position(stage)}"
            self.progress.update(self.done, failed, at)
            await asyncio.sleep(SECONDS_BETWEEN_UPDATES)


def _arguments(stage: Stage) -> list[str]:
    """Return the arguments of a stage; a run that was begun is resumed."""
    resumable = stage.kind != "export" and RunDir(stage.folder).manifest.exists()
    return [*stage.arguments, *(["--resume"] if resumable else [])]


def _position(stage: Stage) -> str:
    """Return how far a stage is, as far as its files say."""
    if stage.kind == "train":
        return f", step {last_step(RunDir(stage.folder).metrics)}"
    if stage.kind == "test" and RunDir(stage.folder).empa_dialogues.exists():
        with open(RunDir(stage.folder).empa_dialogues, "rb") as file:
            return f", {sum(1 for _ in file)} dialogues"
    return ""
