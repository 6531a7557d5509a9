"""A question-and-answer benchmark as a command: who answers, what is missing, a live line, what it cost."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mapo.cli.say import say, say_all

if TYPE_CHECKING:
    from mapo.evals.bench import Item, Kept, Line, Solve
    from mapo.stage import Stage, Who

_I = TypeVar("_I", bound="Item")


async def solve_all(
    out: Path,
    asked: Mapping[str, Any],
    items: Sequence[_I],
    everyone: Sequence[Who],
    cast: Callable[[Stage, Kept], Awaitable[Solve[_I]]],
    stage: Stage,
    *,
    concurrency: int,
    resume: bool,
) -> dict[str, Line]:
    """Solve what is missing in `out`; the lines of all finished items.

    `asked` is the manifest. `everyone` names the models that will be called: they are checked before anything
    is written, and `cast` opens them on the stage; it is given what is there already.
    """
    from mapo.cli.progress import counting
    from mapo.evals.bench import prepare, run_items

    stage.check(list(everyone))
    kept = prepare(out, asked, resume=resume)
    say_all("warning", [f"{line} (asked again)" for line in kept.bad])
    failed: list[str] = []
    flushed = 0.0
    async with stage:
        solve = await cast(stage, kept)
        with counting(len(items), len(kept.finished), stage.ledger) as counted:

            def done(line: Line) -> None:
                nonlocal flushed
                if time.monotonic() - flushed >= 1:  # at every item it would take as long as the items
                    stage.ledger.flush(out / "ledger.json")
                    flushed = time.monotonic()
                counted(line)
                if line["error"] is not None:
                    failed.append(f"item {line['id']}: {line['error']}")

            try:
                lines = await run_items(out, items, solve, kept=kept, concurrency=concurrency, on_done=done)
            finally:
                stage.ledger.flush(out / "ledger.json")
                say_all("failed", failed, most=10)
    return lines


def close(out: Path, result: Mapping[str, Any], stage: Stage) -> int:
    """The last lines of a run, and its exit status: 1 where items failed."""
    from mapo.evals.bench import RESULT
    from mapo.evals.tables import print_ledger

    say_all("note", list(result["notes"]))
    print_ledger(stage.ledger)
    say(f"result: {out / RESULT}")
    return 0 if result["complete"] else 1
