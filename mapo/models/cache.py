"""Cache of model answers, so that no call is paid for twice and a recorded run can be replayed offline.

One SQLite file. The key of an answer is a hash of everything that shapes it: model name, messages, sampling
parameters, schema, tools, free body fields and the request's nonce, but not the role or the address. Several
tasks and processes may share the file, and killing one at any moment leaves it intact. Failures are not
stored.
"""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from mapo.errors import EndpointError, InputError, StoreError
from mapo.models.attempts import SharedAttempts
from mapo.models.calls import TABLES, CallRecorder
from mapo.models.chat import Answer, Request
from mapo.models.wire import canonical, dump_answer, load_answer

Mode = Literal["off", "record", "replay", "refresh"]
T = TypeVar("T")
MODES = ("off", "record", "replay", "refresh")

LOCK_TIMEOUT_S = 30.0
"""Seconds to wait while another process writes; a write takes well under a millisecond."""

_APPLICATION_ID = 0x6D61706F  # "mapo", as SQLite's application_id: other databases are never written to
_VERSION = 1
_INSERT = "INSERT OR IGNORE INTO answers VALUES (?, ?, ?)"
_REPLACE = "INSERT OR REPLACE INTO answers VALUES (?, ?, ?)"


def key_of(model: str, request: Request) -> str:
    """Return the cache key of a request to a model."""
    content = {
        "model": model,
        "messages": [[m.role, m.content] for m in request.messages],
        "temperature": float(request.temperature),
        "top_p": float(request.top_p),
        "max_tokens": request.limit_in_key or request.max_tokens,
        "schema": request.schema,
        "tools": [asdict(tool) for tool in request.tools],
        "nonce": request.nonce,
        **({"min_p": float(request.min_p)} if request.min_p else {}),
        **({"body": request.body} if request.body else {}),
    }
    return hashlib.sha256(canonical(content).encode()).hexdigest()


