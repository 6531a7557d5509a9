"""Start forms that all dialogues of a run share: a judge fills in each scenario's once.

Siblings are compared with each other, so they must start in the same state. A judge that is asked again may
answer differently, and a panel too, if another of its members fails. The forms are files, so the processes of
a run share them as well, and a resumed run has those it began with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from mapo.errors import InputError, StoreError
from mapo.measure.rubric import Rubric
from mapo.models.attempts import SharedAttempts
from mapo.models.wire import storable
from mapo.records import encode
from mapo.sandbox.cast import Cast, Casting, Job
from mapo.sandbox.judge import parse_start
from mapo.store import write_once
from mapo.types import StartLevels
from mapo.untrusted import parse_json, read_file

MAX_BYTES = 1 << 20


class StartForms:
    """The start forms in a folder, which is created with the first of them."""

    def __init__(self, folder: Path, rubric: Rubric) -> None:
        self.folder, self.rubric = folder, rubric
        self._known: dict[Path, StartLevels] = {}
        self._attempts = SharedAttempts[StartLevels]()

    async def get(self, judge: str, scenario: str, ask: Callable[[], Awaitable[StartLevels]]) -> StartLevels:
        """Return a judge's start form of a scenario; `ask` fills it in if there is none yet. Dialogues that
        need it at the same time share one attempt."""
        name = hashlib.sha256(f"{judge}\n{scenario}".encode()).hexdigest()[:24]
        file = self.folder / f"{name}.json"
        if file in self._known:
            return self._known[file]

        async def read_or_ask() -> StartLevels:
            if not file.exists():
                _write(file, judge, scenario, await ask())
            levels = self._known[file] = self._read(file)  # another process may have been first
            return levels

        return (await self._attempts.get(file, read_or_ask))[0]

    def _read(self, file: Path) -> StartLevels:
        try:
            content = parse_json(read_file(file, MAX_BYTES))
            return parse_start(content["levels"], self.rubric)
        except (OSError, ValueError, KeyError, TypeError, InputError) as error:
            raise StoreError(
                f"the start levels cannot be read ({error})", where=str(file), fix="Delete the file"
            ) from None


def _write(file: Path, judge: str, scenario: str, form: StartLevels) -> None:
    levels = {
        key: {"level": mark.level, "evidence": storable(mark.evidence), "reason": storable(mark.reason)}
        for key, mark in form.items()
    }
    write_once(file, encode({"scenario": scenario, "judge": judge, "levels": levels}, str(file)) + b"\n")


def with_shared_starts(casting: Casting, forms: StartForms, role: str) -> Casting:
    """Return `casting` with start forms that all dialogues share. `role` distinguishes several judges of a
    run whose models may have the same name."""

    def cast(job: Job) -> Cast:
        base = casting(job)
        judge = f"{role} {base.names['judge']}"
        return replace(base, start=lambda: forms.get(judge, job.scenario.id, base.judge.start))

    return cast
