"""Run the items of a benchmark from the command line: resume, progress, warnings, cost.

An item is a question, a conversation or a judgement; `mapo.evals.items` runs them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mapo.cli.common.messages import say, say_all

if TYPE_CHECKING:
    from mapo.cli.common.options import Run
    from mapo.evals.items import Item, Kept, Line, Solve
    from mapo.players.session import ModelSession
    from mapo.players.spec import ModelSpec

_I = TypeVar("_I", bound="Item")


def solve_until_stopped(
    run: Run,
    asked: Mapping[str, Any],
    items: Sequence[_I],
    everyone: Sequence[ModelSpec],
    cast: Callable[[ModelSession, Kept], Awaitable[Solve[_I]]],
    session: ModelSession,
) -> Solved:
    """Solve what is missing in the run's folder; stopped by hand, say what is kept and how to go on."""
    from mapo.cli.common.stop import until_stopped
    from mapo.evals.items import read_kept

    def kept() -> str:
        ids = {item.id for item in items}
        return f"{len(ids & read_kept(run.out).finished.keys())} of {len(items)} items are kept"

    work = solve_all(
        run.out, asked, items, everyone, cast, session, concurrency=run.concurrency, resume=run.resume
    )
    return until_stopped(work, run.out, kept)


async def solve_all(
    out: Path,
    asked: Mapping[str, Any],
    items: Sequence[_I],
    everyone: Sequence[ModelSpec],
    cast: Callable[[ModelSession, Kept], Awaitable[Solve[_I]]],
    session: ModelSession,
    *,
    concurrency: int,
    resume: bool,
) -> Solved:
    """Solve what is missing in `out`.

    `asked` is the manifest. `everyone` names the models that will be called: they are checked before anything
    is written, and `cast` opens them in the session; it is given what is there already.
    """
    from mapo.cli.common.models import say_default_addresses
    from mapo.evals.items import prepare, run_items
    from mapo.players.identity import moved
    from mapo.runs.claim import claim, read_manifest
    from mapo.show.progress import item_progress
    from mapo.store import RunDir

    session.check(everyone)
    kept = prepare(out, asked, resume=resume)
    say_default_addresses(everyone)
    say_all("warning", [f"{line} (asked again)" for line in kept.bad])
    failed: list[str] = []
    flushed = 0.0
    async with session:
        solve = await cast(session, kept)
        claim(out, asked)
        say_all("warning", moved(read_manifest(RunDir(out).manifest), asked))
        there = sum(item.id in kept.finished for item in items)
        with item_progress(len(items), there, lambda: session.ledger.total_calls, session.cost) as counted:

            def done(line: Line) -> None:
                nonlocal flushed
                if time.monotonic() - flushed >= 1:  # at every item it would take as long as the items
                    session.ledger.flush(RunDir(out).ledger_of())
                    flushed = time.monotonic()
                counted(line)
                if line["error"] is not None:
                    failed.append(f"item {line['id']}: {line['error']}")

            try:
                solving = _telling(solve, session)
                lines = await run_items(out, items, solving, kept=kept, concurrency=concurrency, on_done=done)
            finally:
                session.ledger.flush(RunDir(out).ledger_of())
                say_all("failed", failed, most=10)
    now = {"left_out": session.left_out()}
    return Solved(lines, _left_out([*kept.halves.values(), *lines.values(), now]))


def _telling(solve: Solve[_I], session: ModelSession) -> Solve[_I]:
    """Each line also says what the endpoints refused, for a resume cannot find that out again."""
    from mapo.evals.items import HalfwayError

    def told() -> dict[str, Any]:
        return {"left_out": found} if (found := session.left_out()) else {}

    async def solving(item: _I, attempt: int) -> Mapping[str, Any]:
        try:
            return {**await solve(item, attempt), **told()}
        except HalfwayError as half:
            raise HalfwayError({**half.body, **told()}, half.problem) from half

    return solving


def _left_out(lines: Sequence[Line]) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for line in lines:
        for role, names in line.get("left_out", {}).items():
            found.setdefault(role, set()).update(names)
    return {role: sorted(names) for role, names in found.items()}


class Solved(NamedTuple):
    """The lines of all finished items, and by role the parameters that an endpoint refused."""

    lines: dict[str, Line]
    left_out: dict[str, list[str]]

    @property
    def settings(self) -> dict[str, Any]:
        """What result.json says of it: how the model was sampled, and what the judge's marks mean."""
        judge = self.left_out.get("judge")
        own = {"left_out": self.left_out.get("policy", [])}
        return {**own, **({"judge_left_out": judge} if judge else {})}

    @property
    def notes(self) -> tuple[str, ...]:
        who = {"policy": "the model", "judge": "the judge", "maker": "the writer"}
        return tuple(
            f"{who.get(role, role)} was sampled without {' and '.join(names)}: its endpoint refuses that"
            for role, names in self.left_out.items()
        )


def fits(policy: ModelSpec, replies: int, max_tokens: int, context: int) -> None:
    """A local model's replies in one conversation must leave room for what they reply to."""
    from mapo.errors import InputError

    if policy.local is not None and replies * max_tokens >= context:
        many = f"{replies} replies" if replies > 1 else "a reply"
        raise InputError(
            f"{many} of {max_tokens} tokens in a context of {context}",
            where=policy.model,
            fix="Raise --context, or give --max-tokens (it is written into the result)",
        )


def close(run: Run, result: Mapping[str, Any], session: ModelSession) -> int:
    """The last lines of a run, and its exit status: 1 where items failed."""
    from mapo.scoring.tables import print_ledger
    from mapo.store import RunDir

    say_all("note", list(result["notes"]))
    print_ledger(session.ledger)
    say(f"result: {RunDir(run.out).result}")
    return 0 if result["n"] == (result["limit"] or result["of"]) else 1
