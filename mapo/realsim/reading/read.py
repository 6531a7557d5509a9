"""Files of real conversations -> conversations that can be worked on, and every problem with its line.

Nothing stops at a bad line: broken JSON, an empty conversation, one in which only one side speaks, a second
copy are reported, and the rest goes on. A long conversation is cut to the stretch in which the person says
most. A problem never quotes what it is about.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mapo.errors import InputError
from mapo.realsim.reading.csv_rows import rows_of
from mapo.realsim.reading.decode import Line, lines_of, visible
from mapo.realsim.reading.formats import (
    Columns,
    Said,
    Turn,
    columns_of,
    ends_here,
    from_json,
    from_row,
    only_speakers,
    sides,
    spoken,
)

WINDOW = 60
"""Turns that are worked on."""
LONGEST_TURN = 4000
"""Characters of one turn that are worked on."""
LONGEST = 40_000
"""Characters of all turns together."""
FEWEST = 2
"""Turns of the person below which there is too little to learn from."""
KINDS = (".jsonl", ".json", ".csv", ".tsv", ".txt")
LARGEST = 1 << 30


@dataclass(frozen=True, slots=True)
class Conversation:
    """`speakers` are names that stood before the lines; `cut` says what was left out."""

    id: str
    file: int
    line: int
    turns: tuple[Turn, ...]
    speakers: tuple[str, ...] = ()
    cut: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """What was wrong at a line of the file with that number (from 1), in words that quote nothing."""

    file: int
    line: int
    text: str


class Note(Problem):
    """What was guessed and cost nothing."""


@dataclass(slots=True)
class Source:
    """All that was read: conversations in order, problems, notes, and of each file its hash."""

    conversations: list[Conversation] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


def read_sources(
    paths: Sequence[Path], *, prefix: str = "made", person: str = "", window: int = WINDOW
) -> Source:
    """Everything in `paths`, files or folders of them; ids are `prefix` and a running number."""
    source = Source()
    seen: dict[str, tuple[int, int]] = {}
    for number, path in enumerate(files_of(paths), 1):
        data = _bytes(path)
        source.files.append(hashlib.sha256(data).hexdigest())
        for item in _read(data, path.suffix.lower(), number):
            if isinstance(item, Note):
                source.notes.append(item)
                continue
            if isinstance(item, Problem):
                source.problems.append(item)
                continue
            try:
                turns, speakers = _turns(item[1], person)
            except InputError as error:
                source.problems.append(Problem(number, item[0], error.problem))
                continue
            said = hashlib.sha256(json.dumps(turns).encode()).hexdigest()
            if said in seen:
                file, line = seen[said]
                place = f"line {line}" + (f" of file {file}" if file != number else "")
                source.problems.append(Problem(number, item[0], f"the same conversation as {place}"))
                continue
            seen[said] = number, item[0]
            kept, cut = _windowed(turns, window)
            case = f"{prefix}-{len(seen):05d}"
            source.conversations.append(Conversation(case, number, item[0], kept, speakers, cut))
    return source


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The files meant, in order; InputError for what is no file of a known kind."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(x for x in path.iterdir() if x.suffix.lower() in KINDS) if path.is_dir() else [path]
        if not inside or not all(x.is_file() and x.suffix.lower() in KINDS for x in inside):
            kinds = ", ".join(KINDS)
            raise InputError("no conversations here", where=str(path), fix=f"Files that end in {kinds}")
        found += inside
    return found


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > LARGEST:
            raise InputError("larger than 1 GB", where=str(path), fix="Divide the file")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=str(path)) from error


_Heard = tuple[int, list[Said]]
"""The line a conversation begins at, and what was said."""


def _read(data: bytes, kind: str, file: int) -> Iterator[_Heard | Problem]:
    lines = []
    guessed: dict[str, list[int]] = {}
    for line in lines_of(data):
        if line.problem:
            yield Problem(file, line.number, line.problem)
        if line.encoding and line.text.strip() and not line.encoding.startswith("utf"):
            guessed.setdefault(line.encoding, []).append(line.number)
        if not line.problem:
            lines.append(line)
    for encoding, where in guessed.items():
        yield Note(file, where[0], f"{len(where)} lines from here on not UTF-8; read as {encoding}")
    reader = {".json": _json, ".jsonl": _jsonl, ".txt": _transcript}.get(kind)
    if reader:
        yield from reader(lines, file)
    else:
        yield from _table(lines, file, "\t" if kind == ".tsv" else ",")


def _jsonl(lines: Iterable[Line], file: int) -> Iterator[_Heard | Problem]:
    for line in lines:
        if line.text.strip():
            yield _one(line.text, line.number, file)


def _json(lines: Sequence[Line], file: int) -> Iterator[_Heard | Problem]:
    """One conversation, or a list of them; their numbers stand for lines."""
    text = "\n".join(line.text for line in lines)
    try:
        data = _decoded(text)
    except InputError as error:
        yield Problem(file, 1, error.problem)
        return
    several = isinstance(data, list) and not any(
        isinstance(x, dict) and {"role", "from"} & {*x} for x in data
    )
    for number, item in enumerate(data if several else [data], 1):
        try:
            yield number, from_json(item)
        except InputError as error:
            yield Problem(file, number, error.problem)


def _one(text: str, number: int, file: int) -> _Heard | Problem:
    try:
        return number, from_json(_decoded(text))
    except InputError as error:
        return Problem(file, number, error.problem)


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise InputError("not JSON (nested too deeply)") from None
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON ({error.msg}, character {error.pos + 1})") from None
    except ValueError:
        raise InputError("not JSON (a number of too many digits)") from None


def _transcript(lines: Iterable[Line], file: int) -> Iterator[_Heard | Problem]:
    began, heard, lost = 0, list[Said](), 0
    for line in [*lines, Line(0, "---")]:
        if ends_here(line.text):
            if heard:
                yield began, only_speakers(heard)
            elif lost:
                yield Problem(file, lost, "no speaker before the text (Speaker: text)")
            heard, lost = [], 0
        elif new := spoken(line.text):
            began = began if heard else line.number
            heard.append(new)
        elif line.text.strip() and heard:
            speaker, text, first = heard[-1]
            new_text, whole = (f"{part}\n{line.text.strip()}" for part in (text, first))
            heard[-1] = Said(speaker, new_text, whole)
        elif line.text.strip():
            lost = lost or line.number


def _table(lines: Sequence[Line], file: int, comma: str) -> Iterator[_Heard | Problem]:
    """Rows with the same id are one conversation; without ids, a file is one, or a row of two sides is."""
    columns: Columns | None = None
    heard: dict[str, _Heard] = {}
    for place, row in rows_of(lines, comma):
        try:
            if row is None:
                raise InputError("no row of a table: a quote is opened here that is never closed rightly")
            if not any(cell.strip() for cell in row):
                continue
            if columns is None:
                columns = columns_of(row)
                continue
            case, said = from_row(row, columns)
        except InputError as error:
            yield Problem(file, place, error.problem)
            if columns is None:
                return
            continue
        if columns.pair and columns.id is None:
            case = str(place)
        heard.setdefault(case, (place, []))[1].extend(said)
    yield from heard.values()


def _turns(heard: Sequence[Said], person: str) -> tuple[list[Turn], tuple[str, ...]]:
    """The turns of a conversation that can be worked on, and the names of its speakers."""
    said = [Said(visible(one.speaker), visible(one.text)) for one in heard]
    turns, speakers = sides(said, person)
    if not turns:
        raise InputError("an empty conversation")
    spoke = [turn for turn in turns if turn.side == "person"]
    if len(spoke) in (0, len(turns)):
        raise InputError("only one side speaks")
    if len(spoke) < FEWEST:
        raise InputError(f"the person speaks {len(spoke)} time, at least {FEWEST} are needed")
    return turns, tuple(speakers)


def _windowed(turns: Sequence[Turn], window: int) -> tuple[tuple[Turn, ...], str]:
    """At most `window` turns in a row, where the person says most; the first such place."""
    told = []
    kept = list(turns)
    if len(turns) > window:
        sizes = [min(len(t.text), LONGEST_TURN) if t.side == "person" else 0 for t in turns]
        best, here, at = sum(sizes[:window]), sum(sizes[:window]), 0
        for first in range(1, len(turns) - window + 1):
            here += sizes[first + window - 1] - sizes[first - 1]
            if here > best:
                best, at = here, first
        kept = list(turns[at : at + window])
        told.append(f"turns {at + 1} to {at + window} of {len(turns)}")
    if long := sum(len(turn.text) > LONGEST_TURN for turn in kept):
        kept = [Turn(turn.side, turn.text[:LONGEST_TURN]) for turn in kept]
        told.append(f"{long} turns cut to {LONGEST_TURN} characters")
    while sum(len(turn.text) for turn in kept) > LONGEST:
        kept.pop()
        if not told or "in all" not in told[-1]:
            told.append(f"{LONGEST} characters in all")
    return tuple(kept), "; ".join(told)
