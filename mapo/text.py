"""Text that others wrote, made safe to show: printable, of bounded length, without markup."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def printable(text: str) -> str:
    """`text` without control and bidirectional-override characters, safe to show in a terminal."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in _UNSAFE else "\ufffd" for c in text)


def clip(text: object, limit: int) -> str:
    """Return at most `limit` characters of `text`, made printable. Unlike `printable`, keep the joiners that
    Persian and emoji need. A text cut after thousands of characters says how many are missing."""
    whole = str(text)
    kept = "".join(c if c in _JOINERS else printable(c) for c in whole[:limit])
    if len(whole) <= limit:
        return kept
    return f"{kept}… ({len(whole) - limit:,} more characters)" if limit >= COUNTED else f"{kept}…"


def escape(text: str) -> str:
    """Return `text`, made printable, so that a rich console shows it as it is."""
    from rich.markup import escape as escape_markup

    return escape_markup(printable(text))


def aloud(text: str) -> str:
    """What a model said, without the thinking before it."""
    if "</think>" in text:
        return text.rpartition("</think>")[2].strip()
    return "" if text.lstrip().startswith("<think>") else text


def terminal(**how: Any) -> Console:
    """A terminal that shows names as they are: no ":free:" in one becomes a picture, no number a colour."""
    from rich.console import Console

    return Console(**{"emoji": False, "highlight": False, **how})


COUNTED = 4000
"""Limit from which `clip` says how much is missing."""
_UNSAFE = {"Cc", "Cf", "Cs"}
_JOINERS = "\u200c\u200d"
