"""A live line about dialogues being played or items being solved: how many, how fast, what they cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mapo.types import Dialogue, Turn

if TYPE_CHECKING:
    from rich.progress import Progress

    from mapo.sandbox.ledger import Ledger


@contextmanager
def watching(
    total: int, done: int, cost: Callable[[], float | None]
) -> Iterator[tuple[Callable[[Dialogue], None], Callable[[Turn], None]]]:
    """Callbacks for each finished dialogue and each turn; shown where standard error is a terminal."""
    began, turns, unscored, broken = time.monotonic(), 0, 0, 0
    with _bar("dialogues") as bar:
        task = bar.add_task("", total=total, completed=done, state="")

        def show() -> None:
            spent = max(time.monotonic() - began, 1e-9)
            state = f"{turns / spent:.1f} turns/s"
            if unscored:
                state += f", unscored {unscored / max(turns, 1):.1%}"
            if broken:
                state += f", broken {broken}"
            money = cost()
            if money:
                state += f", cost {money:.2f}"
            bar.update(task, state=state)

        def turn_done(turn: Turn) -> None:
            nonlocal turns, unscored
            turns += 1
            unscored += turn.levels is None
            if turns % 10 == 0:
                show()

        def dialogue_done(dialogue: Dialogue) -> None:
            nonlocal broken
            broken += dialogue.error is not None
            bar.advance(task)
            show()

        yield dialogue_done, turn_done


@contextmanager
def counting(total: int, done: int, ledger: Ledger) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A callback for each finished or failed item (a line of items.jsonl)."""
    failed = 0
    with _bar("items") as bar:
        task = bar.add_task("", total=total, completed=done, state="")

        def item_done(line: dict[str, Any]) -> None:
            nonlocal failed
            failed += line["error"] is not None
            state = f"{sum(row['calls'] for row in ledger.as_rows())} calls"
            if failed:
                state += f", failed {failed}"
            if money := ledger.total_cost:
                state += f", cost {money:.2f}"
            bar.update(task, advance=1, state=state)

        yield item_done


def _bar(what: str) -> Progress:
    """Shown where standard error is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from mapo.text import terminal

    console = terminal(stderr=True)
    columns = (
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[state]}"),
    )
    return Progress(*columns, console=console, disable=not console.is_terminal)
