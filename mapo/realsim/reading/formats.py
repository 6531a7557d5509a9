"""Input formats: decoded JSON, table rows or transcript lines -> utterances with their speakers.

JSON: `{"messages": [{"role", "content"}]}` (content a text or a list of parts), ShareGPT's `{"conversations":
[{"from", "value"}]}`, or such a list alone; ChatGPT's export (`mapping`). Tables: one message per row, with
columns for speaker and text and optionally for the conversation; or one column per side. Transcripts:
`Speaker: text`, or speaker and time on the line above the text, as in WeChat exports. Dates and times before
a speaker are ignored, further lines continue the previous message, a line of dashes ends a conversation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from mapo.errors import InputError
from mapo.realsim.redaction.vocabulary import words

SpeakerSide = Literal["person", "partner"]

_PERSON, _PARTNER, _SILENT = (words("roles", key) for key in ("person", "partner", "silent"))
_ROLE_KEYS = ("role", "from", "speaker", "author", "sender", "user_type")
_TEXT_KEYS = ("content", "value", "text", "message", "utterance", "body")
_LIST_KEYS = ("messages", "conversations", "conversation", "dialog", "dialogue", "turns", "utterances")
_ID_KEYS = ("conversation_id", "conversation", "dialogue_id", "dialog_id", "thread_id", "session_id", "id")
_BREAK = re.compile(r"\s*(?:-{3,}|={3,}|\*{3,}|_{3,})\s*")
_DATE = r"(?:\d{4}[-/.年]\d{1,2}[-/.月]\d{1,2}日?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})"
_HALF = r"(?:[ap]\.?m\.?|[上下中]午|凌晨|早上|晚上)"
_CLOCK = r"\d{1,2}[:：]\d{2}(?:[:：]\d{2})?(?:[.,]\d{1,6})?"
_TIME = rf"(?:{_HALF}\s*)?{_CLOCK}(?:\s?{_HALF})?(?:Z|\s?[+-]\d{{2}}:?\d{{2}})?"
_DATED = rf"{_DATE}(?:[T,，]?\s*{_TIME})?|{_TIME},?\s+{_DATE}"
_STAMP = re.compile(
    rf"\s*(?:[\[(（【](?:{_DATED}|{_TIME}|[^\])）】]{{1,40}})[\])）】]|(?:{_DATED}|{_TIME})(?!\d))\s*(?P<dash>[-–—]\s)?\s*",
    re.I,
)
_DATED_STAMP = re.compile(rf"\s*[\[(（【]?(?:{_DATED})", re.I)
_NAME_AND_TIME = re.compile(rf"\s*([^\s:：][^:：]{{0,39}}?)\s+(?:{_DATED}|{_TIME})\s*", re.I)
_SPEAKER = re.compile(
    rf"\s*([^\s:：][^:：]{{0,39}}?)\s*(?:[\[(（](?:{_DATED}|{_TIME})[\])）])?\s*[:：](?!//)\s*(.*)", re.I
)
_MOST_WORDS = 4
"""Maximum number of words in a speaker's name."""


class Utterance(NamedTuple):
    """One message. `line` is its original transcript line, in case `speaker` turns out not to be one."""

    speaker: str
    text: str
    line: str = ""


class ConversationTurn(NamedTuple):
    """One message, attributed to the person or to their conversation partner."""

    side: SpeakerSide
    text: str


def from_json(data: Any) -> list[Utterance]:
    """Return the messages of one decoded conversation. Raise InputError for an unknown format."""
    listed = data
    if isinstance(data, dict) and isinstance(data.get("mapping"), dict):
        return _of_nodes(data["mapping"], data.get("current_node"))
    if isinstance(data, dict):
        listed = next((data[key] for key in _LIST_KEYS if isinstance(data.get(key), list)), None)
        if listed is None:
            if {*data} & {"prompt", "instruction", "question"}:
                raise InputError(
                    "this is a single question with its answer; the person must write at least two messages"
                )
            raise InputError(
                f"no list of messages found; put it under one of the keys {', '.join(_LIST_KEYS[:3])}"
            )
    if not isinstance(listed, list):
        raise InputError("expected an object or a list of messages")
    return [_message(item, number) for number, item in enumerate(listed, 1)]


def _of_nodes(nodes: dict[str, Any], last: Any) -> list[Utterance]:
    """Return the messages of a ChatGPT export: the branch of its tree that was shown last."""
    messages: list[Utterance] = []
    seen: set[str] = set()
    while isinstance(last, str) and last in nodes and last not in seen:
        seen.add(last)
        node = nodes[last] if isinstance(nodes[last], dict) else {}
        message = node.get("message")
        if isinstance(message, dict):
            author, content = message.get("author"), message.get("content")
            role = author.get("role") if isinstance(author, dict) else None
            parts = content.get("parts") if isinstance(content, dict) else None
            if isinstance(role, str) and isinstance(parts, list):
                messages.append(Utterance(role, _text(parts)))
        last = node.get("parent")
    if not messages:
        raise InputError("its current_node leads to no messages; export the conversation again")
    return messages[::-1]


def _message(item: Any, number: int) -> Utterance:
    if not isinstance(item, dict):
        raise InputError(f"message {number} is not an object")
    role = next((item[key] for key in _ROLE_KEYS if isinstance(item.get(key), str)), None)
    text = next((item[key] for key in _TEXT_KEYS if key in item), None)
    if role is None:
        raise InputError(f"message {number} names no speaker; add `role` or `from`")
    if text is not None and not isinstance(text, str | list):
        raise InputError(f"message {number} has no text; add `content` or `value`")
    return Utterance(role, _text(text))


