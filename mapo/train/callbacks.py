"""Progress callbacks of a training run, and the display that prints them on standard error.

Every process counts its own dialogues. Processes other than rank 0 publish their counts, and the display on
rank 0 adds them up.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mapo.show.eta import PhaseClock
from mapo.show.progress import (
    INTERVAL,
    SOON,
    Activity,
    DialogueCounts,
    Progress,
    call_status,
    clock,
    time_left,
)
from mapo.types import Dialogue, Turn

if TYPE_CHECKING:
    from mapo.train.processes import ProcessGroup

PUBLISH = 0.5
"""Seconds between two publications of a process's counts, and between two looks at them."""
STEP, VALIDATION, TEST = "step", "validation", "test"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The phases of a run: how large each kind is, and after which steps a validation follows."""

    steps: int
    sizes: dict[str, float]
    """Dialogues times turns of one step, validation and test."""
    validations: frozenset[int]
    tested: bool


class Callbacks:
    """Progress callbacks. The base class ignores every event.

    Dialogue counts in `step_begins` and `eval_begins` are those of all processes; `done` is how many of this
    process's dialogues are on disk already. A callback that raises stops the training.
    """

    def message(self, text: str) -> None: ...
    def run_begins(self, plan: RunPlan) -> None: ...
    def resumes(self, step: int) -> None: ...
    def step_begins(self, step: int, dialogues: int, done: int = 0) -> None: ...
    def update_begins(self, step: int) -> None: ...
    def step_ends(self, record: dict[str, Any]) -> None: ...
    def eval_begins(self, label: str, dialogues: int, done: int = 0) -> None: ...
    def eval_ends(self, label: str) -> None: ...
    def turn_done(self, turn: Turn) -> None: ...
    def dialogue_done(self, dialogue: Dialogue) -> None: ...
    def close(self) -> None: ...


class CountingCallbacks(Callbacks):
    """Counts of the current phase in this process, published for the display of rank 0.

    `activity` returns this process's model calls.
    """

    def __init__(
        self, processes: ProcessGroup | None = None, activity: Callable[[], Activity] = dict
    ) -> None:
        self.processes, self.activity = processes, activity
        self.counts = DialogueCounts()
        self.phase = 0
        """Number of the current step or evaluation. All processes go through the same ones in order."""
        self.published = 0.0

    def step_begins(self, step: int, dialogues: int, done: int = 0) -> None:  # noqa: ARG002
        self._begin_phase(done)

    def eval_begins(self, label: str, dialogues: int, done: int = 0) -> None:  # noqa: ARG002
        self._begin_phase(done)

    def _begin_phase(self, done: int) -> None:
        self.phase += 1
        self.counts = DialogueCounts(done)
        self._changed(at_once=True)

    def turn_done(self, turn: Turn) -> None:
        self.counts.add_turn(turn)
        self._changed()

    def dialogue_done(self, dialogue: Dialogue) -> None:
        self.counts.add_dialogue(dialogue)
        self._changed(at_once=True)

    def _changed(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if self.processes is not None and (at_once or now - self.published >= PUBLISH):
            self.published = now
            state = {"counts": asdict(self.counts), "calls": self.activity()}
            self.processes.publish(self._topic, json.dumps(state))

    @property
    def _topic(self) -> str:
        """The phase is part of it, because other processes may be in the next one already."""
        return f"counts/{self.phase}"


class TrainingDisplay(CountingCallbacks):
    """One line per step: reward, score, speed, time left in the whole run.

    On a terminal, a bar shows the dialogues and turns being played. In a log, a test prints a line at once
    and every 30 seconds, a step or validation only if it takes that long.
    """

    def __init__(
        self,
        steps: int,
        *,
        resume: bool = False,
        processes: ProcessGroup | None = None,
        activity: Callable[[], Activity] = dict,
    ) -> None:
        super().__init__(processes, activity)
        self.steps, self.resume = steps, resume
        self.progress = Progress()
        self.step = 0
        self.clock = PhaseClock({STEP: 1.0, VALIDATION: 1.0, TEST: 1.0})
        self.plan: RunPlan | None = None
        self.showing_reward = False
        self.others: list[dict[str, Any]] = []
        self.looked = 0.0
        self.first: tuple[int, float] | None = None
        """The first step of this session and when it began, for engines that report only steps."""

    def message(self, text: str) -> None:
        self.progress.print(text)

    def run_begins(self, plan: RunPlan) -> None:
        self.plan, self.clock = plan, PhaseClock(plan.sizes)

    def resumes(self, step: int) -> None:
        """`step` is the first one to play; it may be beyond the last."""
        self.step = step - 1
        where = f"at step {step}" if step <= self.steps else f"after step {self.steps}, the last"
        self.progress.print(f"resumed {where}")

    # ---- phases

    def step_begins(self, step: int, dialogues: int, done: int = 0) -> None:
        if self.first is None:
            self.first = (step, time.monotonic())
            log_after = SOON
        else:
            log_after = INTERVAL
        self.step = step
        self._begin(STEP, f"step {step}/{self.steps}", dialogues, done, log_after)

    def update_begins(self, step: int) -> None:
        self.progress.relabel(f"step {step}/{self.steps}, updating the weights")

    def eval_begins(self, label: str, dialogues: int, done: int = 0) -> None:
        kind = TEST if label in ("before", "after") else VALIDATION
        # A resumed run may find the whole test on disk, and then plays nothing.
        log_after = (SOON if self.resume else 0.0) if kind == TEST else INTERVAL
        self._begin(kind, _eval_name(label), dialogues, done, log_after)

    def eval_ends(self, label: str) -> None:
        self.looked = 0.0
        self._look()
        counts = self._total()
        if label in ("before", "after") and counts.turns:
            parts = [f"{counts.done} dialogues", f"{counts.turns} turns", counts.problems]
            took = clock(self.clock.elapsed)
            self.progress.print(f"{_eval_name(label)}: {', '.join(filter(None, parts))} in {took}")
        self.progress.end()
        self.clock.end()

    def _begin(self, kind: str, label: str, dialogues: int, done: int, log_after: float) -> None:
        self.showing_reward = kind == STEP
        self._begin_phase(done)
        self.others, self.looked = [], 0.0
        self.clock.begin(kind, 1 - done / dialogues if dialogues else 0.0)
        self.progress.begin(
            label,
            dialogues,
            done,
            unit="dialogues",
            eta=self._left,
            log_after=log_after,
            poll=self._status,
        )

    # ---- counts

    def _changed(self, *, at_once: bool = False) -> None:  # noqa: ARG002
        if self.progress.active:
            self.progress.refresh()

    def _status(self) -> tuple[int, list[str]]:
        self._look()
        counts = self._total()
        reward = counts.mean_reward if self.showing_reward else ""
        calls = call_status([self.activity(), *(other["calls"] for other in self.others)])
        elapsed = f"{clock(self.clock.elapsed)} elapsed"
        turns = f"{counts.turns} turn{'' if counts.turns == 1 else 's'}"
        return counts.done, [turns, reward, counts.problems, *calls, elapsed]

    def _look(self) -> None:
        """Read the counts of the other processes, at most twice a second."""
        if self.processes is None or time.monotonic() - self.looked < PUBLISH:
            return
        self.looked = time.monotonic()
        with suppress(RuntimeError):  # a process that is gone is reported elsewhere
            self.others = [json.loads(text) for text in self.processes.published(self._topic)]

    def _total(self) -> DialogueCounts:
        return sum((DialogueCounts(**other["counts"]) for other in self.others), self.counts)

    # ---- lines

    def step_ends(self, record: dict[str, Any]) -> None:
        step = self.step = record["step"]
        self.progress.end()
        self.clock.end()
        parts = [
            f"step {step:>{len(str(self.steps))}}/{self.steps}",
            f"reward {'    -' if record['reward'] is None else format(record['reward'], '+.2f')}",
            f"score {'   -' if record['score'] is None else format(record['score'], '4.1f')}",
            f"{record['sampled_per_s']:,.0f} tokens/s",
            f"{record['turns']:.1f} turns",
        ]
        if record["unscored"]:
            parts.append(f"unscored {record['unscored']:.1%}")
        if record.get("masked_faults"):
            parts.append(f"masked {record['masked_faults']:.1%}")
        if check := record.get("check"):
            kappa = check["window"]["kappa"]
            parts.append("check -" if kappa is None else f"check {kappa:.2f}")
        if record["broken"]:
            parts.append(f"broken {record['broken']}")
        parts.append(self._left() or f"{self._left_by_steps(step)} left")
        if "validation" in record:
            score = record["validation"]
            parts.append(f"validation {score['epm_q']:.1f}, {score['passes']}/{score['n']} passed")
        self.progress.print("  ".join(parts))

    def _left(self) -> str:
        """Return the time left in the whole run, validations and the test included."""
        if self.plan is None:
            return ""
        phase = self.clock.current
        current = phase[0] if phase else None
        due = {step for step in self.plan.validations if step > self.step}
        if current == STEP and self.step in self.plan.validations:
            due.add(self.step)
        after = self.plan.tested and not (current == TEST and self.step == self.steps)
        ahead = {STEP: self.steps - self.step, VALIDATION: len(due), TEST: int(after)}
        seconds = self.clock.left(ahead)
        return "" if seconds is None or seconds < 1 else f"{clock(seconds)} left"

    def _left_by_steps(self, step: int) -> str:
        now = time.monotonic()
        if self.first is None:  # an engine that reports only the ends of steps
            self.first = (step + 1, now)
        begin, began = self.first
        return time_left(now - began, begin - 1, step, self.steps)

    def close(self) -> None:
        self.progress.close()


def _eval_name(label: str) -> str:
    if label in ("before", "after"):
        return f"held-out test {label} training"
    name, _, step = label.partition("_")
    return f"{name} after step {int(step)}" if step.isdecimal() else name
