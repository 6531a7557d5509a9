"""Conversations as quoted data, for prompts.

What a policy or a user said is untrusted: it may hold instructions, fake forms, role marks of chat
templates or anything that looks like the end of a quotation. So each utterance is a JSON string on a
line of its own, between two lines that carry the dialogue's mark. Characters that could end the line,
hide text, open a special token or repeat the mark are written as JSON escapes, so nothing inside can
close the quotation, and decoding gives back the very text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence

from mapo.sandbox.prompting import OPENERS, fill
from mapo.types import Turn


def mark_of(scenario: str, seed: int) -> str:
    """The mark of one dialogue: no word of any language, the same whenever the dialogue is played again."""
    # It starts with a letter that no JSON escape contains, so `quote` cannot cut an escape in two.
    return "q" + hashlib.sha256(f"{scenario}/{seed}".encode()).hexdigest()[:11]


def quote(text: str, mark: str) -> str:
    """`text` as one line of JSON that cannot be mistaken for anything else."""
    line = json.dumps(text, ensure_ascii=False)
    if not line.isprintable():
        line = "".join(c if c.isprintable() else _escape(c) for c in line)
    line = OPENERS.sub(lambda found: _escape(found[0]), line)
    return re.sub(mark, lambda found: _escape(found[0][0]) + found[0][1:], line, flags=re.IGNORECASE)


def _escape(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else json.dumps(char)[1:-1]


def block(label: str, lines: Iterable[str], mark: str) -> str:
    """Lines between an opening and a closing mark."""
    return "\n".join([f"<<{mark} {label}>>", *lines, f"<<{mark} end>>"])


def quoted_turn(number: int, turn: Turn, mark: str, before: str = "", after: str = "") -> str:
    """One turn; `before` and `after` are lines of our own about it."""
    said = [f"person: {quote(turn.user, mark)}", f"reply: {quote(turn.reply.text, mark)}"]
    return block(f"turn {number}", [*filter(None, [before]), *said, *filter(None, [after])], mark)


def quoted_turns(turns: Sequence[Turn], mark: str) -> str:
    """The conversation so far, with its introduction; a longer one starts with the whole shorter one."""
    blocks = [quoted_turn(number, turn, mark) for number, turn in enumerate(turns, 1)]
    return "\n\n".join([fill("transcript", mark=mark), *blocks])
