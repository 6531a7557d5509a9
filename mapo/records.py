"""Records: encoding and decoding single lines of JSONL files.

Dialogue records carry their schema and version: {"schema": "mapo.dialogue/1", ...}. Anything that could not
be read back is rejected on writing.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mapo.errors import RecordError
from mapo.types import Dialogue

if TYPE_CHECKING:
    from pydantic import TypeAdapter

DIALOGUE_SCHEMA = "mapo.dialogue/1"
_DIALOGUE_PREFIX = b'{"schema":"mapo.dialogue/1",'
_UPGRADES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""Older schema -> function that upgrades a record to the next version. Add an entry for every new version."""


@lru_cache
def _adapter() -> TypeAdapter[Dialogue]:
    from pydantic import TypeAdapter

    return TypeAdapter(Dialogue)


def encode_dialogue(dialogue: Dialogue) -> bytes:
    """Encode a dialogue as one line. Raises RecordError if it could not be read back."""
    from pydantic_core import PydanticSerializationError

    try:
        body = _adapter().dump_python(dialogue, mode="json", exclude_defaults=True, warnings="error")
    except (PydanticSerializationError, ValueError) as error:
        raise RecordError(f"not a dialogue ({error})", where=f"dialogue {dialogue.id}") from None
    line = encode({"schema": DIALOGUE_SCHEMA, **body}, f"dialogue {dialogue.id}")
    decode_dialogue(line)
    return line


def decode_dialogue(line: bytes) -> Dialogue:
    """Decode one line of a dialogue file. Raises RecordError with the key that is invalid."""
    from pydantic import ValidationError

    if line.startswith(_DIALOGUE_PREFIX):  # fast path for records of the current version
        with contextlib.suppress(ValidationError):
            return _adapter().validate_json(line, strict=True)
    record = parse(line)
    while isinstance(schema := record.get("schema"), str) and schema in _UPGRADES:
        record = _UPGRADES[schema](record)
        line = encode(record, "upgraded record")
    if schema != DIALOGUE_SCHEMA:
        raise RecordError(
            f"schema is {schema!r}, not '{DIALOGUE_SCHEMA}'",
            fix=f"This version of mapo reads '{DIALOGUE_SCHEMA}'; upgrade mapo if the file is newer",
        )
    try:
        return _adapter().validate_json(line, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise RecordError(f"{key}: {first['msg']}", fix="See docs/records.md") from None


def encode(record: dict[str, Any], where: str) -> bytes:
    """Encode a record as one line of JSON without a newline. NaN and infinity are rejected."""
    try:
        text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordError(
            f"cannot be written ({error})",
            where=where,
            fix="Use plain JSON values, and null for missing numbers",
        ) from error
    return utf8(text, where)


def utf8(text: str, where: str) -> bytes:
    """Encode text as UTF-8. Raises RecordError for lone surrogates."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise RecordError(
            f"cannot be written ({error.reason})", where=where, fix="Replace lone surrogates first"
        ) from None


def parse(line: bytes) -> dict[str, Any]:
    """Parse one line as a JSON object."""
    try:
        record = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        problem = "blank" if not line.strip() else f"not JSON ({error})"
        raise RecordError(problem, fix="Remove the line, or restore it") from None
    if not isinstance(record, dict):
        raise RecordError("not a JSON object", fix="Write one record per line")
    return record


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number; use null for missing numbers")
