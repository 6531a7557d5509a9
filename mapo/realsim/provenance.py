"""What a run folder records about its source conversations, without a word of them.

Ids are running numbers. A run must recognise its files when it resumes, but with a plain hash anyone who has
a conversation could prove that it was used. So files and conversations are hashed with a random key
(`private.key`), which is deleted together with the recorded model answers. After that, the source of a
finished run can no longer be identified.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from pathlib import Path
from typing import Any

from mapo.errors import InputError
from mapo.realsim.reading.read import SourceConversations
from mapo.runs.claim import read_manifest
from mapo.store import RunDir, write_atomic

_FINGERPRINTS = ("files", "conversations")


def fingerprints(out: Path, source: SourceConversations) -> tuple[dict[str, Any], str]:
    """Return the manifest's fingerprints of `source`, and the key to store if it is new (else "").

    Without a key the run is finished, and the fingerprints in its manifest are returned unchanged.
    """
    new, run = "", RunDir(out)
    if run.private_key.is_file():
        key = _read(run.private_key)
    elif run.manifest.is_file():
        manifest = read_manifest(run.manifest)
        return {name: manifest.get(name) for name in _FINGERPRINTS}, ""
    else:
        key = new = secrets.token_hex(32)
    text = json.dumps([conversation.turns for conversation in source.conversations])
    return {"files": [_hash(key, file) for file in source.files], "conversations": _hash(key, text)}, new


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise InputError(
            f"the key file cannot be read ({error})", where=str(file), fix="Choose another --out"
        ) from None


def _hash(key: str, text: str) -> str:
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()[:16]


def store_key(out: Path, key: str) -> None:
    """Write the key of a new run."""
    if key:
        write_atomic(RunDir(out).private_key, f"{key}\n")


def delete_calls(calls: Path) -> None:
    """Delete the recorded model answers, including the database's auxiliary files."""
    for end in ("", "-wal", "-shm", "-journal"):
        calls.with_name(f"{calls.name}{end}").unlink(missing_ok=True)


def write_source(out: Path, source: SourceConversations) -> None:
    """Write id, place and length of each conversation, without its text."""
    lines = [
        json.dumps(
            {
                "schema": "mapo.source/1",
                "id": conversation.id,
                "file": conversation.file,
                "line": conversation.line,
                "turns": len(conversation.turns),
                "cut": conversation.cut,
            }
        )
        for conversation in source.conversations
    ]
    write_atomic(RunDir(out).source, "".join(f"{line}\n" for line in lines))


def write_raw(out: Path, source: SourceConversations) -> None:
    """Write the conversations as they were read (--keep-raw)."""
    for conversation in source.conversations:
        turns = [{"side": turn.side, "text": turn.text} for turn in conversation.turns]
        text = json.dumps(
            {"id": conversation.id, "speakers": conversation.speakers, "turns": turns}, ensure_ascii=False
        )
        write_atomic(RunDir(out).raw_conversations / f"{conversation.id}.json", text + "\n")
