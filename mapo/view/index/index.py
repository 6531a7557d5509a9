"""The index: location, numbers and words of every dialogue, in SQLite, updated as files grow.

One thread reads files (`Index.refresh`); any number of threads read the index. A file that has grown is read
from where the last refresh stopped, a file that was replaced is read again. The index is in the user's cache
folder and may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mapo.measure.rubric import Rubric
from mapo.runs.files import UNREADABLE, lines_from, open_plain, read_problem
from mapo.runs.kind import Kind
from mapo.text import plural, printable
from mapo.view.index.context import PLAYERS, context_of
from mapo.view.index.database import TABLES, VERSION, connect, locate, mark_superseded
from mapo.view.index.entries import entry_of
from mapo.view.index.facts import facts_of, grace_of, locked_inodes, no_facts, state_of
from mapo.view.index.files import FileStamp, RunFiles, find_runs, rubric_of

BATCH = 500
"""Dialogues between two commits."""
PROBLEMS = 200
"""Damaged lines of one file that are stored."""

_COUNTS = (
    "SELECT count(*), count(DISTINCT CASE WHEN error = 0 THEN id END),"
    " avg(CASE WHEN part = 'empa' AND counts AND NOT error THEN epm_q END) FROM dialogues WHERE run = ?"
)
"""The dialogues of a run, those that did not break, and the score of an EMPA run."""


class Index:
    """`version` counts changes; `busy` is the progress of a refresh: runs read, runs to read."""

    def __init__(self, root: Path, cache: Path | None = None) -> None:
        self.root = root.resolve()
        self.version = 0
        self.busy: tuple[int, int] | None = (0, 1)  # the first refresh has not started
        self.runs: dict[str, RunFiles] = {}
        self._facts: dict[str, dict[str, Any]] = {}
        self._counts: dict[str, tuple[Any, ...]] = {}
        self._signatures: dict[str, object] = {}
        self._failed: dict[str, str] = {}
        self._rubrics: dict[str, Rubric | None] = {}
        self._grace = grace_of(self.root)
        self._lock, self.path = locate(self.root, cache)
        self._db = self._opened()

    def close(self) -> None:
        self._db.close()
        self._lock.close()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open a read-only connection."""
        db = sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True, timeout=10, check_same_thread=False)
        db.row_factory = sqlite3.Row
        db.execute("BEGIN")  # a page reads one consistent snapshot
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

    # ---- refreshing

    def refresh(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Scan all files and read what is new. Return whether anything changed."""
        before, locked = self.version, locked_inodes()
        self._db.rollback()  # an earlier refresh may have been interrupted
        runs = {run.key: run for run in find_runs(self.root)}
        self._forget(set(runs))
        newest = sorted(runs.values(), key=lambda r: -r.changed)
        for run in newest:  # list all runs before reading dialogues
            self._describe(run, locked)
        self.runs = runs
        stale = [run for run in newest if self._signatures.get(run.key) != run.signature]
        for done, run in enumerate(stale):
            if stop():
                break
            self.busy = (done, len(stale))
            self._update(run)
            self._describe(run, locked)
        for run in newest:
            facts = self._facts[run.key]
            if facts["grid"] or facts["kind"] == Kind.SCREENING:  # after its runs, on which its state depends
                self._describe(run, locked)
        self.busy = None
        return self.version != before

    def _update(self, run: RunFiles) -> None:
        """Read the new records of one run. A failure is reported with the run and does not affect others; a
        file that could not be opened is tried again at the next refresh."""
        self._failed.pop(run.key, None)
        changed, complete = True, True
        try:
            changed, complete = self._read_run(run)
        except sqlite3.Error:
            raise  # a problem of the index, not of the run
        except Exception as error:  # noqa: BLE001 (files may hold anything)
            self._db.rollback()
            self._failed[run.key] = _describe_error(error)
        self.version += changed
        self._counts.pop(run.key, None)
        problems = [problem for _, problem in self._facts[run.key]["problems"]]
        complete = complete and not any(problem.startswith(UNREADABLE) for problem in problems)
        self._signatures[run.key] = run.signature if complete else None

    def _describe(self, run: RunFiles, locked: set[int]) -> None:
        """Update the run's row: its facts if a file changed, its state always."""
        if self._signatures.get(run.key) != run.signature or run.key not in self._facts:
            self._facts[run.key] = _facts_of(run)
            self._counts.pop(run.key, None)
        facts = self._facts[run.key]
        if run.key in self._failed:
            problem = ("dialogues", f"reading stopped ({self._failed[run.key]})")
            facts = {**facts, "problems": [*facts["problems"], problem]}
        if run.key not in self._counts:
            self._counts[run.key] = self._count(run.key, facts)
        count, played, mean, context = self._counts[run.key]
        facts = {**facts, "context": context, "played": played}
        if played < facts["planned"]:
            facts["incomplete"] = f"{played} of {plural(facts['planned'], 'dialogue')}"
        if facts["score"] is None and mean is not None:
            facts |= {"score": mean, "score_part": "empa"}
        state = state_of(run, facts, locked, count, played, self._grace, time.time())
        if facts["grid"]:
            count, state, facts = self._grid_state(run, facts, state)
        elif facts["kind"] == Kind.SCREENING and state in ("stopped", "running"):
            state = self._screening_state(run, state)
        row = (run.key, run.name, state, run.changed, count, json.dumps(facts, allow_nan=False))
        old = self._db.execute("SELECT * FROM runs WHERE key = ?", (run.key,)).fetchone()
        if old is None or tuple(old) != row:
            self._db.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?)", row)
            self._db.commit()
            self.version += 1

    def _count(self, run: str, facts: dict[str, Any]) -> tuple[Any, ...]:
        """Count the dialogues of a run, and name the roles of those that its score was measured on."""
        counts = tuple(self._db.execute(_COUNTS, (run,)).fetchone())
        part = "empa" if facts["score"] is None and counts[2] is not None else facts["score_part"]
        return *counts, context_of(self._db.execute(PLAYERS, (run, part)).fetchall())

    def _screening_state(self, run: RunFiles, state: str) -> str:
        """Return the state of an unfinished screening: its dialogues are written by the runs inside it."""
        states = [row["state"] for row in self._inner_runs(run)]
        if "running" in states:
            return "running"
        return "failed" if states and set(states) == {"failed"} else state

    def _inner_runs(self, run: RunFiles) -> list[sqlite3.Row]:
        prefix = "" if run.key == "~" else f"{run.key}:"
        return self._db.execute(
            "SELECT state, dialogues FROM runs WHERE substr(key, 1, ?) = ? AND key <> ?",
            (len(prefix), prefix, run.key),
        ).fetchall()

    def _grid_state(
        self, run: RunFiles, facts: dict[str, Any], state: str
    ) -> tuple[int, str, dict[str, Any]]:
        """Return the dialogues, state and facts of an ablation, from those of its runs."""
        grid = facts["grid"]
        planned = math.prod([len(grid["seeds"]), *map(len, grid["vary"].values())])
        rows = self._inner_runs(run)
        states = [row["state"] for row in rows]
        finished = states.count("finished")
        if planned and finished >= planned:
            state = "finished"
        elif "running" in states:
            state = "running"
        return sum(row["dialogues"] for row in rows), state, {**facts, "cells": [finished, planned]}

    def _forget(self, keys: set[str]) -> None:
        """Remove runs that no longer exist."""
        for (key,) in self._db.execute("SELECT key FROM runs").fetchall():
            if key not in keys:
                for (file,) in self._db.execute("SELECT id FROM files WHERE run = ?", (key,)).fetchall():
                    self._drop(file)
                self._db.execute("DELETE FROM runs WHERE key = ?", (key,))
                self._db.commit()
                self._signatures.pop(key, None)
                self._facts.pop(key, None)
                self._counts.pop(key, None)
                self._failed.pop(key, None)
                self.version += 1

    def _drop(self, file: int) -> None:
        """Remove the rows of a file. Its words stay, but row numbers are not reused: no search finds them."""
        for table, column in (("dialogues", "file"), ("problems", "file"), ("files", "id")):
            self._db.execute(f"DELETE FROM {table} WHERE {column} = ?", (file,))  # noqa: S608 (names above)

    def _read_run(self, run: RunFiles) -> tuple[bool, bool]:
        """Return whether anything changed, and whether all files could be opened."""
        known = {
            row["key"]: row
            for row in self._db.execute("SELECT * FROM files WHERE run = ?", (run.key,)).fetchall()
        }
        changed, complete = False, True
        for key in known.keys() - run.lines.keys():
            self._drop(known[key]["id"])
            changed = True
        for key, stamp in run.lines.items():
            row = known.get(key)
            current = (stamp.size, stamp.changed, stamp.inode)
            if row is None or (row["size"], row["changed"], row["inode"]) != current:
                opened, new = self._read_file(run, key, stamp, row)
                changed, complete = changed or new, complete and opened
        if changed:
            mark_superseded(self._db, run.key)
        self._db.commit()
        return changed, complete

    def _read_file(
        self, run: RunFiles, key: str, stamp: FileStamp, row: sqlite3.Row | None
    ) -> tuple[bool, bool]:
        """Read a file, from where the last refresh stopped if it has grown. Return whether it could be
        opened, and whether anything changed."""
        self._rubrics = {}
        try:
            with open_plain(stamp.path) as file:
                number, at, lines = self._begin(run, key, stamp, row, file.fileno())
                for offset, size, line in lines_from(file, at):
                    lines += 1
                    at = offset + size
                    self._add(number, run, stamp.part, (lines, offset, size), line)
                    if lines % BATCH == 0:
                        partial = FileStamp(stamp.path, stamp.part, at, 0, stamp.inode)
                        self._done(number, partial, at, lines)
                self._done(number, stamp, at, lines)
            return True, True
        except OSError as error:
            self._db.rollback()
            problem = read_problem(error)
            known = self._db.execute(
                "SELECT id FROM files WHERE run = ? AND key = ?", (run.key, key)
            ).fetchone()
            number = known["id"] if known else self._new_file((run.key, key, b"", stamp.part))
            same = "SELECT 1 FROM problems WHERE file = ? AND line = 0 AND problem = ?"
            new = self._db.execute(same, (number, problem)).fetchone() is None
            self._clear_problem(number)
            self._db.execute("INSERT INTO problems VALUES (?, 0, ?)", (number, problem))
            return False, new

    def _clear_problem(self, file: int) -> None:
        """Remove the note that a file could not be opened."""
        self._db.execute("DELETE FROM problems WHERE file = ? AND line = 0", (file,))

    def _begin(
        self, run: RunFiles, key: str, stamp: FileStamp, row: sqlite3.Row | None, fd: int
    ) -> tuple[int, int, int]:
        """Return the number of the file, the byte to continue from, and the lines before it."""
        if row is not None:
            grew = row["inode"] == stamp.inode and row["size"] < stamp.size
            if grew and row["done"] and _ends_line(fd, row["done"]):
                self._clear_problem(row["id"])
                return row["id"], row["done"], row["lines"]
            self._drop(row["id"])
        return self._new_file((run.key, key, os.fsencode(stamp.path), stamp.part)), 0, 0

    def _rubric(self, run: RunFiles) -> Callable[[str], Rubric | None]:
        """Return a function that finds the run's rubrics by name and reads each once per file."""

        def named(name: str) -> Rubric | None:
            if name not in self._rubrics:
                self._rubrics[name] = rubric_of(run, name)
            return self._rubrics[name]

        return named

    def _new_file(self, values: tuple[str, str, bytes, str]) -> int:
        row = self._db.execute(
            "INSERT INTO files (run, key, path, part, size, changed, inode, done, lines)"
            " VALUES (?, ?, ?, ?, 0, 0, 0, 0, 0)",
            values,
        )
        return int(row.lastrowid or 0)

    def _done(self, number: int, stamp: FileStamp, at: int, lines: int) -> None:
        self._db.execute(
            "UPDATE files SET size = ?, changed = ?, inode = ?, done = ?, lines = ? WHERE id = ?",
            (stamp.size, stamp.changed, stamp.inode, at, lines, number),
        )
        self._db.commit()

    def _add(
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
        added = self._db.execute(f"INSERT INTO dialogues ({', '.join(names)}) VALUES ({marks})", values)  # noqa: S608
        self._db.execute("INSERT INTO words (rowid, body) VALUES (?, ?)", (added.lastrowid, words))


def _facts_of(run: RunFiles) -> dict[str, Any]:
    """Return the facts of a run. If its files cannot be interpreted, the facts say why."""
    try:
        facts = facts_of(run)
        json.dumps(facts, allow_nan=False)
    except Exception as error:  # noqa: BLE001 (files may hold anything; other runs are not affected)
        return no_facts(run, _describe_error(error))
    return facts


def _describe_error(error: Exception) -> str:
    return printable(f"{type(error).__name__}: {error}")[:300]


def _root_of(db: sqlite3.Connection) -> str:
    return str(db.execute("SELECT value FROM meta WHERE name = 'root'").fetchone()[0])


def _ends_line(fd: int, at: int) -> bool:
    return os.pread(fd, 1, at - 1) == b"\n"
