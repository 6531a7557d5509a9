"""Parsers of EQ-Bench 3: the judge's scores, and the sections of a reply.

The rules are exactly those of the reference implementation (EQ-bench/eqbench3): the last of several fenced
blocks, the first complete object in it, line breaks and quotes inside strings repaired, numbers extracted
from text. They decide which answers count, so better rules would make scores incomparable.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from mapo.errors import InputError
from mapo.evals.eqbench.data import ScenarioKind

REASONING = "chain_of_thought_reasoning"

SECTIONS: dict[ScenarioKind, tuple[tuple[str, str], ...]] = {
    "roleplay": (
        ("thinking_feeling", "I'm thinking & feeling"),
        ("their_thinking_feeling", "They're thinking & feeling"),
        ("response", "My response"),
    ),
    "drafting": (
        ("perspective_taking", "Perspective-taking"),
        ("draft_brainstorming", "Draft brainstorming"),
        ("draft", "Draft"),
    ),
}
"""The headings that the prompt asks for, by kind of scenario; an analysis has none."""

MAX_MARK = 1e6
"""Larger numbers are not marks: sums of them overflow. The reference implementation has no limit."""

_FENCE = "```json"
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*\\?(?:"|\Z)|[{}]', re.DOTALL)
_BREAK = re.compile(r"\\.|[\r\n]", re.DOTALL)
_NUMBER = re.compile(r"\b(\d+(\.\d+)?)\b")
_AFTER = re.compile(r"\s*(\S?)")


def without_reasoning(text: str) -> str:
    """Return `text` without the reasoning before it, if that has both an opening and a closing tag."""
    for opening, closing in (("<think>", "</think>"), ("<reasoning>", "</reasoning>")):
        if opening in text and closing in text:
            text = text.partition(closing)[2].strip()
    return text


# ---- the judge's scores


def parse_scores(raw: str) -> dict[str, float]:
    """Return the judge's scores by criterion, without checking names or range.

    Raises InputError (a ValueError) if there are none. Numbers above `MAX_MARK` are ignored.
    """
    try:
        data = _object(raw)
    except RecursionError:
        raise InputError("the JSON in the judge's answer is nested too deeply", where="judge") from None
    except ValueError as error:
        raise InputError(
            f"the judge's answer contains no valid JSON object ({error})", where="judge"
        ) from None
    scores = {key: number for key, value in data.items() if (number := _number(key, value)) is not None}
    if not scores:
        raise InputError("the judge's answer contains no scores", where="judge")
    return scores


def _number(key: str, value: Any) -> float | None:
    """Return a value as a number (true is 1), or the first number in its text; None for the reasoning."""
    try:
        if isinstance(value, int | float):
            number = float(value)
        elif key != REASONING and (match := _NUMBER.search(str(value))):
            number = float(match[1])
        else:
            return None
    except OverflowError:
        return None
    return number if math.isfinite(number) and abs(number) <= MAX_MARK else None


def _object(raw: str) -> dict[str, Any]:
    if raw.count(_FENCE) > 1:
        raw = raw.rpartition(_FENCE)[2]
    text = _first_object("\n".join(x for x in raw.splitlines() if not x.lstrip().startswith("```")))
    try:
        data = json.loads(text)
    except ValueError:
        data = json.loads(_repaired_quotes(_repaired_breaks(text)))
    return dict(data)


def _first_object(text: str) -> str:
    """Return the text of the first complete object. Braces inside strings are ignored."""
    depth, start = 0, None
    for token in _TOKEN.finditer(text):
        if token[0] == "{":
            start = token.start() if depth == 0 else start
            depth += 1
        elif token[0] == "}":
            depth -= 1
            if depth == 0 and start is not None:
                return text[start : token.end()]
    raise ValueError("no object is complete")


def _repaired_breaks(text: str) -> str:
    """Escape line breaks inside strings."""

    def repair(token: re.Match[str]) -> str:
        return _BREAK.sub(lambda m: "\\n" if m[0] in "\r\n" else m[0], token[0])

    return _TOKEN.sub(repair, text)


def _repaired_quotes(text: str) -> str:
    """Escape quotes inside a string: those not followed by a character that may follow a string."""
    done, inside, at = [], False, 0
    while at < len(text):
        char = text[at]
        if inside and char == "\\":
            done.append(text[at : at + 2])
            at += 2
            continue
        if char == '"':
            after = _AFTER.match(text, at + 1)
            if inside and after and after[1] and after[1] not in ",}]:":
                done.append("\\")
            else:
                inside = not inside
        done.append(char)
        at += 1
    return "".join(done)


# ---- the sections of a reply


def sections(kind: ScenarioKind, reply: str) -> dict[str, str]:
    """Return the text under each heading, empty if the heading is missing.

    A section ends at the next "#", the last one at the next "--", even in the middle of a line.
    """
    last = SECTIONS[kind][-1][0]
    texts = {}
    for key, title in SECTIONS[kind]:
        heading = re.escape(title).replace("'", "['\u2019]").replace(r"\-", "[- ]")
        end = "--" if key == last else "#"
        match = re.search(rf"#\s*{heading}\s*\n(.*?)(?={end}|\Z)", reply, re.IGNORECASE | re.DOTALL)
        texts[key] = match[1].strip() if match else ""
    return texts


def reply_for_judge(kind: ScenarioKind, reply: str) -> str:
    """Return the reply as shown to the judge: only its sections, under their headings."""
    texts = sections(kind, reply)
    parts = [f"# {title}\n{texts[key]}" for key, title in SECTIONS[kind]]
    return "\n\n".join([*parts, "--"])
