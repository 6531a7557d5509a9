"""Decoding of files of unknown encoding into lines of text.

Chat exports come in UTF-8 with and without a byte order mark, UTF-16 (spreadsheets), GB18030 (Chinese
programs) or Windows-1252 (old ones), and sometimes in several encodings within one file. The byte order mark
is checked first; then each line is decoded separately, so that an undecodable line affects no other.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import NamedTuple

LONGEST_LINE = 32 << 20
"""Maximum length of a line in bytes."""

_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_HIGH = re.compile(rb"[\x80-\xff]+")
_INVISIBLE = re.compile(r"[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


class DecodedLine(NamedTuple):
    """One line and its number; `encoding` if it was not UTF-8, `problem` if it could not be decoded."""

    number: int
    text: str
    encoding: str = ""
    problem: str = ""


def lines_of(data: bytes) -> Iterator[DecodedLine]:
    """Yield the lines of a file without line endings."""
    wide = _wide(data)
    if wide:
        try:
            text = data.decode(wide)
        except UnicodeDecodeError as error:
            text = data.decode(wide, errors="replace")
            problem = f"the file is not valid {wide.upper()} ({error.reason}); invalid parts are skipped"
            yield DecodedLine(1, "", wide, problem)
        for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
            yield DecodedLine(number, line.rstrip("\r"), wide)
        return
    for number, raw in enumerate(data.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        yield _line(number, raw.rstrip(b"\r"))


def visible(text: str) -> str:
    """Remove invisible characters, which could hide private data, and replace control characters."""
    return _CONTROL.sub("\ufffd", _INVISIBLE.sub("", text))


def _wide(data: bytes) -> str:
    """Return the name of a two- or four-byte encoding, detected by byte order mark or zero bytes; else ""."""
    for mark, name in _MARKS:
        if data.startswith(mark):
            return name
    head = data[:4096]
    if len(head) >= 8 and b"\x00" in head:
        even, odd = head[0::2].count(0), head[1::2].count(0)
        if odd > len(head) / 8 and odd > 8 * even:
            return "utf-16-le"
        if even > len(head) / 8 and even > 8 * odd:
            return "utf-16-be"
    return ""


def _line(number: int, raw: bytes) -> DecodedLine:
    if len(raw) > LONGEST_LINE:
        size, limit = len(raw) >> 20, LONGEST_LINE >> 20
        return DecodedLine(number, "", problem=f"the line is {size} MB long; the maximum is {limit} MB")
    try:
        return DecodedLine(number, raw.decode("utf-8"))
    except UnicodeDecodeError:
        pass
    for encoding in ("gb18030", "cp1252") if _in_pairs(raw) else ("cp1252",):
        try:
            return DecodedLine(number, raw.decode(encoding), encoding)
        except UnicodeDecodeError:
            continue
    return DecodedLine(number, "", problem="unknown encoding; save the file as UTF-8")


def _in_pairs(raw: bytes) -> bool:
    """Return whether high bytes mostly occur in pairs, as in Chinese; single ones are accented letters."""
    runs = [len(run) for run in _HIGH.findall(raw)]
    return sum(runs) > 2 * sum(run == 1 for run in runs)