def _text(content: str | list[Any] | None) -> str:
    """Return the text of a message, which may be a list of parts."""
    if isinstance(content, list):
        parts = (part.get("text") if isinstance(part, dict) else part for part in content)
        return "\n".join(part for part in parts if isinstance(part, str))
    return content or ""


class Columns(NamedTuple):
    """Column numbers of a table; `pair` if each side has its own column."""

    id: int | None
    speaker: int
    text: int
    pair: tuple[int, int] | None = None


def columns_of(header: Sequence[str]) -> Columns:
    """Identify the columns by name. Raise InputError if speaker or text is missing."""
    names = [name.strip().lower().replace(" ", "_") for name in header]

    def find(wanted: Sequence[str]) -> int | None:
        return next((names.index(key) for key in wanted if key in names), None)

    case = find(_ID_KEYS)
    speaker, text = find((*_ROLE_KEYS, "角色", "说话人")), find((*_TEXT_KEYS, "内容", "文本"))
    if speaker is not None and text is not None and speaker != text:
        return Columns(case, speaker, text)
    person = find((*_PERSON, "prompt", "question", "问"))
    partner = find((*_PARTNER, "response", "answer", "答"))
    if person is not None and partner is not None:
        return Columns(case, -1, -1, (person, partner))
    raise InputError(
        "the header has no columns for speaker and text (such as `role` and `content`), nor one per side "
        "(such as `user` and `assistant`); rename the columns"
    )


def from_row(row: Sequence[str], columns: Columns) -> tuple[str, list[Utterance]]:
    """Return the conversation id of a row and its messages. Raise InputError for a row that is too short."""
    needed = columns.pair or (columns.speaker, columns.text)
    if len(row) <= max(*needed, columns.id if columns.id is not None else 0):
        raise InputError(f"the row has only {len(row)} columns")
    case = row[columns.id].strip() if columns.id is not None else ""
    if columns.pair:
        person, partner = (row[at] for at in columns.pair)
        return case, [Utterance("user", person), Utterance("assistant", partner)]
    return case, [Utterance(row[columns.speaker], row[columns.text])]


def ends_conversation(line: str) -> bool:
    """Return whether a transcript line ends the conversation."""
    return _BREAK.fullmatch(line) is not None


def parse_speaker(line: str) -> Utterance | None:
    """Parse a transcript line that starts with a speaker; return None for a continuation line. A program's
    own notices between dated lines ("Anna left") are attributed to "system"."""
    stamp = _STAMP.match(line)
    rest = line[stamp.end() :] if stamp else line
    dated = stamp is not None and _DATED_STAMP.match(line) is not None
    if (match := _NAME_AND_TIME.fullmatch(line)) and _is_name(match[1]):
        return Utterance(match[1], "", line)
    if match := _SPEAKER.fullmatch(rest):
        return Utterance(match[1], match[2], line) if _is_name(match[1]) else None
    if stamp and dated and stamp["dash"]:
        return Utterance("system", rest, line)
    return Utterance(rest.strip(), "", line) if dated and _is_name(rest) else None


def _is_name(text: str) -> bool:
    """Return whether a text can be a speaker's name: few words, containing letters."""
    return len(text.split()) <= _MOST_WORDS and any(map(str.isalpha, text))


def merge_false_speakers(messages: Sequence[Utterance]) -> list[Utterance]:
    """Merge a message whose "speaker" occurs only once, next to two who occur more often, into the message
    before it: the colon was part of a sentence."""
    counts = Counter(_key(message.speaker) for message in messages)
    often = {name for name, n in counts.items() if n > 1 or name in _PERSON | _PARTNER} - _SILENT
    if len(often) < 2:
        return list(messages)
    merged: list[Utterance] = []
    for message in messages:
        if merged and _key(message.speaker) not in often | _SILENT:
            merged[-1] = Utterance(merged[-1].speaker, f"{merged[-1].text}\n{message.line or message.text}")
        else:
            merged.append(message)
    return merged


def assign_sides(messages: Sequence[Utterance], person: str = "") -> tuple[list[ConversationTurn], list[str]]:
    """Attribute messages to the person or the partner; return them and the speakers that are not role names.

    `person` names the speaker who is the person. Otherwise role names decide. Of other speakers, the first is
    the person if no role name is, and all others are partners.
    """
    names = list(dict.fromkeys(_key(message.speaker) for message in messages))
    assigned: dict[str, SpeakerSide | None] = {}
    for name in names:
        assigned[name] = "person" if name in _PERSON else "partner" if name in _PARTNER else None
        if person and name not in _SILENT:
            assigned[name] = "person" if name == _key(person) else "partner"
    others = [name for name in names if assigned[name] is None and name not in _SILENT]
    for name in others:
        assigned[name] = "partner" if "person" in assigned.values() else "person"
    turns = [
        ConversationTurn(side, message.text.strip())
        for message in messages
        if (side := assigned[_key(message.speaker)]) is not None and message.text.strip()
    ]
    roles = _PERSON | _PARTNER | _SILENT
    labels = dict.fromkeys(
        message.speaker.strip() for message in messages if _key(message.speaker) not in roles
    )
    return turns, list(labels)


def _key(speaker: str) -> str:
    return speaker.strip().casefold().replace(" ", "")