class Cache:
    """Answers by request, in one of four modes.

    "off" always calls; "record" returns a stored answer or calls and stores; "replay" only returns stored
    answers; "refresh" calls once per distinct request and replaces what is stored.
    """

    def __init__(self, path: Path | str, mode: Mode = "record") -> None:
        if mode not in MODES:
            raise InputError(f"unknown cache mode '{mode}'", fix=f"Use one of: {', '.join(MODES)}")
        self.path, self.mode = Path(path), mode
        self._attempts = SharedAttempts[tuple[Answer, bool]]()
        self._refreshed: set[str] = set()
        self._thread = ThreadPoolExecutor(1, "cache")
        self._database = None if mode == "off" else self._open()
        self._calls = CallRecorder(self._database) if self._database and mode != "replay" else None

    async def answer(
        self, model: str, request: Request, call: Callable[[], Awaitable[Answer]]
    ) -> tuple[Answer, bool]:
        """Return the answer and whether it was in the cache. Concurrent equal requests share one call."""
        if self.mode == "off":
            return await call(), False
        key = key_of(model, request)
        (answer, cached), shared = await self._attempts.get(
            key, lambda: self._stored_or_called(key, model, call)
        )
        return answer, cached or shared

    async def _stored_or_called(
        self, key: str, model: str, call: Callable[[], Awaitable[Answer]]
    ) -> tuple[Answer, bool]:
        may_read = self.mode != "refresh" or key in self._refreshed
        answer = await self._in_thread(self._get, key) if may_read else None
        if answer is not None:
            return answer, True
        if self.mode == "replay":
            raise EndpointError(
                f"no recorded answer for this request to {model} (key {key[:12]})",
                where=str(self.path),
                fix="Record a run with the same scenarios, seed and prompts, or use cache mode 'record'",
            )
        return await self._in_thread(self._put, key, model, await call()), False

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a database operation outside the event loop: a slow disk or a lock held by another process must
        not stop other calls. There is one thread, so operations stay in order."""
        work = partial(function, *arguments)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except RuntimeError as error:
            raise self._broken(error) from None

    async def record_call(
        self, model: str, request: Request, *, role: str, seconds: float, retries: int, error: str = ""
    ) -> None:
        """Store the request of a call that was made, for the viewer."""
        if self._calls is None:
            return
        try:
            await self._in_thread(
                partial(
                    self._calls.record,
                    key_of(model, request),
                    model,
                    request,
                    role=role,
                    seconds=seconds,
                    retries=retries,
                    error=error,
                )
            )
        except sqlite3.Error as problem:
            raise self._broken(problem) from None

    def close(self) -> None:
        self._thread.shutdown()
        if self._database is not None:
            self._database.close()

    def __len__(self) -> int:
        return int(self._run("SELECT count(*) FROM answers")[0][0]) if self._database else 0

    # ---- the database, in autocommit mode

    def _open(self) -> sqlite3.Connection:
        if self.mode == "replay" and not self.path.exists():
            raise StoreError(
                "there is no such cache", where=str(self.path), fix="Record a run first, or check the path"
            )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Not bound to a thread: a run may be set up in one thread and played in another.
            database = sqlite3.connect(
                self.path, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise StoreError(
                f"cannot be opened ({error})", where=str(self.path), fix="Check the path and its permissions"
            ) from None
        try:
            self._prepare_with_retries(database)
        except sqlite3.Error as error:
            database.close()
            raise self._broken(error) from None
        except StoreError:
            database.close()
            raise
        return database

    def _prepare_with_retries(self, database: sqlite3.Connection) -> None:
        """Prepare the database, retrying while it is locked: SQLite's timeout does not cover the switch to
        WAL, which several processes may attempt on a new file."""
        deadline = time.monotonic() + LOCK_TIMEOUT_S
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

        has_content = self.mode == "replay" or database.execute("SELECT 1 FROM sqlite_master").fetchone()
        if has_content and pragma("application_id") != _APPLICATION_ID:
            raise StoreError("this is not a cache of mapo", where=str(self.path), fix="Choose another path")
        if pragma("user_version") > _VERSION:
            raise StoreError(
                "the cache was written by a newer version of mapo", where=str(self.path), fix="Upgrade mapo"
            )
        if self.mode == "replay":
            return
        # With NORMAL, killing the process loses nothing; a power failure may lose the last answers but does
        # not corrupt the file.
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        database.executescript(
            f"""BEGIN IMMEDIATE;
            CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, model TEXT, answer TEXT) WITHOUT ROWID;
            {TABLES}
            PRAGMA application_id={_APPLICATION_ID};
            PRAGMA user_version={_VERSION};
            COMMIT;"""
        )

    def _get(self, key: str) -> Answer | None:
        rows = self._run("SELECT answer FROM answers WHERE key = ?", key)
        try:
            return load_answer(str(rows[0][0])) if rows else None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._broken(error) from None

    def _put(self, key: str, model: str, answer: Answer) -> Answer:
        """Store an answer and return the stored one, which may be another process's."""
        self._run(_REPLACE if self.mode == "refresh" else _INSERT, key, model, dump_answer(answer))
        self._refreshed.add(key)
        return self._get(key) or answer

    def _run(self, statement: str, *values: str) -> list[tuple[str]]:
        if self._database is None:
            raise StoreError("the cache is off", where=str(self.path))
        try:
            return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._broken(error) from None

    def _broken(self, error: Exception) -> StoreError:
        fix = "Remove the file (its answers will be requested again), or restore it from a copy"
        if "locked" in str(error):
            fix = "Another process holds a lock on it; wait for that process, or use another cache"
        elif "full" in str(error):
            fix = "Free some disk space; all earlier answers are kept"
        elif "disk I/O" in str(error):  # a quota or a limit on file sizes too
            fix = "Check the disk, its free space and quotas; all earlier answers are kept"
        elif "readonly" in str(error):
            fix = "Choose a writable path, or use cache mode 'replay'"
        return StoreError(f"the cache cannot be used ({error})", where=str(self.path), fix=fix)
