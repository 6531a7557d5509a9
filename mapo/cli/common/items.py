"""Run the items of a benchmark from the command line: preflight, resume, progress, warnings, cost.

An item is a question, a conversation or a judgement; `mapo.evals.items` runs them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mapo.cli.common.messages import say, say_all, say_failures, say_next_commands

if TYPE_CHECKING:
    from mapo.cli.common.options import RunOptions
    from mapo.evals.items import Item, ItemLine, PreviousItems, Solve
    from mapo.planning.estimate import Estimate
    from mapo.players.session import ModelSession
    from mapo.players.spec import ModelSpec

_I = TypeVar("_I", bound="Item")


def solve_until_stopped(
    run: RunOptions,
    manifest: Mapping[str, Any],
    items: Sequence[_I],
    models: Mapping[str, ModelSpec],
    open_solver: Callable[[ModelSession, PreviousItems], Awaitable[Solve[_I]]],
    session: ModelSession,
    estimate: Callable[[int], Estimate] | None = None,
) -> SolvedItems:
    """Solve the items that are missing in the run directory. Stopped by a signal, print how to resume.

    `models` are the models that will be called, by role. With `estimate`, which estimates the calls of so
    many items, the models are checked and the estimate is printed first.
    """
    from mapo.cli.common.stop import until_stopped
    from mapo.evals.items import read_previous

    def saved() -> str:
        ids = {item.id for item in items}
        return f"{len(ids & read_previous(run.out).finished.keys())} of {len(items)} items are finished"

    work = solve_all(
        run.out,
        manifest,
        items,
        models,
        open_solver,
        session,
        concurrency=run.concurrency,
        resume=run.resume,
        estimate=estimate,
    )
    return until_stopped(work, run.out, saved)


async def solve_all(
    out: Path,
    manifest: Mapping[str, Any],
    items: Sequence[_I],
    models: Mapping[str, ModelSpec],
    open_solver: Callable[[ModelSession, PreviousItems], Awaitable[Solve[_I]]],
    session: ModelSession,
    *,
    concurrency: int,
    resume: bool,
    estimate: Callable[[int], Estimate] | None = None,
) -> SolvedItems:
    """Solve the items that are missing in `out`.

    Settings and models are checked before anything is written. `open_solver` opens the models in the session;
    it receives the items that are finished already.
    """
    from mapo.cli.common.models import say_default_addresses
    from mapo.cli.common.preflight import preflight_async
    from mapo.evals.items import prepare, run_items
    from mapo.players.identity import moved
    from mapo.runs.claim import claim, read_manifest
    from mapo.show.progress import item_progress
    from mapo.store import RunDir

    session.check(models)
    previous = prepare(out, manifest, resume=resume)
    say_default_addresses(models.values())
    say_all("warning", [f"{line} (will be run again)" for line in previous.bad])
    finished = sum(item.id in previous.finished for item in items)
    if estimate and finished < len(items):
        expected = estimate(len(items) - finished)
        await preflight_async(models, estimate=expected, cache_mode=session.cache_mode, cache=session.cache)
    failed: list[tuple[str, str]] = []
    flushed = 0.0
    async with session:
        solve = await open_solver(session, previous)
        claim(out, manifest)
        say_all("warning", moved(read_manifest(RunDir(out).manifest), manifest))
        ledger = session.ledger
        with item_progress(
            len(items), finished, lambda: ledger.total_calls, session.cost, ledger.activity.snapshot
        ) as show_progress:

            def done(line: ItemLine) -> None:
                nonlocal flushed
                if time.monotonic() - flushed >= 1:  # flushing after every item would dominate short items
                    session.ledger.flush(RunDir(out).ledger_of())
                    flushed = time.monotonic()
                show_progress(line)
                if line["error"] is not None:
                    failed.append((line["id"], line["error"]))

            try:
                lines = await run_items(
                    out,
                    items,
                    _recording_omitted(solve, session),
                    previous=previous,
                    concurrency=concurrency,
                    on_done=done,
                )
            finally:
                session.ledger.flush(RunDir(out).ledger_of())
                say_failures("failed", "item", failed)
    now = {"left_out": session.left_out()}
    return SolvedItems(lines, _omitted([*previous.partial.values(), *lines.values(), now]))


def _recording_omitted(solve: Solve[_I], session: ModelSession) -> Solve[_I]:
    """Record in each line which parameters the endpoints refused: a resumed run would not learn it again."""
    from mapo.evals.items import PartialItemError

    def omitted() -> dict[str, Any]:
        names = session.left_out()
        return {"left_out": names} if names else {}

    async def solve_and_record(item: _I, attempt: int) -> Mapping[str, Any]:
        try:
            return {**await solve(item, attempt), **omitted()}
        except PartialItemError as error:
            raise PartialItemError({**error.body, **omitted()}, error.problem) from error

    return solve_and_record


def _omitted(lines: Sequence[ItemLine]) -> dict[str, list[str]]:
    names_by_role: dict[str, set[str]] = {}
    for line in lines:
        for role, names in line.get("left_out", {}).items():
            names_by_role.setdefault(role, set()).update(names)
    return {role: sorted(names) for role, names in names_by_role.items()}


class SolvedItems(NamedTuple):
    """The lines of all finished items and, by role, the parameters that an endpoint refused."""

    lines: dict[str, ItemLine]
    left_out: dict[str, list[str]]

    @property
    def settings(self) -> dict[str, Any]:
        """The refused parameters as result.json records them."""
        judge = self.left_out.get("judge")
        policy = {"left_out": self.left_out.get("policy", [])}
        return {**policy, **({"judge_left_out": judge} if judge else {})}

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence per role with refused parameters."""
        names = {"policy": "the model", "judge": "the judge", "maker": "the writer"}
        return tuple(
            f"{names.get(role, role)} was sampled without {' and '.join(parameters)}: its endpoint refuses it"
            for role, parameters in self.left_out.items()
        )


def check_context(policy: ModelSpec, replies: int, max_tokens: int, context: int) -> None:
    """Refuse a local model whose replies in one conversation would fill its context."""
    from mapo.errors import InputError

    if policy.local is not None and replies * max_tokens >= context:
        count, do = (f"{replies} replies", "do") if replies > 1 else ("One reply", "does")
        raise InputError(
            f"{count} of up to {max_tokens} tokens {do} not fit into a context of {context} tokens",
            where=policy.model,
            fix="Raise --context, or lower --max-tokens (it is recorded in the result)",
        )


def close(run: RunOptions, result: Mapping[str, Any], session: ModelSession) -> int:
    """Print notes, costs and the next commands of a finished run. Return 1 if items failed, otherwise 0."""
    from mapo.scoring.tables import print_ledger
    from mapo.store import RunDir

    say_all("note", list(result["notes"]))
    print_ledger(session.ledger)
    say(f"result: {RunDir(run.out).result}")
    say_next_commands(run.out)
    return 0 if result["n"] == (result["limit"] or result["of"]) else 1
