"""Training as one watches it: a line a step, and on a terminal a bar while dialogues are played."""

from __future__ import annotations

import time
from typing import Any

from mapo.train.show import Show
from mapo.types import Dialogue


class Live(Show):
    """One line a step on standard error: reward, score, speed, time left."""

    def __init__(self, steps: int, *, resume: bool = False) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        from mapo.text import terminal

        self.steps, self.resume = steps, resume
        self.waiting = ""
        """What is said once something is played: a resumed run may find a whole test on disk."""
        self.console = terminal(stderr=True, soft_wrap=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("dialogues"),
        )
        self.bar = Progress(
            *columns, console=self.console, transient=True, disable=not self.console.is_terminal
        )
        self.task = self.bar.add_task("", total=None)
        self.first: tuple[int, float] | None = None
        self.bar.start()

    def begins(self, told: str) -> None:
        self.console.print(told, markup=False)

    def step_begins(self, step: int, dialogues: int) -> None:
        if self.first is None:
            self.first = (step, time.monotonic())
            if self.resume:
                self.console.print(f"resumed at step {step}")
        self.waiting = ""
        self._reset(f"step {step}", dialogues)

    def eval_begins(self, label: str, dialogues: int) -> None:
        self._reset(label.replace("_", " "), dialogues)
        self.waiting = f"held-out test, {label} training" if label in ("before", "after") else ""
        if not self.resume:
            self._say_what_waits()

    def _say_what_waits(self) -> None:
        if self.waiting:
            self.console.print(self.waiting)
        self.waiting = ""

    def _reset(self, text: str, dialogues: int) -> None:
        self.bar.reset(self.task, description=text, total=dialogues, completed=0)

    def dialogue_done(self, dialogue: Dialogue) -> None:
        del dialogue
        self._say_what_waits()
        self.bar.advance(self.task)

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
