"""Small things about text that several rooms need."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """`text` without control and bidirectional-override characters, safe to show in a terminal."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) not in _UNSAFE else "\ufffd" for c in text)


_UNSAFE = {"Cc", "Cf", "Cs"}
