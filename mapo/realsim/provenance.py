"""What a run folder records about its source conversations, without a word of them.

Ids are running numbers. A run must recognise its files when it resumes, but a plain hash would let anybody
who has a conversation prove that it was used. So files and conversations are hashed with a random key
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
from mapo.realsim.reading.read import Source
from mapo.runs.claim import read_manifest
from mapo.store import RunDir, write_atomic

_FINGERPRINTS = ("files", "conversations")


def fingerprints(out: Path, source: Source) -> tuple[dict[str, Any], str]:
    """What the manifest says of `source`, and the key to be kept if it is a new one (else nothing).

    Where the key is gone, the run is finished, and what stands in its manifest is taken as it is.
    """
    new, run = "", RunDir(out)
    if run.private_key.is_file():
        key = _read(run.private_key)
    elif run.manifest.is_file():
        there = read_manifest(run.manifest)
        return {name: there.get(name) for name in _FINGERPRINTS}, ""
    else:
        key = new = secrets.token_hex(32)
    said = json.dumps([talk.turns for talk in source.conversations])
    return {"files": [_keyed(key, file) for file in source.files], "conversations": _keyed(key, said)}, new


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read ({error})", where=str(file), fix="Choose another --out") from None


def _keyed(key: str, text: str) -> str:
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()[:16]


def keep_key(out: Path, key: str) -> None:
    if key:
        write_atomic(RunDir(out).private_key, f"{key}\n")


def forget(calls: Path) -> None:
    """Remove the answers of models, and what the database keeps beside them."""
    for end in ("", "-wal", "-shm", "-journal"):
        calls.with_name(f"{calls.name}{end}").unlink(missing_ok=True)


def write_source(out: Path, source: Source) -> None:
    """What each conversation was, without a word of it."""
    lines = [
        json.dumps(
            {
                "schema": "mapo.source/1",
                "id": talk.id,
                "file": talk.file,
                "line": talk.line,
                "turns": len(talk.turns),
                "cut": talk.cut,
            }
        )
        for talk in source.conversations
    ]
    write_atomic(RunDir(out).source, "".join(f"{line}\n" for line in lines))


def write_raw(out: Path, source: Source) -> None:
    """The conversations as they were read, for those who ask for it."""
    for talk in source.conversations:
        turns = [{"side": turn.side, "text": turn.text} for turn in talk.turns]
        text = json.dumps({"id": talk.id, "speakers": talk.speakers, "turns": turns}, ensure_ascii=False)
        write_atomic(RunDir(out).raw_conversations / f"{talk.id}.json", text + "\n")
