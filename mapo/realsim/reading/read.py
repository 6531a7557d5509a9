"""Reading of conversation files. Every conversation that cannot be used is reported with its line.

Malformed JSON, empty conversations, conversations with only one side and duplicates are skipped with a
problem that says what is wrong and how to fix it; the rest is read. A long conversation is cut to the part in
which the person says most. Problems never quote the conversation.
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
from mapo.realsim.reading.decode import DecodedLine, lines_of, visible
from mapo.realsim.reading.formats import (
    Columns,
    ConversationTurn,
    Utterance,
    assign_sides,
    columns_of,
    ends_conversation,
    from_json,
    from_row,
    merge_false_speakers,
    parse_speaker,
)

WINDOW = 60
"""Maximum number of turns used."""
LONGEST_TURN = 4000
"""Maximum number of characters used per turn."""
LONGEST = 40_000
"""Maximum number of characters used in all."""
MIN_PERSON_TURNS = 2
"""Messages that the person must write at least."""
KINDS = (".jsonl", ".json", ".csv", ".tsv", ".txt")
LARGEST = 1 << 30


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation to make a scenario from. `speakers` are the names of speakers that are not role names;
    `cut` describes what was left out."""

    id: str
    file: int
    line: int
    turns: tuple[ConversationTurn, ...]
    speakers: tuple[str, ...] = ()
    cut: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the conversation at `line` of file number `file` (from 1) cannot be used, without quoting it. In
    .json files `line` is the number of the conversation."""

    file: int
    line: int
    text: str


class Note(Problem):
    """A remark about something that was read correctly."""


@dataclass(slots=True)
class SourceConversations:
    """Everything read: conversations in order, problems, notes, and the hash of each file."""

    conversations: list[Conversation] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


def read_sources(
    paths: Sequence[Path], *, prefix: str = "made", person: str = "", window: int = WINDOW
) -> SourceConversations:
    """Read files, or folders of files. Ids are `prefix` and a running number."""
    source = SourceConversations()
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
            digest = hashlib.sha256(json.dumps(turns).encode()).hexdigest()
            if digest in seen:
                file, line = seen[digest]
                place = f"line {line}" + (f" of file {file}" if file != number else "")
                problem = f"this is a duplicate of the conversation at {place}; no action is needed"
                source.problems.append(Problem(number, item[0], problem))
                continue
            seen[digest] = number, item[0]
            used, cut = _window(turns, window)
            case = f"{prefix}-{len(seen):05d}"
            source.conversations.append(Conversation(case, number, item[0], used, speakers, cut))
    return source


def files_of(paths: Sequence[Path]) -> list[Path]:
    """Return the files in order. Raise InputError for a path without files of a supported kind."""
    files: list[Path] = []
    for path in paths:
        inside = sorted(x for x in path.iterdir() if x.suffix.lower() in KINDS) if path.is_dir() else [path]
        if not inside or not all(x.is_file() and x.suffix.lower() in KINDS for x in inside):
            kinds = ", ".join(KINDS)
            raise InputError(
                "no conversation files found", where=str(path), fix=f"Give files that end in {kinds}"
            )
        files += inside
    return files


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > LARGEST:
            raise InputError("the file is larger than 1 GB", where=str(path), fix="Split the file")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"the file cannot be read ({error.strerror})", where=str(path)) from error


_Found = tuple[int, list[Utterance]]
"""Line at which a conversation starts, and its messages."""


def _read(data: bytes, kind: str, file: int) -> Iterator[_Found | Problem]:
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
        yield Note(
            file, where[0], f"{len(where)} lines from here on are not UTF-8; they were read as {encoding}"
        )
    reader = {".json": _json, ".jsonl": _jsonl, ".txt": _transcript}.get(kind)
    if reader:
        yield from reader(lines, file)
    else:
        yield from _table(lines, file, "\t" if kind == ".tsv" else ",")


def _jsonl(lines: Iterable[DecodedLine], file: int) -> Iterator[_Found | Problem]:
    for line in lines:
        if line.text.strip():
            yield _one(line.text, line.number, file)


def _json(lines: Sequence[DecodedLine], file: int) -> Iterator[_Found | Problem]:
    """Yield one conversation, or a list of them, with their numbers instead of lines."""
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


def _one(text: str, number: int, file: int) -> _Found | Problem:
    try:
        return number, from_json(_decoded(text))
    except InputError as error:
        return Problem(file, number, error.problem)


def _decoded(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise InputError("invalid JSON (nested too deeply); fix or remove it") from None
    except json.JSONDecodeError as error:
        raise InputError(f"invalid JSON ({error.msg}, character {error.pos + 1}); fix or remove it") from None
    except ValueError:
        raise InputError("invalid JSON (a number has too many digits); fix or remove it") from None


def _transcript(lines: Iterable[DecodedLine], file: int) -> Iterator[_Found | Problem]:
    start, messages, unattributed = 0, list[Utterance](), 0
    for line in [*lines, DecodedLine(0, "---")]:
        if ends_conversation(line.text):
            if messages:
                yield start, merge_false_speakers(messages)
            elif unattributed:
                yield Problem(
                    file, unattributed, "no speaker before the text; write each message as `Speaker: text`"
                )
            messages, unattributed = [], 0
        elif message := parse_speaker(line.text):
            start = start if messages else line.number
            messages.append(message)
        elif line.text.strip() and messages:
            speaker, text, original = messages[-1]
            text, original = (f"{part}\n{line.text.strip()}" for part in (text, original))
            messages[-1] = Utterance(speaker, text, original)
        elif line.text.strip():
            unattributed = unattributed or line.number


def _table(lines: Sequence[DecodedLine], file: int, comma: str) -> Iterator[_Found | Problem]:
    """Yield the conversations of a table: rows with the same id; without ids, the whole file, or each row if
    both sides have a column."""
    columns: Columns | None = None
    conversations: dict[str, _Found] = {}
    for place, row in rows_of(lines, comma):
        try:
            if row is None:
                raise InputError("the row cannot be parsed: a quotation mark opened here is never closed")
            if not any(cell.strip() for cell in row):
                continue
            if columns is None:
                columns = columns_of(row)
                continue
            case, messages = from_row(row, columns)
        except InputError as error:
            yield Problem(file, place, error.problem)
            if columns is None:
                return
            continue
        if columns.pair and columns.id is None:
            case = str(place)
        conversations.setdefault(case, (place, []))[1].extend(messages)
    yield from conversations.values()


def _turns(messages: Sequence[Utterance], person: str) -> tuple[list[ConversationTurn], tuple[str, ...]]:
    """Return the turns of a usable conversation, and the names of its speakers."""
    clean = [Utterance(visible(message.speaker), visible(message.text)) for message in messages]
    turns, speakers = assign_sides(clean, person)
    if not turns:
        raise InputError("the conversation is empty")
    count = sum(turn.side == "person" for turn in turns)
    if count in (0, len(turns)):
        raise InputError("only one side speaks; check the role names, or name the person with --person")
    if count < MIN_PERSON_TURNS:
        raise InputError(
            f"the person writes {count} message; at least {MIN_PERSON_TURNS} are needed"
            " (if the roles are reversed, name the person with --person)"
        )
    return turns, tuple(speakers)


def _window(turns: Sequence[ConversationTurn], window: int) -> tuple[tuple[ConversationTurn, ...], str]:
    """Return at most `window` consecutive turns, those in which the person says most, and what was cut."""
    cuts = []
    used = list(turns)
    if len(turns) > window:
        sizes = [min(len(t.text), LONGEST_TURN) if t.side == "person" else 0 for t in turns]
        best, size, at = sum(sizes[:window]), sum(sizes[:window]), 0
        for first in range(1, len(turns) - window + 1):
            size += sizes[first + window - 1] - sizes[first - 1]
            if size > best:
                best, at = size, first
        used = list(turns[at : at + window])
        cuts.append(f"only turns {at + 1} to {at + window} of {len(turns)} are used")
    if long := sum(len(turn.text) > LONGEST_TURN for turn in used):
        used = [ConversationTurn(turn.side, turn.text[:LONGEST_TURN]) for turn in used]
        cuts.append(f"{long} turns are cut to {LONGEST_TURN} characters")
    while sum(len(turn.text) for turn in used) > LONGEST:
        used.pop()
        if not cuts or "in all" not in cuts[-1]:
            cuts.append(f"the end is cut after {LONGEST} characters in all")
    return tuple(used), "; ".join(cuts)
