"""What a reply most likely meant, where it is not in the form that EmoBench asks for.

The reference of 2025 counts a reply only if it is JSON and the letter exact. That mixes two abilities,
reading people and writing JSON, so a second reading stands beside it. It looks for the asked-for keys
anywhere in the reply, then reads what stands there as the reference of 2024 read free text (`choice_in`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from mapo.text import without_thinking

_MARKED = ("({})", "[{}]", ": {}", "option {}", "choice {}", "选项 {}")
"""How a letter stands in a sentence, the surest sign first."""

_VALUE = r"""["']?\s*:\s*\[?\s*(?:"((?:[^"\\\n]|\\.)*)"|'([^'\n]*)'|([^\n,}\]]*))"""
_KEYS = {
    "EA": (re.compile("(?:answer|答案)" + _VALUE, re.IGNORECASE),),
    "EU": tuple(
        re.compile(rf"(?:answer_q|question\s*|\bq|问题\s*|答案\s*){part}" + _VALUE, re.IGNORECASE)
        for part in (1, 2)
    ),
}
_TWO_LETTERS = re.compile(r"\W*([a-z])\W+([a-z])\W*", re.IGNORECASE)
_USUAL = str.maketrans("“”‘’", "\"\"''", "*`")


def lenient(task: str, raw: str | None, parts: Sequence[Sequence[str]], language: str) -> list[int | None]:
    """For each part of a question, given by its choices as shown, which one the reply chose; None: none."""
    text = _plain(without_thinking(raw or "")).replace(" & ", _and(language))
    given = [key.findall(text) for key in _KEYS[task]]
    if task == "EU" and not any(given) and (both := _TWO_LETTERS.fullmatch(text)):
        return [choice_in(letter, part, language) for letter, part in zip(both.groups(), parts, strict=True)]
    found = [
        choice_in("".join(values[-1]), part, language) if values else None
        for values, part in zip(given, parts, strict=True)
    ]
    formless = not any(quoted or single for values in given for quoted, single, _ in values)
    if task == "EA" and found == [None] and formless:
        return [choice_in(text, parts[0], language)]
    return found


def choice_in(text: str, choices: Sequence[str], language: str) -> int | None:
    """Which choice a text names, as the reference of 2024 reads it: line by line from the end, a marked
    letter ("(b)", "option b"), else the words of a choice, else a line that is or begins with a bare letter.

    Of several choices whose words are there the longest is meant ("joy", "joy and relief"); the reference
    took the first.
    """
    letters = [chr(ord("a") + i) for i in range(len(choices))]
    words = [_plain(choice).replace(" & ", _and(language)).replace(".", "").lower() for choice in choices]
    for line in reversed(_plain(text).lower().replace(".", "").split("\n")):
        for mark in _MARKED:
            for at, letter in enumerate(letters):
                if mark.format(letter) in line:
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
    """Full-width letters and brackets as the usual ones, straight quotes, no emphasis marks."""
    return unicodedata.normalize("NFKC", text).translate(_USUAL)
