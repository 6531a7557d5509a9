"""A live line about dialogues being played or items being solved: how many, how fast, what they cost.

Where standard error is no terminal (a log file), a plain line for every tenth that is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from mapo.cli.common.say import say
from mapo.types import Dialogue, Turn

if TYPE_CHECKING:
    from mapo.models.ledger import Ledger


class Show(Protocol):
    """Tells of `more` that are done, and what else there is to tell."""

    def __call__(self, state: str, more: int = 0) -> None: ...


@contextmanager
def watching(
    total: int, done: int, cost: Callable[[], float | None]
) -> Iterator[tuple[Callable[[Dialogue], None], Callable[[Turn], None]]]:
    """Callbacks for each finished dialogue and each turn."""
    began, turns, unscored, broken = time.monotonic(), 0, 0, 0
    with _line("dialogues", total, done) as show:

        def state() -> str:
            spent = max(time.monotonic() - began, 1e-9)
            told = f"{turns / spent:.1f} turns/s"
            if unscored:
                told += f", unscored {unscored / max(turns, 1):.1%}"
            if broken:
                told += f", broken {broken}"
            money = cost()
            return f"{told}, cost {money:.2f}" if money else told

        def turn_done(turn: Turn) -> None:
            nonlocal turns, unscored
            turns += 1
            unscored += turn.levels is None
            if turns % 10 == 0:
                show(state())

        def dialogue_done(dialogue: Dialogue) -> None:
            nonlocal broken
            broken += not dialogue.usable
            show(state(), 1)

        yield dialogue_done, turn_done


@contextmanager
def counting(total: int, done: int, ledger: Ledger) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A callback for each finished or failed item (a line of items.jsonl)."""
    failed = 0
    with _line("items", total, done) as show:

        def item_done(line: dict[str, Any]) -> None:
            nonlocal failed
            failed += line["error"] is not None
            state = f"{sum(row['calls'] for row in ledger.as_rows())} calls"
            if failed:
                state += f", failed {failed}"
            if money := ledger.total_cost:
                state += f", cost {money:.2f}"
            show(state, 1)

        yield item_done


@contextmanager
def _line(what: str, total: int, done: int) -> Iterator[Show]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from mapo.text import terminal

    console = terminal(stderr=True)
    if not console.is_terminal:
        yield _plain(what, total, done)
        return
    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[state]}"),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=total, completed=done, state="")

        def show(state: str, more: int = 0) -> None:
            bar.update(task, advance=more, state=state)

        yield show


def _plain(what: str, total: int, done: int) -> Show:
    say(f"{what}: {done}/{total}")

    def show(state: str, more: int = 0) -> None:
        nonlocal done
        before, done = done, done + more
        if done * 10 // total > before * 10 // total:
            say(f"{what}: {done}/{total}, {state}")

    return show
