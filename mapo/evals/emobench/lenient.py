"""Lenient parser for replies that are not in the format that EmoBench asks for.

The reference implementation of 2025 accepts a reply only if it is JSON with the exact letter, which mixes two
abilities: understanding people and writing JSON. This parser looks for the requested keys anywhere in the
reply and parses their values as the reference implementation of 2024 parsed free text (`choice_in`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from mapo.text import without_thinking

_MARKED = ("({})", "[{}]", ": {}", "option {}", "choice {}", "选项 {}")
"""Ways in which a letter is marked in a sentence, the most reliable first."""

_VALUE = r"""["']?\s*:\s*\[?\s*(?:"((?:[^"\\\n]|\\.)*)"|'([^'\n]*)'|([^\n,}\]]*))"""
_KEYS = {
    "EA": (re.compile("(?:answer|答案)" + _VALUE, re.IGNORECASE),),
    "EU": tuple(
        re.compile(rf"(?:answer_q|question\s*|\bq|问题\s*|答案\s*){part}" + _VALUE, re.IGNORECASE)
        for part in (1, 2)
    ),
}
_TWO_LETTERS = re.compile(r"\W*([a-z])\W+([a-z])\W*", re.IGNORECASE)
_PLAIN_CHARACTERS = str.maketrans("“”‘’", "\"\"''", "*`")


def lenient_choices(
    task: str, raw: str | None, parts: Sequence[Sequence[str]], language: str
) -> list[int | None]:
    """Return the index of the choice that a reply names for each part of a question, or None.

    `parts` holds the choices of each part in the order shown.
    """
    text = _plain(without_thinking(raw or "")).replace(" & ", _and(language))
    values = [key.findall(text) for key in _KEYS[task]]
    if task == "EU" and not any(values) and (both := _TWO_LETTERS.fullmatch(text)):
        return [choice_in(letter, part, language) for letter, part in zip(both.groups(), parts, strict=True)]
    choices = [
        choice_in("".join(matches[-1]), part, language) if matches else None
        for matches, part in zip(values, parts, strict=True)
    ]
    unquoted = not any(double or single for matches in values for double, single, _ in matches)
    if task == "EA" and choices == [None] and unquoted:
        return [choice_in(text, parts[0], language)]
    return choices


def choice_in(text: str, choices: Sequence[str], language: str) -> int | None:
    """Return the index of the choice that a text names, parsed like the reference implementation of 2024:
    line by line from the end, a marked letter ("(b)", "option b"), else the words of a choice, else a bare
    letter at the beginning of a line.

    If the words of several choices occur, the longest counts ("joy and relief" before "joy"); the reference
    implementation takes the first.
    """
    letters = [chr(ord("a") + i) for i in range(len(choices))]
    words = [_plain(choice).replace(" & ", _and(language)).replace(".", "").lower() for choice in choices]
    marks = [(mark.format(letter), at) for mark in _MARKED for at, letter in enumerate(letters)]
    for line in reversed(_plain(text).lower().replace(".", "").split("\n")):
        for mark, at in marks:
            if mark in line:
                return at
        named = [at for at, choice in enumerate(words) if choice and choice in line]
        if named:
            return max(named, key=lambda at: len(words[at]))
        if line[:1] in letters and (len(line) == 1 or line[1] in "<[():"):
            return letters.index(line[0])
    return None


def _and(language: str) -> str:
    return " and " if language == "en" else "和"


def _plain(text: str) -> str:
    """Normalise full-width characters and quotes, and remove emphasis marks."""
    return unicodedata.normalize("NFKC", text).translate(_PLAIN_CHARACTERS)
