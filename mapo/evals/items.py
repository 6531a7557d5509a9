"""What every question-and-answer benchmark shares: a run folder, many items at once, one result file.

OUT/manifest.json   what is being run; a resume must ask for the same
    items.jsonl     each item's answers, complete on disk before it counts; failed ones with their reason
    result.json     the scores ("mapo.result/1"), written when the run ends, complete or not
    cache.sqlite    every model call, so that nothing is paid twice
    ledger.json     calls, tokens, cost by role

A benchmark brings items (anything with a stable `id`) and a function `solve(item, attempt)` that asks the
models and returns what an item's line shall hold: the answers as they came, no score. Scores are computed
from the lines when all is done, so a better parser asks nothing again. `solve` may call several times in a
row; every call through an endpoint is in the cache, so a kill in the middle of an item pays for none of
them twice. It raises `EndpointError`, `AnswerError` or `ContextError` where an item fails: that is
recorded, its siblings go on, and a resume tries it again with `attempt` one higher. Put `attempt` into the
nonce of a call whose recorded answer was what failed (a judge's unreadable form), and leave it out
elsewhere. Where some of an item is worth keeping all the same (replies whose judge failed), it raises
`HalfwayError` with that: the line holds it, and `Kept.halves` gives it back to the next attempt.

    kept = prepare(out, manifest, resume=resume)
    claim(out, manifest)
    lines = await run_items(out, items, solve, kept=kept)
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
from mapo.models.chat import Chat, Closing, Talker
from mapo.runs.claim import look
from mapo.store import BadLine, JsonlWriter, RunDir, read_jsonl

ITEM_SCHEMA = "mapo.item/1"
ASK_ANEW = "Remove that line and run again with --resume"
"""What to do about a line of items.jsonl that is not what it should be."""

Line = dict[str, Any]
"""A line of items.jsonl: `schema`, `id`, `attempt`, `error` (None if all is well), and what `solve` gave."""


class Item(Protocol):
    @property
    def id(self) -> str: ...


_I = TypeVar("_I", bound=Item)
Solve = Callable[[_I, int], Awaitable[Mapping[str, Any]]]

_FAILS_THE_ITEM = (EndpointError, AnswerError, ContextError)


class HalfwayError(Exception):
    """An item failed by `problem`, and `body` of it is to be kept."""

    def __init__(self, body: Mapping[str, Any], problem: MapoError) -> None:
        super().__init__(str(problem))
        self.body, self.problem = body, problem


# ---- what is there


class Kept(NamedTuple):
    """What a folder holds already: finished lines by item, how often others failed, lines beyond reading, and
    the last line of each item that failed."""

    finished: dict[str, Line]
    failed: Counter[str]
    bad: list[str]
    halves: dict[str, Line]


def prepare(out: Path, asked: Mapping[str, Any], *, resume: bool) -> Kept:
    """Refuse a folder that is not this run's or free; find out what is done in it."""
    look(out, asked, resume=resume)
    return read_kept(out)


def read_kept(out: Path) -> Kept:
    kept = Kept({}, Counter(), [], {})
    file = RunDir(out).items
    for line in read_jsonl(file) if file.exists() else ():
        if isinstance(line, BadLine):
            kept.bad.append(str(line))
        elif line.get("schema") != ITEM_SCHEMA or not isinstance(line.get("id"), str):
            kept.bad.append(f"{file}: a line that is no '{ITEM_SCHEMA}'")
        elif line.get("error") is None:
            kept.finished[line["id"]] = line
        else:
            kept.failed[line["id"]] += 1
            kept.halves[line["id"]] = line
    return kept


# ---- the items


def _enough(items: int) -> int:
    """How many items are seen before a run may be stopped: a fifth, between 5 and 40."""
    return max(5, min(40, items // 5))


@dataclass(slots=True)
class _Patience:
    """Stops a run in which most items fail because nobody answers, while stopping still saves something:
    `left` are to come. Answers that came and cannot be used are a finding, and no reason to stop."""

    left: int
    least: int
    items: int = 0
    failed: int = 0

    def see(self, problem: MapoError | None) -> None:
        self.items += 1
        self.left -= 1
        self.failed += isinstance(problem, EndpointError)
        enough = min(self.items, self.left) >= self.least
        if problem is not None and enough and self.failed > self.items / 2:
            raise EndpointError(
                f"{self.failed} of {self.items} items failed, last: {problem}",
                fix="What is finished is kept: once that is mended, run again with --resume",
            )


@dataclass(slots=True)
class _Desk:
    """Where finished items are written down."""

    writer: JsonlWriter
    lines: dict[str, Line]
    on_done: Callable[[Line], None] | None
    patience: _Patience

    def keep(self, name: str, attempt: int, body: Mapping[str, Any], problem: MapoError | None) -> None:
        error = None if problem is None else str(problem)
        head = {"schema": ITEM_SCHEMA, "id": name, "attempt": attempt, "error": error}
        line: Line = {**head, **body, **head}  # it stands first, and stays as it is
        self.writer.write(line)
        if problem is None:
            self.lines[name] = line
        if self.on_done:
            self.on_done(line)
        self.patience.see(problem)


async def run_items(
    out: Path,
    items: Sequence[_I],
    solve: Solve[_I],
    *,
    kept: Kept | None = None,
    concurrency: int = 32,
    on_done: Callable[[Line], None] | None = None,
) -> dict[str, Line]:
    """Solve what is not finished yet, at most `concurrency` at once; the lines of all finished items by id.

    `on_done` sees each new line, failed ones too, once it is on disk. When an endpoint failed more than half
    of a fifth of them (no less than 5, no more than 40), and as many are still to come, everything stops.
    """
    kept = kept or Kept({}, Counter(), [], {})
    if len({item.id for item in items}) < len(items):
        raise InputError("two items have the same id", fix="Give each item an id of its own")
    todo = [item for item in items if item.id not in kept.finished]
    waiting = iter(todo)
    with JsonlWriter(RunDir(out).items) as writer:
        desk = _Desk(writer, dict(kept.finished), on_done, _Patience(len(todo), _enough(len(todo))))

        async def work() -> None:
            for item in waiting:
                attempt = kept.failed[item.id]
                try:
                    body = await solve(item, attempt)
                except _FAILS_THE_ITEM as problem:
                    desk.keep(item.id, attempt, {}, problem)
                except HalfwayError as half:
                    desk.keep(item.id, attempt, half.body, half.problem)
                else:
                    desk.keep(item.id, attempt, body, None)

        await _all([work() for _ in range(min(concurrency, len(items)))])
    return desk.lines


async def _all(tasks: Sequence[Awaitable[None]]) -> None:
    """The first error cancels the rest and is raised as it is."""
    running = [asyncio.ensure_future(task) for task in tasks]
    try:
        await asyncio.gather(*running)
    except BaseException:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        raise


@contextmanager
def conversation(talker: Talker, name: str) -> Iterator[Chat]:
    """A chat for one conversation; a local model's place is free again when it is over."""
    chat = talker(name)
    try:
        yield chat
    finally:
        if isinstance(chat, Closing):
            chat.end_dialogue()


def seed_of(*parts: object) -> int:
    """The chance of a locally sampled reply: the same parts, the same reply."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6])
