"""The request behind every model call of a dialogue, in the cache's SQLite file beside the answers.

The cache itself finds an answer by a hash of the request and does not store the request. These tables do, so
that the viewer can show the prompt, the answer, the time and the retries of each turn. Every message is
stored once, compressed. Requests outside a dialogue (`Request.turn` is None) are not stored.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
import zlib
from collections.abc import Mapping
from typing import Any

from mapo.body_fields import compact_body
from mapo.models.chat import Request

TABLES = """
CREATE TABLE IF NOT EXISTS texts (hash TEXT PRIMARY KEY, body BLOB) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS calls (session TEXT, turn INTEGER, role TEXT, model TEXT, key TEXT, started REAL,
  seconds REAL, retries INTEGER, error TEXT, request TEXT);
CREATE INDEX IF NOT EXISTS calls_of ON calls (session, turn);
"""
_REMEMBERED = 100_000


class CallRecorder:
    """Writes calls into an open cache database."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._stored: set[str] = set()

    def record(
        self,
        key: str,
        model: str,
        request: Request,
        *,
        role: str,
        seconds: float,
        retries: int,
        error: str = "",
    ) -> None:
        """Store one finished or failed call. `seconds` includes rate limiting and all retries."""
        if request.turn is None:
            return
        messages = [[m.role, self._store_text(m.content)] for m in request.messages]
        sampling: Mapping[str, Any] = {
            "temperature": request.temperature,
            "top_p": request.top_p,
            "max_tokens": request.max_tokens,
            "schema": request.schema is not None,
            **({"body": compact_body(request.body)} if request.body else {}),
        }
        row = (
            *(
                request.session,
                request.turn,
                role,
                model,
                key,
                time.time() - seconds,
                seconds,
                retries,
                error,
            ),
            json.dumps({"messages": messages, **sampling}),
        )
        self._database.execute("INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def _store_text(self, text: str) -> str:
        raw = text.encode("utf-8", "replace")
        name = hashlib.sha256(raw).hexdigest()[:32]
        if name not in self._stored:
            self._database.execute("INSERT OR IGNORE INTO texts VALUES (?, ?)", (name, zlib.compress(raw, 6)))
            if len(self._stored) >= _REMEMBERED:
                self._stored.clear()
            self._stored.add(name)
        return name
