"""Small things about text that several rooms need."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def printable(text: str) -> str:
    """`text` without control and bidirectional-override characters, safe to show in a terminal."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in _UNSAFE else "\ufffd" for c in text)


def aloud(text: str) -> str:
    """What a model said, without the thinking before it."""
    if "</think>" in text:
        return text.rpartition("</think>")[2].strip()
    return "" if text.lstrip().startswith("<think>") else text


def terminal(**how: Any) -> Console:
    """A terminal that shows names as they are: no ":free:" in one becomes a picture, no number a colour."""
    from rich.console import Console

    return Console(**{"emoji": False, "highlight": False, **how})


_UNSAFE = {"Cc", "Cf", "Cs"}
