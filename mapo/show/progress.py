"""Progress of long work on standard error.

On a terminal, one line with a bar is redrawn in place. In a log, a plain line is printed at most every 30
seconds. Both show the same text: counts, the estimated time left, and whatever status the caller adds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from mapo.text import printable, terminal
from mapo.types import Dialogue, Turn

INTERVAL = 30
"""Seconds between two progress lines in a log."""


class Progress:
    """One progress display; a context manager. With `transient` the bar disappears at the end."""

    def __init__(self, *, transient: bool = True) -> None:
        from rich import progress
        from rich.table import Column

        self.console = terminal(stderr=True)
        self.bar = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=20),
            progress.TextColumn(
                "{task.fields[text]}",
                markup=False,
                # takes the width that is left, and is cut where that is too little
                table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
            expand=True,
            console=self.console,
            transient=transient,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("", total=None, visible=False, text="")
        self.label = self.text = ""
        self.to_log = self.changed = False
        self.bar.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(
        self,
        label: str,
        total: int,
        done: int = 0,
        *,
        unit: str = "",
        work: float | None = None,
        eta: bool = True,
        to_log: bool = True,
    ) -> None:
        """Start counting to `total`, with `done` finished earlier.

        `work` is the amount done where that is finer than the count; it drives the bar and the estimated time
        left. `eta` is for work whose items finish one after another: the time left is meaningless if they all
        finish together. `to_log=False` shows nothing in a log.
        """
        self.label, self.total, self.unit, self.eta, self.to_log = label, total, unit, eta, to_log
        self.began = self.printed = time.monotonic()
        self.before = done if work is None else work
        self.changed = False
        self.text = self._counts(done)
        self.bar.reset(self.task, description=label, total=total, visible=True, text=self.text)
        self.bar.update(self.task, completed=self.before)

    def update(self, done: int, *status: str, work: float | None = None) -> None:
        """Show the new count and status; empty parts of the status are skipped."""
        now = done if work is None else work
        parts = [self._counts(done)]
        if self.eta and now < self.total:
            parts.append(f"{time_left(time.monotonic() - self.began, self.before, now, self.total)} left")
        self.text = ", ".join([*parts, *filter(None, status)])
        self.changed = True
        self.bar.update(self.task, completed=now, text=self.text)
        if time.monotonic() - self.printed >= INTERVAL:
            self.log()

    def _counts(self, done: int) -> str:
        return f"{done}/{self.total} {self.unit}".rstrip()

    def log(self) -> None:
        """Print the current line now if this is a log."""
        if self.to_log and not self.console.is_terminal:
            self.changed, self.printed = False, time.monotonic()
            self.print(f"{self.label}: {self.text}" if self.label else self.text)

    def print(self, line: str) -> None:
        """Print a line that stays, above the bar if there is one."""
        self.console.print(printable(line), markup=False, soft_wrap=True)

    def finish(self) -> None:
        """In a log, print the last state unless it is there already."""
        if self.changed:
            self.log()

    def close(self) -> None:
        self.bar.stop()


class DialogueCounts:
    """Running counts over the dialogues being played."""

    def __init__(self, done: int = 0) -> None:
        self.done = done
        self.turns = self.unscored = self.broken = self.rewarded = 0
        self.reward = 0.0

    def add_turn(self, turn: Turn) -> None:
        self.turns += 1
        self.unscored += turn.levels is None
        if turn.reward is not None:
            self.rewarded += 1
            self.reward += turn.reward

    def add_dialogue(self, dialogue: Dialogue) -> None:
        self.done += 1
        self.broken += not dialogue.usable

    @property
    def mean_reward(self) -> str:
        return f"mean reward {self.reward / self.rewarded:+.2f}" if self.rewarded else ""

    @property
    def problems(self) -> str:
        """Unscored turns and broken dialogues, if there are any."""
        parts = [
            f"unscored {self.unscored / self.turns:.1%}" if self.unscored else "",
            f"broken {self.broken}" if self.broken else "",
        ]
        return ", ".join(filter(None, parts))


@contextmanager
def dialogue_progress(
    total: int, done: int, cost: Callable[[], float | None]
) -> Iterator[tuple[Callable[[Dialogue], None], Callable[[Turn], None]]]:
    """Show the progress of dialogues; yields a callback per finished dialogue and one per turn."""
    began, counts = time.monotonic(), DialogueCounts(done)
    with Progress(transient=False) as progress:
        progress.begin("dialogues", total, done)
        progress.log()

        def update() -> None:
            rate = counts.turns / max(time.monotonic() - began, 1e-9)
            progress.update(counts.done, f"{rate:.1f} turns/s", counts.problems, _money(cost()))

        def turn_done(turn: Turn) -> None:
            counts.add_turn(turn)
            update()

        def dialogue_done(dialogue: Dialogue) -> None:
            counts.add_dialogue(dialogue)
            update()

        yield dialogue_done, turn_done
        progress.finish()


@contextmanager
def item_progress(
    total: int, done: int, calls: Callable[[], int], cost: Callable[[], float | None]
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Show the progress of benchmark items; yields a callback per finished or failed line of items.jsonl."""
    failed = 0
    with Progress(transient=False) as progress:
        progress.begin("items", total, done)
        progress.log()

        def item_done(line: Mapping[str, Any]) -> None:
            nonlocal done, failed
            done += 1
            failed += line["error"] is not None
            problems = f"failed {failed}" if failed else ""
            progress.update(done, f"{calls()} calls", problems, _money(cost()))

        yield item_done
        progress.finish()


def _money(cost: float | None) -> str:
    return f"cost {cost:.2f}" if cost else ""


def time_left(elapsed: float, before: float, now: float, total: float) -> str:
    """Estimate the time left from the work done in `elapsed` seconds; "?" before there is any."""
    return clock(elapsed / (now - before) * (total - now)) if now > before else "?"


def clock(seconds: float) -> str:
    """Format a duration as 5:07 or 1:05:07."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
