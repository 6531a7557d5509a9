"""Every dialogue's place and few numbers, in SQLite; kept up as files grow.

One reader of files (`Index.refresh`, called by one thread at a time) and any number of readers of the
index. A file that grew is read on from where it was; one that was replaced is read anew. The index lies in a
cache folder of the user, holds the words of the dialogues for searching, and may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mapo.measure.rubric import Rubric
from mapo.runs.files import UNREADABLE, lines_from, open_plain
from mapo.runs.files import told as unreadable
from mapo.text import printable
from mapo.view.index.database import TABLES, VERSION, connect, place, settle
from mapo.view.index.entries import entry_of
from mapo.view.index.facts import facts_of, locked_inodes, no_facts, state_of
from mapo.view.index.files import RunFiles, Seen, find_runs, rubric_of

BATCH = 500
"""Dialogues between two commits."""
PROBLEMS = 200
"""Damaged lines of one file that are remembered."""

_COUNTS = (
    "SELECT count(*), count(DISTINCT CASE WHEN error = 0 THEN id END),"
    " avg(CASE WHEN part = 'empa' AND counts AND NOT error THEN epm_q END) FROM dialogues WHERE run = ?"
)
"""A run's dialogues, those that did not break, and a benchmark's score."""


class Index:
    """`version` counts changes; `busy` says how far a refresh is: runs read, runs to read."""

    def __init__(self, root: Path, cache: Path | None = None) -> None:
        self.root = root.resolve()
        self.version = 0
        self.busy: tuple[int, int] | None = (0, 1)  # the first look is still to come
        self.runs: dict[str, RunFiles] = {}
        self._facts: dict[str, dict[str, Any]] = {}
        self._counts: dict[str, tuple[Any, ...]] = {}
        self._signs: dict[str, object] = {}
        self._failed: dict[str, str] = {}
        self._rubrics: dict[str, Rubric | None] = {}
        self._lock, self.path = place(self.root, cache)
        self._db = self._opened()

    def close(self) -> None:
        self._db.close()
        self._lock.close()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that can only read."""
        db = sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True, timeout=10, check_same_thread=False)
        db.row_factory = sqlite3.Row
        db.execute("BEGIN")  # everything a page reads is of one moment
        try:
            yield db
        finally:
            db.close()

    def _opened(self) -> sqlite3.Connection:
        with contextlib.suppress(sqlite3.DatabaseError):
            db = connect(self.path)
            if db.execute("PRAGMA user_version").fetchone()[0] == VERSION and _root_of(db) == str(self.root):
                return db
            db.close()
        for end in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + end).unlink(missing_ok=True)
        db = connect(self.path)
        db.executescript(TABLES)
        db.execute(
            "INSERT INTO meta VALUES ('root', ?)", (os.fsencode(self.root).decode("utf-8", "replace"),)
        )
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.commit()
        return db

    # ---- keeping up

    def refresh(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Look at every file and read what is new; whether anything changed."""
        before, locked = self.version, locked_inodes()
        self._db.rollback()  # what an earlier look left unfinished
        runs = {run.key: run for run in find_runs(self.root)}
        self._forget(set(runs))
        newest = sorted(runs.values(), key=lambda r: -r.changed)
        for run in newest:  # the list of runs is there before the dialogues are
            self._describe(run, locked)
        self.runs = runs
        stale = [run for run in newest if self._signs.get(run.key) != run.sign]
        for done, run in enumerate(stale):
            if stop():
                break
            self.busy = (done, len(stale))
            self._keep_up(run)
            self._describe(run, locked)
        self.busy = None
        return self.version != before

    def _keep_up(self, run: RunFiles) -> None:
        """Read what is new of one run. What goes wrong is said of that run and costs the others nothing; a
        file that could not be opened is tried again at the next look."""
        self._failed.pop(run.key, None)
        changed, whole = True, True
        try:
            changed, whole = self._read_run(run)
        except sqlite3.Error:
            raise  # of the index, not of the run
        except Exception as error:  # noqa: BLE001 (files may hold anything)
            self._db.rollback()
            self._failed[run.key] = _told(error)
        self.version += changed
        self._counts.pop(run.key, None)
        whole = whole and not any(told.startswith(UNREADABLE) for _, told in self._facts[run.key]["problems"])
        self._signs[run.key] = run.sign if whole else None

    def _describe(self, run: RunFiles, locked: set[int]) -> None:
        """The run's row: its facts where a file changed, its state always."""
        if self._signs.get(run.key) != run.sign or run.key not in self._facts:
            self._facts[run.key] = _facts_of(run)
        facts = self._facts[run.key]
        if run.key in self._failed:
            told = ("dialogues", f"reading stopped ({self._failed[run.key]})")
            facts = {**facts, "problems": [*facts["problems"], told]}
        if run.key not in self._counts:
            self._counts[run.key] = tuple(self._db.execute(_COUNTS, (run.key,)).fetchone())
        count, played, mean = self._counts[run.key]
        if facts["score"] is None:
            facts = {**facts, "score": mean}
        state = state_of(run, facts, locked, played, time.time())
        row = (run.key, run.name, state, run.changed, count, json.dumps(facts, allow_nan=False))
        old = self._db.execute("SELECT * FROM runs WHERE key = ?", (run.key,)).fetchone()
        if old is None or tuple(old) != row:
            self._db.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?)", row)
            self._db.commit()
            self.version += 1

    def _forget(self, keys: set[str]) -> None:
        """Runs that are gone."""
        for (key,) in self._db.execute("SELECT key FROM runs").fetchall():
            if key not in keys:
                for (file,) in self._db.execute("SELECT id FROM files WHERE run = ?", (key,)).fetchall():
                    self._drop(file)
                self._db.execute("DELETE FROM runs WHERE key = ?", (key,))
                self._db.commit()
                self._signs.pop(key, None)
                self._facts.pop(key, None)
                self._counts.pop(key, None)
                self._failed.pop(key, None)
                self.version += 1

    def _drop(self, file: int) -> None:
        """A file's rows. Its words stay: their numbers are never given again, so nothing finds them."""
        for table, column in (("dialogues", "file"), ("problems", "file"), ("files", "id")):
            self._db.execute(f"DELETE FROM {table} WHERE {column} = ?", (file,))  # noqa: S608 (names above)

    def _read_run(self, run: RunFiles) -> tuple[bool, bool]:
        """Whether anything changed, and whether all files could be opened."""
        known = {
            row["key"]: row
            for row in self._db.execute("SELECT * FROM files WHERE run = ?", (run.key,)).fetchall()
        }
        changed, whole = False, True
        for key in known.keys() - run.lines.keys():
            self._drop(known[key]["id"])
            changed = True
        for key, seen in run.lines.items():
            row = known.get(key)
            if row is None or (row["size"], row["changed"], row["inode"]) != (
                seen.size,
                seen.changed,
                seen.inode,
            ):
                opened, new = self._read_file(run, key, seen, row)
                changed, whole = changed or new, whole and opened
        if changed:
            settle(self._db, run.key)
        self._db.commit()
        return changed, whole

    def _read_file(self, run: RunFiles, key: str, seen: Seen, row: sqlite3.Row | None) -> tuple[bool, bool]:
        """Read on where it grew, or from its beginning; whether it could be, and whether that is news."""
        self._rubrics = {}
        try:
            with open_plain(seen.path) as file:
                number, at, lines = self._begin(run, key, seen, row, file.fileno())
                for offset, size, line in lines_from(file, at):
                    lines += 1
                    at = offset + size
                    self._take(number, run, seen.part, (lines, offset, size), line)
                    if lines % BATCH == 0:
                        self._done(number, Seen(seen.path, seen.part, at, 0, seen.inode), at, lines)
                self._done(number, seen, at, lines)
            return True, True
        except OSError as error:
            self._db.rollback()
            told = unreadable(error)
            known = self._db.execute(
                "SELECT id FROM files WHERE run = ? AND key = ?", (run.key, key)
            ).fetchone()
            number = known["id"] if known else self._new_file((run.key, key, b"", seen.part))
            said = "SELECT 1 FROM problems WHERE file = ? AND line = 0 AND problem = ?"
            news = self._db.execute(said, (number, told)).fetchone() is None
            self._forgive(number)
            self._db.execute("INSERT INTO problems VALUES (?, 0, ?)", (number, told))
            return False, news

    def _forgive(self, file: int) -> None:
        """That a file could not be read, once it can."""
        self._db.execute("DELETE FROM problems WHERE file = ? AND line = 0", (file,))

    def _begin(
        self, run: RunFiles, key: str, seen: Seen, row: sqlite3.Row | None, fd: int
    ) -> tuple[int, int, int]:
        """The file's number, the byte to read on from, and the lines before it."""
        if row is not None:
            grew = row["inode"] == seen.inode and row["size"] < seen.size
            if grew and row["done"] and _ends_line(fd, row["done"]):
                self._forgive(row["id"])
                return row["id"], row["done"], row["lines"]
            self._drop(row["id"])
        return self._new_file((run.key, key, os.fsencode(seen.path), seen.part)), 0, 0

    def _rubric(self, run: RunFiles) -> Callable[[str], Rubric | None]:
        """The run's rubrics by name, read once a file."""

        def named(name: str) -> Rubric | None:
            if name not in self._rubrics:
                self._rubrics[name] = rubric_of(run, name)
            return self._rubrics[name]

        return named

    def _new_file(self, place: tuple[str, str, bytes, str]) -> int:
        row = self._db.execute(
            "INSERT INTO files (run, key, path, part, size, changed, inode, done, lines)"
            " VALUES (?, ?, ?, ?, 0, 0, 0, 0, 0)",
            place,
        )
        return int(row.lastrowid or 0)

    def _done(self, number: int, seen: Seen, at: int, lines: int) -> None:
        self._db.execute(
            "UPDATE files SET size = ?, changed = ?, inode = ?, done = ?, lines = ? WHERE id = ?",
            (seen.size, seen.changed, seen.inode, at, lines, number),
        )
        self._db.commit()

    def _take(
        self, number: int, run: RunFiles, part: str, place: tuple[int, int, int], line: bytes | None
    ) -> None:
        entry, words = entry_of(line, self._rubric(run), part)
        if isinstance(entry, str):
            count = self._db.execute("SELECT count(*) FROM problems WHERE file = ?", (number,)).fetchone()[0]
            if count < PROBLEMS:
                self._db.execute("INSERT INTO problems VALUES (?, ?, ?)", (number, place[0], entry[:500]))
            return
        names = ["file", "run", "part", "line", "at", "size", *entry]
        values = [number, run.key, part, *place, *entry.values()]
        marks = ", ".join("?" * len(names))
        told = self._db.execute(f"INSERT INTO dialogues ({', '.join(names)}) VALUES ({marks})", values)  # noqa: S608
        self._db.execute("INSERT INTO words (rowid, body) VALUES (?, ?)", (told.lastrowid, words))


def _facts_of(run: RunFiles) -> dict[str, Any]:
    """What the run's small files say; where even that cannot be told, why."""
    try:
        facts = facts_of(run)
        json.dumps(facts, allow_nan=False)
    except Exception as error:  # noqa: BLE001 (one run's files may hold anything; the others stay)
        return no_facts(run, _told(error))
    return facts


def _told(error: Exception) -> str:
    return printable(f"{type(error).__name__}: {error}")[:300]


def _root_of(db: sqlite3.Connection) -> str:
    return str(db.execute("SELECT value FROM meta WHERE name = 'root'").fetchone()[0])


def _ends_line(fd: int, at: int) -> bool:
    return os.pread(fd, 1, at - 1) == b"\n"
