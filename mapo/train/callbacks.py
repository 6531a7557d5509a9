"""Progress callbacks of a training, and the display that prints them on standard error."""

from __future__ import annotations

import time
from typing import Any

from mapo.show.progress import DialogueCounts, Progress, time_left
from mapo.types import Dialogue, Turn


class Callbacks:
    """Progress callbacks. The base class ignores every event.

    A callback that raises stops the training.
    """

    def message(self, text: str) -> None: ...
    def resumes(self, step: int) -> None: ...
    def step_begins(self, step: int, dialogues: int, done: int = 0) -> None: ...
    def eval_begins(self, label: str, dialogues: int, done: int = 0) -> None: ...
    def turn_done(self, turn: Turn) -> None: ...
    def dialogue_done(self, dialogue: Dialogue) -> None: ...
    def step_ends(self, record: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


class TrainingDisplay(Callbacks):
    """One line per step: reward, score, speed, time left.

    On a terminal, a bar counts the dialogues and turns being played. In a log, the two held-out tests, which
    take long, print a line every 30 seconds.
    """

    def __init__(self, steps: int, *, resume: bool = False) -> None:
        self.steps, self.resume = steps, resume
        self.progress = Progress()
        self.counts = DialogueCounts()
        self.rewarding = False
        """Whether a step is being played, not an evaluation: then the bar shows the mean turn reward."""
        self.announcement = ""
        """Printed with the first turn: a resumed run may find a whole test on disk, and play nothing."""
        self.first: tuple[int, float] | None = None
        """The first step of this session and when it began."""

    def message(self, text: str) -> None:
        self.progress.print(text)

    def resumes(self, step: int) -> None:
        """`step` is the first one to play; it may be beyond the last."""
        where = f"at step {step}" if step <= self.steps else f"after step {self.steps}, the last"
        self.progress.print(f"resumed {where}")

    def step_begins(self, step: int, dialogues: int, done: int = 0) -> None:
        if self.first is None:
            self.first = (step, time.monotonic())
        self.announcement = ""
        self._begin(f"step {step}", dialogues, done, rewarding=True)

    def eval_begins(self, label: str, dialogues: int, done: int = 0) -> None:
        held_out = label in ("before", "after")
        name = f"held-out test, {label} training" if held_out else label.replace("_", " ")
        self._begin(name, dialogues, done, to_log=held_out)
        self.announcement = name if held_out else ""
        if not self.resume:
            self._announce()

    def _begin(
        self, label: str, total: int, done: int, *, rewarding: bool = False, to_log: bool = False
    ) -> None:
        self.counts, self.rewarding = DialogueCounts(done), rewarding
        # Dialogues begin together and end together: their number says little about the time left.
        self.progress.begin(label, total, done, unit="dialogues", eta=False, to_log=to_log)

    def _announce(self) -> None:
        if self.announcement:
            self.progress.print(self.announcement)
        self.announcement = ""

    def turn_done(self, turn: Turn) -> None:
        self.counts.add_turn(turn)
        self._update()

    def dialogue_done(self, dialogue: Dialogue) -> None:
        self.counts.add_dialogue(dialogue)
        self._update()

    def _update(self) -> None:
        self._announce()
        counts = self.counts
        reward = counts.mean_reward if self.rewarding else ""
        self.progress.update(counts.done, f"{counts.turns} turns", reward, counts.problems)

    def step_ends(self, record: dict[str, Any]) -> None:
        step = record["step"]
        parts = [
            f"step {step:>{len(str(self.steps))}}/{self.steps}",
            f"reward {'    -' if record['reward'] is None else format(record['reward'], '+.2f')}",
            f"score {'   -' if record['score'] is None else format(record['score'], '4.1f')}",
            f"{record['sampled_per_s']:,.0f} tokens/s",
            f"{record['turns']:.1f} turns",
        ]
        if record["unscored"]:
            parts.append(f"unscored {record['unscored']:.1%}")
        if record["broken"]:
            parts.append(f"broken {record['broken']}")
        parts.append(f"{self._left(step)} left")
        if "validation" in record:
            score = record["validation"]
            parts.append(f"validation {score['epm_q']:.1f}, {score['passes']}/{score['n']} passed")
        self.progress.print("  ".join(parts))

    def _left(self, step: int) -> str:
        now = time.monotonic()
        if self.first is None:  # an engine that reports only the ends of steps
            self.first = (step + 1, now)
        begin, began = self.first
        return time_left(now - began, begin - 1, step, self.steps)

    def close(self) -> None:
        self.progress.close()
