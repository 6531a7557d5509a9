"""A live line about dialogues being played: how many, how fast, how they end, what they cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mapo.types import Dialogue, Turn


@contextmanager
def watching(
    total: int, done: int, cost: Callable[[], float | None]
) -> Iterator[tuple[Callable[[Dialogue], None], Callable[[Turn], None]]]:
    """Callbacks for each finished dialogue and each turn; shown where standard error is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("dialogues"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[state]}"),
    )
    began, turns, unscored, broken = time.monotonic(), 0, 0, 0
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
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
