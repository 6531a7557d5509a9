"""Answers kept by what was asked, so that nothing is paid for twice and a recorded run repeats offline.

One SQLite file. An answer is found by a hash of everything that shapes it: the model's name, messages,
sampling parameters, schema, tools and the request's nonce; not by who asked or at which address. Several
tasks and processes may share the file, and a kill at any moment leaves it whole. Failures are not kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from mapo.errors import EndpointError, InputError, MapoError, StoreError
from mapo.models.chat import Answer, Request
from mapo.models.wire import canonical, dump_answer, load_answer

Mode = Literal["off", "record", "replay", "refresh"]
MODES = ("off", "record", "replay", "refresh")

PATIENCE = 30.0
"""Seconds to wait while another process writes; a write takes well under a millisecond."""

_MARK = 0x6D61706F  # "mapo", SQLite's application_id: we never write into somebody else's database
_VERSION = 1
_KEEP = "INSERT OR IGNORE INTO answers VALUES (?, ?, ?)"
_RENEW = "INSERT OR REPLACE INTO answers VALUES (?, ?, ?)"


def key_of(model: str, request: Request) -> str:
    asked = {
        "model": model,
        "messages": [[m.role, m.content] for m in request.messages],
        "temperature": float(request.temperature),
        "top_p": float(request.top_p),
        "max_tokens": request.max_tokens,
        "schema": request.schema,
        "tools": [asdict(tool) for tool in request.tools],
        "nonce": request.nonce,
        **({"min_p": float(request.min_p)} if request.min_p else {}),
    }
    return hashlib.sha256(canonical(asked).encode()).hexdigest()


class Cache:
    """Modes: "off" calls always; "record" uses what is there, else calls and keeps; "replay" only uses what
    is there; "refresh" calls once for every distinct request, whatever is there, and keeps that."""

    def __init__(self, path: Path | str, mode: Mode = "record") -> None:
        if mode not in MODES:
            raise InputError(f"unknown cache mode '{mode}'", fix=f"Use one of: {', '.join(MODES)}")
        self.path, self.mode = Path(path), mode
        self._waiting: dict[str, asyncio.Future[Answer]] = {}
        self._renewed: set[str] = set()
        self._database = None if mode == "off" else self._open()

    async def answer(
        self, model: str, request: Request, call: Callable[[], Awaitable[Answer]]
    ) -> tuple[Answer, bool]:
        """The answer, and whether it was here already. A second equal request waits for the first."""
        if self.mode == "off":
            return await call(), False
        key = key_of(model, request)
        while first := self._waiting.get(key):
            await asyncio.wait([first])
            if not first.cancelled():  # else its caller gave up, and one of those waiting takes over
                return first.result(), True
        if (self.mode != "refresh" or key in self._renewed) and (known := self._get(key)):
            return known, True
        if self.mode == "replay":
            raise EndpointError(
                f"no recorded answer for this request to {model} (key {key[:12]})",
                where=str(self.path),
                fix="Record the run with the same scenarios, seed and prompts, or use cache mode 'record'",
            )
        mine: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[key] = mine
        try:
            answer = self._put(key, model, await call())
            mine.set_result(answer)
        except MapoError as error:  # whoever waits asked for the same and gets the same
            mine.set_exception(error)
            mine.exception()  # seen, should nobody wait
            raise
        finally:
            mine.cancel()  # no effect where it is done
            del self._waiting[key]
        return answer, False

    def close(self) -> None:
        if self._database is not None:
            self._database.close()

    def __len__(self) -> int:
        return int(self._run("SELECT count(*) FROM answers")[0][0]) if self._database else 0

    # ---- the database; statements commit by themselves and take well under a millisecond

    def _open(self) -> sqlite3.Connection:
        if self.mode == "replay" and not self.path.exists():
            raise StoreError(
                "no such cache", where=str(self.path), fix="Record a run first, or check the path"
            )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Bound to no thread: a run may be set up in one and played in another.
            database = sqlite3.connect(
                self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise StoreError(
                f"cannot be opened ({error})", where=str(self.path), fix="Check the path and its permissions"
            ) from None
        try:
            self._prepare_in_turn(database)
        except sqlite3.Error as error:
            database.close()
            raise self._broken(error) from None
        except StoreError:
            database.close()
            raise
        return database

    def _prepare_in_turn(self, database: sqlite3.Connection) -> None:
        """SQLite's own waiting does not cover the change to WAL, which several may want of a new file."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self._prepare(database)
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                if database.in_transaction:
                    database.rollback()
                time.sleep(0.02)

    def _prepare(self, database: sqlite3.Connection) -> None:
        def pragma(name: str) -> int:
            return int(database.execute(f"PRAGMA {name}").fetchone()[0])

        used = self.mode == "replay" or database.execute("SELECT 1 FROM sqlite_master").fetchone()
        if used and pragma("application_id") != _MARK:
            raise StoreError("not a cache of mapo's", where=str(self.path), fix="Choose another path")
        if pragma("user_version") > _VERSION:
            raise StoreError("written by a newer mapo", where=str(self.path), fix="Upgrade mapo")
        if self.mode == "replay":
            return
        # NORMAL: a kill of the process loses nothing; a power cut may lose the last answers, never the file.
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        database.executescript(
            f"""BEGIN IMMEDIATE;
            CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, model TEXT, answer TEXT) WITHOUT ROWID;
            PRAGMA application_id={_MARK};
            PRAGMA user_version={_VERSION};
            COMMIT;"""
        )

    def _get(self, key: str) -> Answer | None:
        rows = self._run("SELECT answer FROM answers WHERE key = ?", key)
        try:
            return load_answer(rows[0][0]) if rows else None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._broken(error) from None

    def _put(self, key: str, model: str, answer: Answer) -> Answer:
        """Keep it, and return what is kept: another process may have been first."""
        self._run(_RENEW if self.mode == "refresh" else _KEEP, key, model, dump_answer(answer))
        self._renewed.add(key)
        return self._get(key) or answer

    def _run(self, statement: str, *values: str) -> list[tuple[str]]:
        if self._database is None:
            raise StoreError("the cache is off", where=str(self.path))
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._broken(error) from None

    def _broken(self, error: Exception) -> StoreError:
        fix = "Remove the file (its answers will be asked for again), or restore it from a copy"
        if "locked" in str(error):
            fix = "Another process holds it: wait for it, or use another cache"
        elif "full" in str(error):
            fix = "Free some space; all earlier answers are kept"
        elif "readonly" in str(error):
            fix = "Choose a path that can be written, or use cache mode 'replay'"
        return StoreError(f"the cache cannot be used ({error})", where=str(self.path), fix=fix)
