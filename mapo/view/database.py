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

VERSION = 2
"""Of the tables; a file of another version is made anew."""

TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE runs (key TEXT PRIMARY KEY, name TEXT, state TEXT, changed REAL, dialogues INTEGER, facts TEXT);
CREATE TABLE files (id INTEGER PRIMARY KEY, run TEXT, key TEXT, path BLOB, part TEXT, size INTEGER,
  changed INTEGER, inode INTEGER, done INTEGER, lines INTEGER, UNIQUE (run, key));
CREATE TABLE dialogues (n INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER, run TEXT, part TEXT, line INTEGER,
  at INTEGER, size INTEGER, id TEXT, scenario TEXT, grp TEXT, model TEXT, step INTEGER, ending TEXT,
  reward REAL, turns INTEGER, unscored INTEGER, distance REAL, category TEXT, axis TEXT, difficulty TEXT,
  rewards TEXT, outcome REAL, efficiency REAL, stability REAL, epm_q REAL, error INTEGER);
CREATE INDEX of_file ON dialogues (file);
CREATE INDEX listed ON dialogues (run, part, step, ending, reward, turns, epm_q, scenario);
CREATE INDEX scored ON dialogues (run, part, grp, epm_q, outcome, efficiency, stability, turns, ending, model)
  WHERE part <> 'train';
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
