"""The shapes conversations come in: decoded JSON, rows of a table or lines of a transcript -> who said what.

JSON: `{"messages": [{"role", "content"}]}` (content a text or a list of parts), ShareGPT's `{"conversations":
[{"from", "value"}]}`, or such a list alone; ChatGPT's export (`mapping`). Tables: one message a row, with
columns for speaker and text and perhaps for the conversation; or a column for each side. Transcripts:
`Speaker: text`, or speaker and time on a line above the text, as WeChat has it; dates and times before a
speaker are left out, further lines belong to the one before, a line of dashes ends a conversation.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from mapo.errors import InputError
from mapo.realsim.redaction.vocabulary import words

Side = Literal["person", "partner"]

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
"""Of the name of a speaker."""


class Said(NamedTuple):
    """`line` is how it stood in a transcript, should it turn out to be no speaker's."""

    speaker: str
    text: str
    line: str = ""


class Turn(NamedTuple):
    side: Side
    text: str


def from_json(data: Any) -> list[Said]:
    """What was said in one decoded conversation; InputError where it has none of the known shapes."""
    listed = data
    if isinstance(data, dict) and isinstance(data.get("mapping"), dict):
        return _of_nodes(data["mapping"], data.get("current_node"))
    if isinstance(data, dict):
        listed = next((data[key] for key in _LIST_KEYS if isinstance(data.get(key), list)), None)
        if listed is None:
            if {*data} & {"prompt", "instruction", "question"}:
                raise InputError("a question and its answer alone: the person speaks once, too little")
            raise InputError(f"no list of messages under any of {', '.join(_LIST_KEYS[:3])} ...")
    if not isinstance(listed, list):
        raise InputError("neither an object nor a list of messages")
    return [_message(item, number) for number, item in enumerate(listed, 1)]


def _of_nodes(nodes: dict[str, Any], last: Any) -> list[Said]:
    """ChatGPT's export: a tree of messages, of which the branch that was shown last counts."""
    said: list[Said] = []
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
                said.append(Said(role, _text(parts)))
        last = node.get("parent")
    if not said:
        raise InputError("no branch of messages from its current_node")
    return said[::-1]


def _message(item: Any, number: int) -> Said:
    if not isinstance(item, dict):
        raise InputError(f"message {number} is no object")
    role = next((item[key] for key in _ROLE_KEYS if isinstance(item.get(key), str)), None)
    found = next((item[key] for key in _TEXT_KEYS if key in item), None)
    if role is None:
        raise InputError(f"message {number} says nothing about who speaks (role, from)")
    if found is not None and not isinstance(found, str | list):
        raise InputError(f"message {number} holds no text (content, value)")
    return Said(role, _text(found))


def _text(content: str | list[Any] | None) -> str:
    """A text, or the texts among the parts of a message."""
    if isinstance(content, list):
        parts = (part.get("text") if isinstance(part, dict) else part for part in content)
        return "\n".join(part for part in parts if isinstance(part, str))
    return content or ""


class Columns(NamedTuple):
    """Which columns of a table hold what; `pair` where each side has one."""

    id: int | None
    speaker: int
    text: int
    pair: tuple[int, int] | None = None


def columns_of(header: Sequence[str]) -> Columns:
    """The columns by their names; InputError where they do not say enough."""
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
    raise InputError("its first line names no columns for speaker and text, nor one for each side")


def from_row(row: Sequence[str], columns: Columns) -> tuple[str, list[Said]]:
    """The conversation a row belongs to, and what it adds; InputError for a row that is too short."""
    needed = columns.pair or (columns.speaker, columns.text)
    if len(row) <= max(*needed, columns.id if columns.id is not None else 0):
        raise InputError(f"{len(row)} columns, too few")
    case = row[columns.id].strip() if columns.id is not None else ""
    if columns.pair:
        person, partner = (row[at] for at in columns.pair)
        return case, [Said("user", person), Said("assistant", partner)]
    return case, [Said(row[columns.speaker], row[columns.text])]


def ends_here(line: str) -> bool:
    """Whether a line of a transcript closes the conversation."""
    return _BREAK.fullmatch(line) is not None


def spoken(line: str) -> Said | None:
    """A line of a transcript that begins with a speaker; None for one that goes on. What a program notes
    between dated lines ("Anna left") is nobody's."""
    stamp = _STAMP.match(line)
    rest = line[stamp.end() :] if stamp else line
    dated = stamp is not None and _DATED_STAMP.match(line) is not None
    if (found := _NAME_AND_TIME.fullmatch(line)) and _is_name(found[1]):
        return Said(found[1], "", line)
    if found := _SPEAKER.fullmatch(rest):
        return Said(found[1], found[2], line) if _is_name(found[1]) else None
    if stamp and dated and stamp["dash"]:
        return Said("system", rest, line)
    return Said(rest.strip(), "", line) if dated and _is_name(rest) else None


def _is_name(text: str) -> bool:
    """Few words, and letters among them: a time is no speaker."""
    return len(text.split()) <= _MOST_WORDS and any(map(str.isalpha, text))


def only_speakers(said: Sequence[Said]) -> list[Said]:
    """What looked like a speaker once, beside two who speak oftener, was a part of the sentence before."""
    counts = Counter(_key(one.speaker) for one in said)
    often = {name for name, n in counts.items() if n > 1 or name in _PERSON | _PARTNER} - _SILENT
    if len(often) < 2:
        return list(said)
    kept: list[Said] = []
    for one in said:
        if kept and _key(one.speaker) not in often | _SILENT:
            kept[-1] = Said(kept[-1].speaker, f"{kept[-1].text}\n{one.line or one.text}")
        else:
            kept.append(one)
    return kept


def sides(said: Sequence[Said], person: str = "") -> tuple[list[Turn], list[str]]:
    """Who is the person and who the partner, and the names of speakers that were no roles.

    `person` names a speaker to be taken for the person. Otherwise roles decide; of speakers that are no
    roles, the first one is the person if nobody else is, and all others are partners.
    """
    names = list(dict.fromkeys(_key(one.speaker) for one in said))
    place: dict[str, Side | None] = {}
    for name in names:
        place[name] = "person" if name in _PERSON else "partner" if name in _PARTNER else None
        if person and name not in _SILENT:
            place[name] = "person" if name == _key(person) else "partner"
    strangers = [name for name in names if place[name] is None and name not in _SILENT]
    for name in strangers:
        place[name] = "partner" if "person" in place.values() else "person"
    turns = [
        Turn(side, one.text.strip())
        for one in said
        if (side := place[_key(one.speaker)]) is not None and one.text.strip()
    ]
    roles = _PERSON | _PARTNER | _SILENT
    labels = dict.fromkeys(one.speaker.strip() for one in said if _key(one.speaker) not in roles)
    return turns, list(labels)


def _key(speaker: str) -> str:
    return speaker.strip().casefold().replace(" ", "")
