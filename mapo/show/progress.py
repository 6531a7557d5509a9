"""Progress of long work on standard error.

On a terminal, one line with a bar is redrawn in place. In a log, a plain line is printed every 30 seconds,
whether or not anything has finished since. Both show the same text: counts, the estimated time left, and
the status that the caller adds. On a narrow terminal, parts of the status that do not fit are left out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

from mapo.text import printable, terminal
from mapo.types import Dialogue, Turn

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

INTERVAL = 30.0
"""Seconds between two progress lines in a log."""
SOON = 10.0
"""Seconds until the first line of work that may be over quickly."""
TICK = 1.0
"""Seconds between two looks of the heartbeat thread."""
WAITING = 10.0
"""Seconds of a call in flight from which the display names the role that is waited for."""
WIDE = 100
"""Columns from which the bar has its full width."""
_real_time = time.monotonic

Poll = Callable[[], tuple[int, list[str]]]
"""Returns the current count and status. The heartbeat calls it from its own thread."""


def fitting(parts: Sequence[str], width: int) -> str:
    """Join the parts that fit into `width` columns, and always the first. No value is cut in the middle."""
    text = parts[0]
    for part in parts[1:]:
        longer = f"{text}, {part}"
        text = longer if len(longer) <= width else text
    return text


@dataclass(frozen=True, slots=True)
class _Fitting:
    """The parts of the status, as rich renders them: as many as fit."""

    parts: Sequence[str]

    def __rich_console__(self, _: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        yield Text(fitting(self.parts, options.max_width), no_wrap=True, overflow="ellipsis")


class Progress:
    """One progress display; a context manager. With `transient` the bar disappears at the end."""

    def __init__(self, *, transient: bool = True) -> None:
        from rich import progress
        from rich.table import Column

        class Status(progress.ProgressColumn):
            """Takes the width that label and bar leave."""

            def render(self, task: progress.Task) -> Any:
                return _Fitting(task.fields["parts"])

        self.console = terminal(stderr=True)
        self.bar = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=20 if self.console.width >= WIDE else 8),
            Status(table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            expand=True,
            console=self.console,
            transient=transient,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("", total=None, visible=False, parts=[""])
        self.label = self.text = ""
        self.active = self.changed = False
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self.bar.start()
        threading.Thread(target=self._heartbeat, daemon=True).start()

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
        eta: bool | Callable[[], str] = True,
        log_after: float = INTERVAL,
        poll: Poll | None = None,
    ) -> None:
        """Start counting to `total`, with `done` finished earlier.

        `work` is the amount done where that is finer than the count; it drives the bar and the estimated time
        left. `eta` may be a function that returns the time left, or False to show none. In a log, the first
        line is printed after `log_after` seconds; 0 prints it at once.
        """
        with self._lock:
            self.label, self.total, self.unit, self.eta, self.poll = label, total, unit, eta, poll
            self.began = time.monotonic()
            self.next_line, self._next_real = self.began + log_after, _real_time() + log_after
            self.before = done if work is None else work
            self.done, self.work = done, work
            self.status: tuple[str, ...] = ()
            self.active, self.changed = True, False
            self.text = self._counts(done)
            self.bar.reset(self.task, description=label, total=total, visible=True, parts=[self.text])
            self.bar.update(self.task, completed=self.before)
            if not log_after:
                self.log()

    def relabel(self, label: str) -> None:
        """Change the label of the current work."""
        with self._lock:
            self.label = label
            self.bar.update(self.task, description=label)

    def update(self, done: int, *status: str, work: float | None = None) -> None:
        """Show the new count and status; empty parts of the status are skipped."""
        with self._lock:
            self.done, self.work, self.status = done, work, status
            self.changed = True
            self._show()
            if time.monotonic() >= self.next_line:
                self.log()

    def refresh(self) -> None:
        """Show the count and status that `poll` returns."""
        with self._lock:
            if self.poll is not None:
                done, status = self.poll()
                self.update(done, *status)

    def _show(self) -> None:
        now = self.done if self.work is None else self.work
        parts = [self._counts(self.done)]
        if callable(self.eta):
            parts.append(self.eta())
        elif self.eta and now < self.total:
            parts.append(f"{time_left(time.monotonic() - self.began, self.before, now, self.total)} left")
        parts = [part for part in (*parts, *self.status) if part]
        self.text = ", ".join(parts)
        self.bar.update(self.task, completed=now, parts=parts)

    def _counts(self, done: int) -> str:
        return f"{done}/{self.total} {self.unit}".rstrip()

    def _heartbeat(self) -> None:
        """Redraw the line every second and print it when it is due, even if nothing is reported."""
        while not self._closed.wait(TICK):
            with self._lock:
                if not self.active or self._closed.is_set():
                    continue
                if self.poll is not None:
                    self.done, status = self.poll()
                    self.status = tuple(status)
                self._show()
                if _real_time() >= self._next_real:
                    self.log()

    def log(self) -> None:
        """Print the current line now if this is a log."""
        with self._lock:
            self.next_line, self._next_real = time.monotonic() + INTERVAL, _real_time() + INTERVAL
            if not self.console.is_terminal:
                self.changed = False
                self.print(f"{self.label}: {self.text}" if self.label else self.text)

    def print(self, line: str) -> None:
        """Print a line that stays, above the bar if there is one."""
        with self._lock:
            self.console.print(printable(line), markup=False, soft_wrap=True)

    def finish(self) -> None:
        """End the current work. In a log, print its last state unless that is the last line already."""
        with self._lock:
            if self.changed:
                self.log()
            self.active = False

    def end(self) -> None:
        """End the current work without a line; the next `begin` starts the display again."""
        with self._lock:
            self.active = False
            self.bar.update(self.task, visible=False)

    def close(self) -> None:
        self._closed.set()
        self.bar.stop()


@dataclass(slots=True)
class DialogueCounts:
    """Running counts over the dialogues being played."""

    done: int = 0
    turns: int = 0
    unscored: int = 0
    broken: int = 0
    rewarded: int = 0
    reward: float = 0.0

    def add_turn(self, turn: Turn) -> None:
        self.turns += 1
        self.unscored += turn.levels is None
        if turn.reward is not None:
            self.rewarded += 1
            self.reward += turn.reward

    def add_dialogue(self, dialogue: Dialogue) -> None:
        self.done += 1
        self.broken += not dialogue.usable

    def __add__(self, other: DialogueCounts) -> DialogueCounts:
        mine, theirs = asdict(self), asdict(other)
        return DialogueCounts(**{name: mine[name] + theirs[name] for name in mine})

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


Activity = Mapping[str, Mapping[str, float]]
"""The calls of a session by role, as `mapo.models.activity.Activity.snapshot` returns them."""


def call_status(processes: Iterable[Activity]) -> list[str]:
    """Summarise the calls of all processes: their number, retries, timeouts, and the slowest role."""
    roles: dict[str, dict[str, float]] = {}
    for activity in processes:
        for role, counts in activity.items():
            total = roles.setdefault(role, {})
            for name, number in counts.items():
                merge = max if name == "longest" else sum
                total[name] = merge((total.get(name, 0), number))
    sums = {name: sum(int(c[name]) for c in roles.values()) for name in ("calls", "retries", "timeouts")}
    parts = [_count(sums["calls"], "call")] if roles else []
    parts += [_count(sums["retries"], "retry", "retries")] if sums["retries"] else []
    parts += [_count(sums["timeouts"], "timeout")] if sums["timeouts"] else []
    means = {role: c["seconds"] / (c["calls"] + c["retries"]) for role, c in roles.items() if c["calls"]}
    if means:
        slowest = max(means, key=means.__getitem__)
        parts.append(f"slowest {slowest} {means[slowest]:.1f} s/call")
    if roles and (longest := max(roles, key=lambda role: roles[role]["longest"])):
        seconds, waiting = roles[longest]["longest"], int(roles[longest]["waiting"])
        if seconds >= WAITING:
            parts.append(f"waiting for {longest} ({_count(waiting, 'call')}, {clock(seconds)})")
    return parts


def _count(number: int, singular: str, plural: str = "") -> str:
    return f"{number:,} {singular if number == 1 else plural or f'{singular}s'}"


@contextmanager
def dialogue_progress(
    total: int,
    done: int,
    cost: Callable[[], float | None],
    activity: Callable[[], Activity] = dict,
) -> Iterator[tuple[Callable[[Dialogue], None], Callable[[Turn], None]]]:
    """Show the progress of dialogues; yields a callback per finished dialogue and one per turn."""
    began, counts = time.monotonic(), DialogueCounts(done)

    def poll() -> tuple[int, list[str]]:
        rate = counts.turns / max(time.monotonic() - began, 1e-9)
        turns = f"{counts.turns} turns ({rate:.1f}/s)" if counts.turns else ""
        return counts.done, [turns, counts.problems, *call_status([activity()]), _money(cost())]

    with Progress(transient=False) as progress:
        progress.begin("dialogues", total, done, log_after=0, poll=poll)

        def turn_done(turn: Turn) -> None:
            counts.add_turn(turn)
            progress.refresh()

        def dialogue_done(dialogue: Dialogue) -> None:
            counts.add_dialogue(dialogue)
            progress.refresh()

        yield dialogue_done, turn_done
        progress.finish()


@contextmanager
def item_progress(
    total: int,
    done: int,
    calls: Callable[[], int],
    cost: Callable[[], float | None],
    activity: Callable[[], Activity] = dict,
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Show the progress of benchmark items; yields a callback per finished or failed line of items.jsonl."""
    failed = 0

    def poll() -> tuple[int, list[str]]:
        problems = f"failed {failed}" if failed else ""
        status = call_status([activity()]) or [_count(calls(), "call")]
        return done, [problems, *status, _money(cost())]

    with Progress(transient=False) as progress:
        progress.begin("items", total, done, log_after=0, poll=poll)

        def item_done(line: Mapping[str, Any]) -> None:
            nonlocal done, failed
            done += 1
            failed += line["error"] is not None
            progress.refresh()

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
