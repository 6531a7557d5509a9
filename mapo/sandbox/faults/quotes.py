"""Whether the words that a judge quotes as evidence are in the reply.

The comparison ignores case, width, punctuation and spacing. An ellipsis may stand for omitted words, if the
parts occur in order.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_GAP = re.compile(r"\.{2,}|…+|\[…\]|\[\.\.\.\]")


def quoted(evidence: str, reply: str) -> bool:
    """Return whether all parts of the evidence occur in the reply, in order."""
    text, at = letters(reply), 0
    parts = [
        plain for part in _GAP.split(unicodedata.normalize("NFKC", evidence)) if (plain := letters(part))
    ]
    for part in parts:
        start = text.find(part, at)
        if start < 0:
            return False
        at = start + len(part)
    return bool(parts)


@lru_cache(maxsize=64)  # one reply is compared with the evidence of every mark
def letters(text: str) -> str:
    """Return the letters and digits of a text, normalised and without case."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return "".join(filter(str.isalnum, folded))
