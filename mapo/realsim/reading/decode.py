"""Bytes of unknown origin -> lines of text, with what had to be guessed.

Exports of chats come in UTF-8, with and without a mark, in UTF-16 from spreadsheets, in GB18030 from Chinese
programs, in Windows-1252 from old ones, and sometimes several in one file. So a file's marks are looked at
first and then each line is decoded by itself: a line that fits nothing costs that line alone.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import NamedTuple

LONGEST_LINE = 32 << 20
"""Bytes; a longer line is no conversation."""

_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_HIGH = re.compile(rb"[\x80-\xff]+")
_INVISIBLE = re.compile(r"[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


class Line(NamedTuple):
    """One line and its number; `encoding` where it was not UTF-8, `problem` where it could not be read."""

    number: int
    text: str
    encoding: str = ""
    problem: str = ""


def lines_of(data: bytes) -> Iterator[Line]:
    """The lines of a file, without their ends."""
    wide = _wide(data)
    if wide:
        try:
            text = data.decode(wide)
        except UnicodeDecodeError as error:
            text = data.decode(wide, errors="replace")
            yield Line(1, "", wide, f"not {wide.upper()} throughout ({error.reason}); read as far as it goes")
        for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
            yield Line(number, line.rstrip("\r"), wide)
        return
    for number, raw in enumerate(data.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        yield _line(number, raw.rstrip(b"\r"))


def visible(text: str) -> str:
    """Without characters that nobody sees: they hide what is looked for."""
    return _CONTROL.sub("\ufffd", _INVISIBLE.sub("", text))


def _wide(data: bytes) -> str:
    """The name of a two- or four-byte encoding, by its mark, or by the zeros in plain text."""
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


def _line(number: int, raw: bytes) -> Line:
    if len(raw) > LONGEST_LINE:
        return Line(number, "", problem=f"{len(raw) >> 20} MB long, at most {LONGEST_LINE >> 20}")
    try:
        return Line(number, raw.decode("utf-8"))
    except UnicodeDecodeError:
        pass
    for encoding in ("gb18030", "cp1252") if _in_pairs(raw) else ("cp1252",):
        try:
            return Line(number, raw.decode(encoding), encoding)
        except UnicodeDecodeError:
            continue
    return Line(number, "", problem="in no encoding known here (UTF-8, UTF-16, GB18030, Windows-1252)")


def _in_pairs(raw: bytes) -> bool:
    """Whether high bytes mostly stand two by two, as in Chinese; alone they are accented letters."""
    runs = [len(run) for run in _HIGH.findall(raw)]
    return sum(runs) > 2 * sum(run == 1 for run in runs)
