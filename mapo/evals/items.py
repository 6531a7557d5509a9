"""The run loop that all question-and-answer benchmarks share.

OUT/manifest.json   what is being run; a resume must ask for the same
    items.jsonl     the answers of each item, on disk before it counts; failed items with their reason
    result.json     the scores ("mapo.result/1"), written when the run ends, complete or not
    cache.sqlite    every model call, so that no call is paid for twice
    ledger.json     calls, tokens and cost by role

A benchmark provides items (anything with a stable `id`) and a function `solve(item, attempt)` that calls the
models and returns the content of the item's line: the answers as received, no score. Scores are computed from
the lines at the end, so a better parser needs no new calls. `solve` raises `EndpointError`, `AnswerError` or
`ContextError` if the item fails: the failure is recorded, the other items go on, and a resume tries it again
with `attempt` increased by one. Use `attempt` in the nonce of a call whose recorded answer was what failed
(an unreadable judgement), and omit it elsewhere. If a part of a failed item is worth keeping (replies whose
judge failed), `solve` raises `PartialItemError` with that part; `PreviousItems.partial` returns it to the
next attempt.

    previous = prepare(out, manifest, resume=resume)
    claim(out, manifest)
    lines = await run_items(out, items, solve, previous=previous)
    scored = [Scored(item.id, {"EA": 1.0}) for item in items if item.id in lines]
    scores, intervals = summarise(scored)
    write_result(out, benchmark="mine", model=name, settings={}, of=len(items), items=scored, scores=scores,
                 intervals=intervals)
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from mapo.errors import AnswerError, ContextError, EndpointError, InputError, MapoError
from mapo.models.chat import Chat, ChatFactory, DialogueChat
from mapo.runs.claim import check_folder
from mapo.store import BadLine, JsonlWriter, RunDir, read_jsonl

ITEM_SCHEMA = "mapo.item/1"
REMOVE_LINE = "Remove that line and run again with --resume"
"""The fix for an invalid line of items.jsonl."""

ItemLine = dict[str, Any]
"""A line of items.jsonl: `schema`, `id`, `attempt`, `error` (None if the item succeeded), and what `solve`
returned."""


class Item(Protocol):
    """Anything with a stable id."""

    @property
    def id(self) -> str: ...


_I = TypeVar("_I", bound=Item)
Solve = Callable[[_I, int], Awaitable[Mapping[str, Any]]]

_ITEM_ERRORS = (EndpointError, AnswerError, ContextError)
"""Errors that fail one item, not the run."""


class PartialItemError(Exception):
    """An item failed because of `problem`; `body` is the part of it to keep."""

    def __init__(self, body: Mapping[str, Any], problem: MapoError) -> None:
        super().__init__(str(problem))
        self.body, self.problem = body, problem


# ---- reading a run directory


class PreviousItems(NamedTuple):
    """The content of a run directory: lines of finished items, failures per item, unreadable lines, and the
    last line of each failed item."""

    finished: dict[str, ItemLine]
    failed: Counter[str]
    bad: list[str]
    partial: dict[str, ItemLine]


def prepare(out: Path, manifest: Mapping[str, Any], *, resume: bool) -> PreviousItems:
    """Check that `out` is free or holds this run, and return what it holds."""
    check_folder(out, manifest, resume=resume)
    return read_previous(out)


def read_previous(out: Path) -> PreviousItems:
    """Read the items of a run directory."""
    previous = PreviousItems({}, Counter(), [], {})
    file = RunDir(out).items
    for line in read_jsonl(file) if file.exists() else ():
        if isinstance(line, BadLine):
            previous.bad.append(str(line))
        elif line.get("schema") != ITEM_SCHEMA or not isinstance(line.get("id"), str):
            previous.bad.append(f"{file}: a line is not a record of schema '{ITEM_SCHEMA}'")
        elif line.get("error") is None:
            previous.finished[line["id"]] = line
        else:
            previous.failed[line["id"]] += 1
            previous.partial[line["id"]] = line
    return previous


# ---- running items


def _items_before_stop(items: int) -> int:
    """Return how many items must be done before a run may be stopped: a fifth, between 5 and 40."""
    return max(5, min(40, items // 5))


@dataclass(slots=True)
class _FailureLimit:
    """Stops a run in which an endpoint fails most items, as long as stopping still saves calls.

    `left` counts the items still to do. Unusable answers are a result and do not stop a run.
    """

    left: int
    least: int
    items: int = 0
    failed: int = 0

    def count(self, problem: MapoError | None) -> None:
        self.items += 1
        self.left -= 1
        self.failed += isinstance(problem, EndpointError)
        enough = min(self.items, self.left) >= self.least
        if problem is not None and enough and self.failed > self.items / 2:
            raise EndpointError(
                f"{self.failed} of {self.items} items failed, the last one with: {problem}",
                fix="Finished items are kept: fix the cause and run again with --resume",
            )


@dataclass(slots=True)
class _ItemWriter:
    """Writes items to disk as they finish."""

    writer: JsonlWriter
    lines: dict[str, ItemLine]
    on_done: Callable[[ItemLine], None] | None
    limit: _FailureLimit

    def write(self, name: str, attempt: int, body: Mapping[str, Any], problem: MapoError | None) -> None:
        error = None if problem is None else str(problem)
        head = {"schema": ITEM_SCHEMA, "id": name, "attempt": attempt, "error": error}
        line: ItemLine = {**head, **body, **head}  # the head stands first, and `body` cannot change it
        self.writer.write(line)
        if problem is None:
            self.lines[name] = line
        if self.on_done:
            self.on_done(line)
        self.limit.count(problem)


async def run_items(
    out: Path,
    items: Sequence[_I],
    solve: Solve[_I],
    *,
    previous: PreviousItems | None = None,
    concurrency: int = 32,
    on_done: Callable[[ItemLine], None] | None = None,
) -> dict[str, ItemLine]:
    """Solve the unfinished items, `concurrency` at a time, and return the lines of all finished items by id.

    `on_done` receives each new line, failed ones included, once it is on disk. The run stops if an endpoint
    failed more than half of the first items (`_items_before_stop`) and as many are still to come.
    """
    previous = previous or PreviousItems({}, Counter(), [], {})
    if len({item.id for item in items}) < len(items):
        raise InputError("two items have the same id", fix="Give each item its own id")
    todo = [item for item in items if item.id not in previous.finished]
    waiting = iter(todo)
    with JsonlWriter(RunDir(out).items) as file:
        limit = _FailureLimit(len(todo), _items_before_stop(len(todo)))
        writer = _ItemWriter(file, dict(previous.finished), on_done, limit)

        async def work() -> None:
            for item in waiting:
                attempt = previous.failed[item.id]
                try:
                    body = await solve(item, attempt)
                except _ITEM_ERRORS as problem:
                    writer.write(item.id, attempt, {}, problem)
                except PartialItemError as error:
                    writer.write(item.id, attempt, error.body, error.problem)
                else:
                    writer.write(item.id, attempt, body, None)

        await _gather([work() for _ in range(min(concurrency, len(items)))])
    return writer.lines


async def _gather(tasks: Sequence[Awaitable[None]]) -> None:
    """Run the tasks. The first error cancels the others and is raised unchanged."""
    running = [asyncio.ensure_future(task) for task in tasks]
    try:
        await asyncio.gather(*running)
    except BaseException:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        raise


@contextmanager
def conversation(open_chat: ChatFactory, name: str) -> Iterator[Chat]:
    """Open a chat for one conversation and release its resources at the end."""
    chat = open_chat(name)
    try:
        yield chat
    finally:
        if isinstance(chat, DialogueChat):
            chat.end_dialogue()


def seed_of(*parts: object) -> int:
    """Return a seed for a locally sampled reply; equal parts give equal seeds."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6])
