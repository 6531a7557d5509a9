"""The recorded model calls of a turn, from the run's cache.

A cache is a SQLite file in an untrusted folder. It is opened read-only and never created, its schema is
checked first, queries have a time limit, and texts are cut to a limit while they are decompressed.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import time
import zlib
from pathlib import Path
from typing import Any

from mapo.models.wire import load_answer
from mapo.runs.contents import integer, number
from mapo.store import CACHE
from mapo.text import printable
from mapo.types import Dialogue
from mapo.view.index.files import RunFiles

TEXT = 20_000
"""Characters of a message that are sent."""
MOST = 40
"""Calls per turn that are sent."""
CACHES = 64
"""Cache files of a run (one per process) that are searched."""
SECONDS = 2.0
"""Time limit of the queries to one cache."""
UNPACKED = 1 << 20
"""Bytes of a message that are decompressed."""
ALL_UNPACKED = 16 << 20
"""Bytes of all messages of a cache that are decompressed for one page."""
VALUE = 16 << 20
"""The largest value that is read from a cache, in bytes."""


def calls_of(run: RunFiles, dialogue: Dialogue, turn: int) -> dict[str, Any]:
    """Return the recorded calls of a turn (counted from 1), and a note if there are none.

    The calls before the first turn (the judge's start form) belong to turn 1.
    """
    session = dialogue.id if dialogue.seed is None else f"{dialogue.id}/{dialogue.seed}"
    session = session if dialogue.step is None else f"{dialogue.step}/{session}"
    turns = (0, 1) if turn == 1 else (turn, turn)
    calls: list[dict[str, Any]] = []
    problems: list[str] = []
    files = cache_files(run.root)
    for file in files:
        try:
            calls += _read(file, session, turns)
        except (sqlite3.Error, OSError, ValueError) as error:
            problems.append(printable(f"{file.name}: {error}")[:300])
    calls = _of_this_dialogue(calls, dialogue)
    calls.sort(key=lambda call: call["started"] or 0.0)
    return {
        "calls": calls[:MOST],
        "left_out": max(0, len(calls) - MOST),
        "note": _note(files, calls, problems),
    }


def _of_this_dialogue(calls: list[dict[str, Any]], dialogue: Dialogue) -> list[dict[str, Any]]:
    """Drop calls of other dialogues with the same session and turn.

    The evaluations of a training run (before, validation, after) play the same jobs, so their sessions are
    equal. A call belongs to this dialogue if its prompt contains what was said last. Calls are kept if that
    would leave none.
    """
    kept = []
    for call in calls:
        prompt, turn = call.pop("prompt"), call.pop("turn")
        shown = max(1, turn - (call["role"] == "user"))
        last = dialogue.turns[min(shown, len(dialogue.turns)) - 1]
        text = _letters(last.user if call["role"] == "policy" else last.reply.text)[:200]
        if turn == 0 or text in _letters(prompt):
            kept.append(call)
    return kept or calls


def _letters(text: str) -> str:
    return "".join(c for c in text if c.isalnum())


def _note(files: list[Path], calls: list[dict[str, Any]], problems: list[str]) -> str:
    if problems:
        return f"A cache could not be read. {problems[0]}"
    if calls:
        return ""
    if not files:
        return "This run has no cache: its roles were scripted or local, or the cache was off."
    return (
        "No calls are recorded for this turn: its roles were scripted or local, "
        "or the run was made by a version that did not record requests."
    )


def cache_files(root: Path) -> list[Path]:
    """Return the cache files of a run's processes; links are left out."""
    try:
        names = sorted(entry.name for entry in root.iterdir() if entry.name.startswith(CACHE))
    except OSError:
        return []
    main = [
        root / name for name in names if name.removeprefix(CACHE).lstrip(".").isdecimal() or name == CACHE
    ]
    return [file for file in main if _is_regular(file)][:CACHES]


def _is_regular(file: Path) -> bool:
    try:
        return stat.S_ISREG(os.lstat(file).st_mode)
    except OSError:
        return False


def _open(file: Path) -> sqlite3.Connection:
    """Open a cache without writing to its folder.

    With a write-ahead log beside it the run may be going on, and SQLite needs the log and its index (both
    exist then). Otherwise the file is opened as immutable, because SQLite would create those files.
    """
    beside = [file.with_name(f"{file.name}{end}") for end in ("-wal", "-shm")]
    live = all(_is_regular(path) for path in beside)
    mode = "mode=ro" if live else "mode=ro&immutable=1"
    db = sqlite3.connect(f"{file.absolute().as_uri()}?{mode}", uri=True, timeout=1)
    db.row_factory = sqlite3.Row
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE)
    deadline = time.monotonic() + SECONDS
    db.set_progress_handler(lambda: int(time.monotonic() > deadline), 10_000)
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA query_only = ON")
    return db


