"""Helpers for showing untrusted text safely: printable, truncated, without markup."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def printable(text: str) -> str:
    """Replace control and bidirectional-override characters, so that `text` is safe to print to a
    terminal.
    """
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in _UNSAFE else "\ufffd" for c in text)


def clip(text: object, limit: int) -> str:
    """Return at most `limit` characters of `text`, made printable.

    Unlike `printable`, keep the joiners that Persian and emoji need. If `limit` is large, the result states
    how many characters are missing.
    """
    full = str(text)
    start = "".join(c if c in _JOINERS else printable(c) for c in full[:limit])
    if len(full) <= limit:
        return start
    return f"{start}… ({len(full) - limit:,} more characters)" if limit >= COUNTED else f"{start}…"


def plural(n: int, noun: str, several: str = "") -> str:
    """Return a number with its noun: "1 dialogue", "1,200 dialogues"."""
    return f"{n:,} {noun if n == 1 else several or f'{noun}s'}"


def escape(text: str) -> str:
    """Make `text` printable and escape rich markup."""
    from rich.markup import escape as escape_markup

    return escape_markup(printable(text))


def counted(n: int, singular: str, plural: str | None = None) -> str:
    """Return a number with its noun: "1 dialogue", "2 dialogues"."""
    return f"{n:,} {singular if n == 1 else plural or f'{singular}s'}"


def without_thinking(text: str) -> str:
    """Return a model's answer without a leading `<think>` block."""
    if "</think>" in text:
        return text.rpartition("</think>")[2].strip()
    return "" if text.lstrip().startswith("<think>") else text


def terminal(**options: Any) -> Console:
    """Return a rich console that prints names unchanged: no emoji codes, no highlighting."""
    from rich.console import Console

    return Console(**{"emoji": False, "highlight": False, **options})


COUNTED = 4000
"""Limit from which `clip` states how many characters are missing."""
_UNSAFE = {"Cc", "Cf", "Cs"}
_JOINERS = "\u200c\u200d"
