"""Schema and location of the index, a SQLite file."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from mapo.runs.contents import deduplicated

VERSION = 9
"""Version of the schema. An index with another version is rebuilt."""

TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE runs (key TEXT PRIMARY KEY, name TEXT, state TEXT, changed REAL, dialogues INTEGER, facts TEXT);
CREATE TABLE files (id INTEGER PRIMARY KEY, run TEXT, key TEXT, path BLOB, part TEXT, size INTEGER,
  changed INTEGER, inode INTEGER, done INTEGER, lines INTEGER, UNIQUE (run, key));
CREATE TABLE dialogues (n INTEGER PRIMARY KEY AUTOINCREMENT, file INTEGER, run TEXT, part TEXT, line INTEGER,
  at INTEGER, size INTEGER, id TEXT, scenario TEXT, grp TEXT, model TEXT, step INTEGER, ending TEXT,
  reward REAL, turns INTEGER, unscored INTEGER, distance REAL, category TEXT, axis TEXT, difficulty TEXT,
  domain TEXT, user_player TEXT, director TEXT, judge TEXT, prompts TEXT,
  rewards TEXT, reward_sum REAL, scored_turns INTEGER, outcome REAL, efficiency REAL, stability REAL,
  epm_q REAL, passed INTEGER, error INTEGER, faults TEXT, blame TEXT, counts INTEGER DEFAULT 1);
CREATE INDEX of_file ON dialogues (file);
CREATE INDEX listed ON dialogues (run, part, step, ending, reward, turns, epm_q, scenario);
CREATE INDEX scored ON dialogues (run, part, scenario, epm_q, outcome, efficiency, stability, turns, passed,
  model) WHERE part <> 'train' AND counts = 1 AND error = 0;
CREATE INDEX by_step ON dialogues (run, part, step, scenario, reward_sum, scored_turns, epm_q)
  WHERE counts = 1 AND error = 0;
CREATE INDEX players ON dialogues (run, part, domain, user_player, director, judge, prompts, scenario);
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
    db.execute("PRAGMA synchronous = OFF")  # the index can always be rebuilt
    return db


def mark_superseded(db: sqlite3.Connection, run: str) -> None:
    """Set `counts` for every record of a run. Of a dialogue that was played again, one record counts."""
    db.execute("UPDATE dialogues SET counts = 1 WHERE run = ? AND counts = 0", (run,))
    repeated = db.execute(
        "SELECT part, step, model, id FROM dialogues WHERE run = ? GROUP BY part, step, model, id"
        " HAVING count(*) > 1",
        (run,),
    ).fetchall()
    for part, step, model, name in repeated:
        rows = db.execute(
            "SELECT d.n, d.error, f.changed FROM dialogues d JOIN files f ON f.id = d.file WHERE d.run = ?"
            " AND d.part = ? AND d.step IS ? AND d.model = ? AND d.id = ? ORDER BY f.key, d.line",
            (run, part, step, model, name),
        ).fetchall()
        counting = deduplicated((0, not broken, changed, n) for n, broken, changed in rows)[0]
        db.executemany(
            "UPDATE dialogues SET counts = 0 WHERE n = ?", [(n,) for n, _, _ in rows if n != counting]
        )


def locate(root: Path, cache: Path | None) -> tuple[Any, Path]:
    """Return a lock and the path of the index for `root`.

    The index is in the user's cache folder. A second viewer of the same folder gets a temporary one.
    """
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
    temporary = tempfile.TemporaryDirectory(prefix="mapo-view-")
    return _TemporaryFolder(temporary), Path(temporary.name) / "index.sqlite"


class _TemporaryFolder:
    """Removes a temporary index when it is closed."""

    def __init__(self, folder: tempfile.TemporaryDirectory[str]) -> None:
        self._folder = folder

    def close(self) -> None:
        self._folder.cleanup()