def _read(file: Path, session: str, turns: tuple[int, int]) -> list[dict[str, Any]]:
    db = _open(file)
    try:
        tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"calls", "texts", "answers"} <= tables:
            return []
        rows = db.execute(
            "SELECT * FROM calls WHERE session >= ? AND session < ? AND turn BETWEEN ? AND ?"
            " ORDER BY started LIMIT 200",
            (f"{session}/", f"{session}0", *turns),  # "0" follows "/": all sessions of this dialogue
        ).fetchall()
        texts = _Texts(db)
        return [_call(db, row, texts) for row in rows]
    finally:
        db.close()


def _call(db: sqlite3.Connection, row: sqlite3.Row, texts_of: _Texts) -> dict[str, Any]:
    request = _object(row["request"])
    messages = request.get("messages")
    pairs = [m for m in messages if isinstance(m, list) and len(m) == 2] if isinstance(messages, list) else []
    texts = [texts_of.read(str(name)) for _, name in pairs[:200]]
    sampling: dict[str, float | str | None] = {
        **{key: number(request.get(key)) for key in ("temperature", "top_p", "max_tokens")},
        "body": _word(request.get("body")) or None,
    }
    return {
        "role": _word(row["role"]),
        "model": _word(row["model"]),
        "started": number(row["started"]),
        "seconds": number(row["seconds"]),
        "retries": integer(row["retries"]) or 0,
        "error": _word(row["error"]),
        "sampling": {key: value for key, value in sampling.items() if value is not None},
        "json": request.get("schema") is True,
        "messages": [{"role": _word(m[0]), **_cut(text)} for m, text in zip(pairs, texts, strict=False)],
        "prompt": "\n".join(texts),
        "turn": integer(row["turn"]) or 0,
        **_answer(db, row["key"]),
    }


class _Texts:
    """Message texts of one cache, each decompressed once, with a limit on all of them together."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db, self.left = db, ALL_UNPACKED
        self.known: dict[str, str] = {}

    def read(self, name: str) -> str:
        if name not in self.known:
            self.known[name] = self._unpack(name)
        return self.known[name]

    def _unpack(self, name: str) -> str:
        if self.left <= 0:
            return "The text is left out: the calls of this turn are too large to show."
        row = self.db.execute("SELECT body FROM texts WHERE hash = ?", (name,)).fetchone()
        if row is None or not isinstance(row["body"], bytes):
            return ""
        try:
            unpacked = zlib.decompressobj().decompress(row["body"], min(UNPACKED, self.left))
        except zlib.error:
            return "The text is damaged."
        self.left -= len(unpacked)
        return unpacked.decode("utf-8", "replace")


def _answer(db: sqlite3.Connection, key: object) -> dict[str, Any]:
    row = db.execute("SELECT answer FROM answers WHERE key = ?", (str(key),)).fetchone()
    if row is None or not isinstance(row["answer"], str):
        return {"answer": None}
    try:
        answer = load_answer(row["answer"])
        text = answer.text if isinstance(answer.text, str) else ""
        tokens = {"prompt": integer(answer.usage.prompt), "answer": integer(answer.usage.completion)}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {"answer": None}
    return {"answer": _cut(text), "finish": _word(answer.reply.finish), "tokens": tokens}


def _cut(text: str) -> dict[str, Any]:
    return {"text": text[:TEXT], "cut": len(text) > TEXT}


def _object(text: object) -> dict[str, Any]:
    try:
        data = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        data = None
    return data if isinstance(data, dict) else {}


def _word(value: object) -> str:
    return printable(value)[:300] if isinstance(value, str) else ""
