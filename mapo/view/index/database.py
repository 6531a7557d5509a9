"""The index's SQLite file: what its tables hold, and where it lies."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from mapo.runs.contents import that_count

VERSION = 4
"""Of the tables; a file of another version is made anew."""

TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE runs (key TEXT PRIMARY KEY, name TEXT, state TEXT, changed REAL, dialogues INTEGER, facts TEXT);
CREATE TABLE files (id INTEGER PRIMARY KEY, run TEXT, key TEXT, path BLOB, part TEXT, size INTEGER,
  changed INTEGER, inode INTEGER, done INTEGER, lines INTEGER, UNIQUE (run, key));
CREATE TABLE dialogues (n INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER, run TEXT, part TEXT, line INTEGER,
  at INTEGER, size INTEGER, id TEXT, scenario TEXT, grp TEXT, model TEXT, step INTEGER, ending TEXT,
  reward REAL, turns INTEGER, unscored INTEGER, distance REAL, category TEXT, axis TEXT, difficulty TEXT,
  rewards TEXT, earned REAL, heard INTEGER, outcome REAL, efficiency REAL, stability REAL, epm_q REAL,
  passed INTEGER, error INTEGER, counts INTEGER DEFAULT 1);
CREATE INDEX of_file ON dialogues (file);
CREATE INDEX listed ON dialogues (run, part, step, ending, reward, turns, epm_q, scenario);
CREATE INDEX scored ON dialogues (run, part, scenario, epm_q, outcome, efficiency, stability, turns, passed,
  model) WHERE part <> 'train' AND counts = 1 AND error = 0;
CREATE INDEX by_step ON dialogues (run, part, step, scenario, earned, heard, epm_q)
  WHERE counts = 1 AND error = 0;
CREATE INDEX same ON dialogues (run, part, step, model, id);
CREATE INDEX superseded ON dialogues (run) WHERE counts = 0;
CREATE TABLE problems (file INTEGER, line INTEGER, problem TEXT);
CREATE INDEX problem_of ON problems (file);
CREATE VIRTUAL TABLE words USING fts5(body, content='', tokenize='unicode61 remove_diacritics 2');
"""


def connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=10, check_same_thread=False)
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = OFF")  # it can always be made again
    return db


def settle(db: sqlite3.Connection, run: str) -> None:
    """Which records of a run count, where dialogues were played again."""
    db.execute("UPDATE dialogues SET counts = 1 WHERE run = ? AND counts = 0", (run,))
    twice = db.execute(
        "SELECT part, step, model, id FROM dialogues WHERE run = ? GROUP BY part, step, model, id"
        " HAVING count(*) > 1",
        (run,),
    ).fetchall()
    for part, step, model, name in twice:
        rows = db.execute(
            "SELECT d.n, d.error, f.changed FROM dialogues d JOIN files f ON f.id = d.file WHERE d.run = ?"
            " AND d.part = ? AND d.step IS ? AND d.model = ? AND d.id = ? ORDER BY f.key, d.line",
            (run, part, step, model, name),
        ).fetchall()
        counting = that_count((0, not broken, changed, n) for n, broken, changed in rows)[0]
        db.executemany(
            "UPDATE dialogues SET counts = 0 WHERE n = ?", [(n,) for n, _, _ in rows if n != counting]
        )


def place(root: Path, cache: Path | None) -> tuple[Any, Path]:
    """Where the index goes, and the lock on it; a second viewer of a folder gets an index of its own."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mapo" / "view"
    name = hashlib.sha256(os.fsencode(root)).hexdigest()[:24]
    folder = cache or base
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = open(folder / f"{name}.lock", "w")  # noqa: SIM115 (held as long as the index)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock, folder / f"{name}.sqlite"
        except OSError:
            lock.close()
    own = tempfile.TemporaryDirectory(prefix="mapo-view-")
    return _Own(own), Path(own.name) / "index.sqlite"


class _Own:
    """A folder of its own that goes with the index."""

    def __init__(self, folder: tempfile.TemporaryDirectory[str]) -> None:
        self._folder = folder

    def close(self) -> None:
        self._folder.cleanup()
