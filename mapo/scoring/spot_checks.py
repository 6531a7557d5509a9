"""Agreement of the training judge with the judge of spot checks, over the latest checks of a run.

A check counts where both judges filled in the turn form. Kappa is the quadratic weighted kappa of all marks
together, with a 95 % bootstrap interval over dialogues. The window is rebuilt from the dialogues on disk when
a run is resumed, so it has no state of its own to lose.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mapo.errors import JudgeError
from mapo.measure.agreement import kappa_interval, pearson, pooled_kappa
from mapo.measure.rubric import Rubric
from mapo.measure.stats import MIN_ROWS
from mapo.sandbox.cast import flat_levels
from mapo.store import BadLine, RunDir, process_files, read_dialogues
from mapo.types import Dialogue, Turn

FEWEST_ANSWERS = 20
"""Fewest answers in a window from which agreement is compared with a limit."""

Marks = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CheckedTurn:
    """The marks of the training judge for a turn, and those of the second judge, None if it failed."""

    dialogue: str
    judge: Marks
    check: Marks | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two judges agree on the turns that both judged; None where it is undefined.

    `difference` is the mean absolute difference of the step on an axis, `correlation` that of the step sums.
    """

    answered: int
    kappa: float | None = None
    low: float | None = None
    high: float | None = None
    difference: float | None = None
    correlation: float | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class CheckWindow:
    """The latest `size` spot checks of a run, answered or not."""

    def __init__(self, size: int, rubric: Rubric) -> None:
        self.size, self.rubric = size, rubric
        self.turns: deque[CheckedTurn] = deque(maxlen=size)

    def add(self, dialogues: Iterable[Dialogue]) -> dict[str, Any]:
        """Add the checks of one step and return its metrics; nothing if none of its turns was checked."""
        step = checked_turns(dialogues, self.rubric)
        self.turns.extend(step)
        if not step:
            return {}
        answered = sum(turn.check is not None for turn in step)
        return {"asked": len(step), "answered": answered, "window": self.agreement().as_json()}

    def agreement(self) -> Agreement:
        return agreement(self.turns, self.rubric)

    @property
    def last_error(self) -> str:
        """Why the latest failed check failed."""
        return next((turn.error for turn in reversed(self.turns) if turn.check is None), "")

    def disagreement(self, limit: float | None, where: str) -> JudgeError | None:
        """Return the error that ends a run: the agreement of a full window is below `limit`, or hardly any
        check was answered."""
        if limit is None or len(self.turns) < self.size:
            return None
        now = self.agreement()
        if now.answered < FEWEST_ANSWERS:
            return JudgeError(
                f"only {now.answered} of the last {self.size} spot checks were answered, "
                f"last error: {self.last_error}",
                where=where,
                fix="Repair the endpoint of roles.check, then resume; the last checkpoint is kept",
            )
        if now.kappa is not None and now.kappa < limit:
            return JudgeError(
                f"the judge and the judge of spot checks agree with a kappa of {now.kappa:.2f} over "
                f"{now.answered} turns, below the limit of {limit:g}: the policy may be gaming its judge",
                where=where,
                fix="Read checked dialogues in `mapo view`. To go on, resume with a lower roles.check.limit; "
                "the last checkpoint is kept",
            )
        return None

    def warning(self, line: Mapping[str, Any]) -> str:
        """Return a warning if no check of a step, given by its metrics, was answered."""
        if not line or line["answered"]:
            return ""
        return f"none of the {line['asked']} spot checks was answered, last error: {self.last_error}"


def restored_window(run: RunDir, done: int, size: int, rubric: Rubric) -> CheckWindow:
    """Return the window as it was after step `done`, from the dialogues on disk."""
    window, steps, n = CheckWindow(size, rubric), [], 0
    for step in range(done, 0, -1):
        dialogues = {
            d.id: d
            for file in process_files(run.dialogues_of(step))
            for d in read_dialogues(file)
            if not isinstance(d, BadLine)
        }
        steps.append(list(dialogues.values()))
        n += len(checked_turns(steps[-1], rubric))
        if n >= size:
            break
    for each in reversed(steps):
        window.turns.extend(checked_turns(each, rubric))
    return window


def checked_turns(dialogues: Iterable[Dialogue], rubric: Rubric) -> list[CheckedTurn]:
    """Return the checked turns of usable dialogues that the training judge judged, ordered by dialogue."""
    usable = sorted((d for d in dialogues if d.usable), key=lambda d: d.id)
    return [
        CheckedTurn(d.id, flat_levels(turn.levels, rubric), turn.check or None, turn.unchecked or "")
        for d in usable
        for turn in d.turns
        if turn.levels is not None and _comparable(turn, rubric)
    ]


def _comparable(turn: Turn, rubric: Rubric) -> bool:
    """Return whether a turn was checked, with marks of this rubric: a record may come from elsewhere."""
    if turn.levels is None or set(turn.levels) != set(rubric.keys):
        return False
    return turn.unchecked is not None if turn.check is None else is_form(turn.check, rubric)


def is_form(marks: Sequence[int], rubric: Rubric) -> bool:
    """Return whether flat marks are levels of this rubric."""
    sides = [
        levels
        for axis in rubric.axes
        for levels in (range(len(axis.progress)), range(0, -len(axis.regression), -1))
    ]
    return len(marks) == len(sides) and all(mark in levels for mark, levels in zip(marks, sides, strict=True))


def agreement(turns: Iterable[CheckedTurn], rubric: Rubric) -> Agreement:
    """Return the agreement over the turns that both judges judged."""
    pairs = [(turn.dialogue, turn.judge, turn.check) for turn in turns if turn.check is not None]
    if not pairs:
        return Agreement(0)
    names = [name for name, _, _ in pairs]
    a, b = (np.array([pair[side] for pair in pairs], dtype=np.float64) for side in (1, 2))
    steps = [np.array([_step(marks, rubric) for marks in side.astype(int).tolist()]) for side in (a, b)]
    ends = kappa_interval(a, b, names) if len(set(names)) >= MIN_ROWS else None
    return Agreement(
        answered=len(pairs),
        kappa=pooled_kappa(a.T.tolist(), b.T.tolist()),
        low=ends[0] if ends else None,
        high=ends[1] if ends else None,
        difference=float(np.abs(steps[0] - steps[1]).mean()),
        correlation=pearson(*(side.sum(axis=1).tolist() for side in steps)),
    )


def _step(marks: Sequence[int], rubric: Rubric) -> tuple[float, ...]:
    """Return the step vector of flat marks."""
    pairs = zip(marks[::2], marks[1::2], strict=True)
    return rubric.step(rubric.levels(**dict(zip(rubric.keys, pairs, strict=True))))
