"""Training as one watches it: a line a step, and on a terminal a bar while dialogues are played.

Dialogues begin together and end together, so turns are counted too. Where there is no terminal, the two long
tests have a line now and then.
"""

from __future__ import annotations

import time
from typing import Any

from mapo.train.show import Show
from mapo.types import Dialogue, Turn

PAUSE = 30
"""Seconds between two lines about a test under way, where there is no terminal."""


class Live(Show):
    """One line a step on standard error: reward, score, speed, time left."""

    def __init__(self, steps: int, *, resume: bool = False) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        from mapo.text import terminal

        self.steps, self.resume = steps, resume
        self.waiting = ""
        """What is said once something is played: a resumed run may find a whole test on disk."""
        self.test, self.said = "", time.monotonic()
        """The test being played, if one is, and when a line last told of it."""
        self.total = self.done = self.turns = 0
        self.console = terminal(stderr=True, soft_wrap=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("dialogues, {task.fields[turns]} turns"),
        )
        self.bar = Progress(
            *columns, console=self.console, transient=True, disable=not self.console.is_terminal
        )
        self.task = self.bar.add_task("", total=None, turns=0, visible=False)
        self.first: tuple[int, float] | None = None
        self.bar.start()

    def begins(self, told: str) -> None:
        self.console.print(told, markup=False)

    def resumes(self, step: int) -> None:
        """`step` is the first that is played again or anew; there may be none left."""
        told = f"at step {step}" if step <= self.steps else f"after step {self.steps}, the last"
        self.console.print(f"resumed {told}")

    def step_begins(self, step: int, dialogues: int, done: int = 0) -> None:
        if self.first is None:
            self.first = (step, time.monotonic())
        self.waiting = self.test = ""
        self._reset(f"step {step}", dialogues, done)

    def eval_begins(self, label: str, dialogues: int, done: int = 0) -> None:
        self._reset(label.replace("_", " "), dialogues, done)
        self.test = f"held-out test, {label} training" if label in ("before", "after") else ""
        self.waiting, self.said = self.test, time.monotonic()
        if not self.resume:
            self._say_what_waits()

    def _say_what_waits(self) -> None:
        if self.waiting:
            self.console.print(self.waiting)
        self.waiting = ""

    def _reset(self, text: str, dialogues: int, done: int) -> None:
        self.total, self.done, self.turns = dialogues, done, 0
        self.bar.reset(self.task, description=text, total=dialogues, completed=done, turns=0, visible=True)

    def turn_done(self, turn: Turn) -> None:
        del turn
        self.turns += 1
        self._moved()

    def dialogue_done(self, dialogue: Dialogue) -> None:
        del dialogue
        self.done += 1
        self._moved()

    def _moved(self) -> None:
        self._say_what_waits()
        self.bar.update(self.task, completed=self.done, turns=self.turns)
        if self.test and not self.console.is_terminal and time.monotonic() - self.said >= PAUSE:
            self.console.print(f"{self.test}: {self.done}/{self.total} dialogues, {self.turns} turns")
            self.said = time.monotonic()

    def step_ends(self, record: dict[str, Any]) -> None:
        step = record["step"]
        parts = [
            f"step {step:>{len(str(self.steps))}}/{self.steps}",
            f"reward {_signed(record['reward'])}",
            f"score {_plain(record['score'])}",
            f"{record['sampled_per_s']:,.0f} tokens/s",
            f"{record['turns']:.1f} turns",
        ]
        if record["unscored"]:
            parts.append(f"unscored {record['unscored']:.1%}")
        if record["broken"]:
            parts.append(f"broken {record['broken']}")
        parts.append(f"{self._left(step)} left")
        if "validation" in record:
            seen = record["validation"]
            parts.append(f"validation {seen['epm_q']:.1f}, {seen['passes']}/{seen['n']} passed")
        self.console.print("  ".join(parts))

    def _left(self, step: int) -> str:
        if self.first is None:  # an engine that tells only of whole steps
            self.first = (step + 1, time.monotonic())
            return "?"
        begin, at = self.first
        seconds = (time.monotonic() - at) / (step - begin + 1) * (self.steps - step)
        return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"

    def close(self) -> None:
        self.bar.stop()


def _signed(number: float | None) -> str:
    return "    -" if number is None else f"{number:+.2f}"


def _plain(number: float | None) -> str:
    return "   -" if number is None else f"{number:4.1f}"
