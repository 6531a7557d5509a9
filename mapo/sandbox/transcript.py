"""Conversations as quoted data in prompts.

Messages of policy and user are untrusted: they may contain instructions, fake forms, role markers of chat
templates or anything that looks like the end of a quotation. Each message is therefore a JSON string on its
own line, between two lines that carry the dialogue's delimiter. Characters that could end the line, hide
text, open a special token or repeat the delimiter are written as JSON escapes: nothing inside can close the
quotation, and decoding restores the exact text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from mapo.sandbox.prompting import DEFAULT_PROMPTS, OPENERS, REMEMBERED, Prompts
from mapo.types import Turn


def delimiter_of(scenario: str, seed: int) -> str:
    """Return the delimiter of one dialogue: a hash, so that it is reproducible but cannot occur by chance."""
    # The first letter occurs in no JSON escape, so `quote` cannot split an escape.
    return "q" + hashlib.sha256(f"{scenario}/{seed}".encode()).hexdigest()[:11]


@lru_cache(maxsize=REMEMBERED)
def quote(text: str, mark: str = "") -> str:
    """Return `text` as one line of JSON that contains neither special tokens nor the delimiter, if any."""
    line = json.dumps(text, ensure_ascii=False)
    if not line.isprintable():
        line = "".join(c if c.isprintable() else _escape(c) for c in line)
    line = OPENERS.sub(lambda match: _escape(match[0]), line)
    if not mark:
        return line
    return re.sub(mark, lambda match: _escape(match[0][0]) + match[0][1:], line, flags=re.IGNORECASE)


def _escape(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else json.dumps(char)[1:-1]


def block(label: str, lines: Iterable[str], mark: str) -> str:
    """Enclose lines in an opening and a closing delimiter."""
    return "\n".join([f"<<{mark} {label}>>", *lines, f"<<{mark} end>>"])


def quoted_turn(number: int, turn: Turn, mark: str, before: str = "", after: str = "") -> str:
    """Quote one turn; `before` and `after` are additional lines inside its block."""
    messages = [f"person: {quote(turn.user, mark)}", f"reply: {quote(turn.reply.text, mark)}"]
    return block(f"turn {number}", [*filter(None, [before]), *messages, *filter(None, [after])], mark)


def quoted_turns(turns: Sequence[Turn], mark: str, prompts: Prompts = DEFAULT_PROMPTS) -> str:
    """Quote the conversation so far, with an introduction. A longer conversation extends the text of a
    shorter one.
    """
    blocks = [quoted_turn(number, turn, mark) for number, turn in enumerate(turns, 1)]
    return "\n\n".join([prompts.fill("transcript", mark=mark), *blocks])
