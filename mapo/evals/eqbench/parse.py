"""What EQ-Bench 3 reads from texts: the judge's scores, and the sections of a reply.

The rules are the reference's (EQ-bench/eqbench3), odd ones included: the last of several fenced blocks,
the first object in it that closes, line breaks and quotes inside strings mended, numbers found in words.
They decide which answers count, so a score that is to be compared must use these and no better ones.
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
"""The headings a reply is asked to have; an analysis has none."""

_FENCE = "```json"
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*\\?(?:"|\Z)|[{}]', re.DOTALL)
_BREAK = re.compile(r"\\.|[\r\n]", re.DOTALL)
_NUMBER = re.compile(r"\b(\d+(\.\d+)?)\b")
_AFTER = re.compile(r"\s*(\S?)")


def said(text: str) -> str:
    """`text` without the thinking before it, where that is marked at both ends."""
    for opening, closing in (("<think>", "</think>"), ("<reasoning>", "</reasoning>")):
        if opening in text and closing in text:
            text = text.partition(closing)[2].strip()
    return text


# ---- the judge's scores


def parse_scores(raw: str) -> dict[str, float]:
    """Criterion -> score as the judge wrote it, neither checked against a list nor put into a range.

    InputError (a ValueError) where there is none. Numbers that are not finite are no scores.
    """
    try:
        data = _object(raw)
    except RecursionError:
        raise InputError("the judge's object is nested too deeply", where="judge") from None
    except ValueError as error:
        raise InputError(f"no JSON object in the judge's answer ({error})", where="judge") from None
    scores = {key: number for key, value in data.items() if (number := _number(key, value)) is not None}
    if not scores:
        raise InputError("no scores in the judge's answer", where="judge")
    return scores


def _number(key: str, value: Any) -> float | None:
    """The number a value is (true is 1), or the first one in its words, unless it is the reasoning."""
    try:
        if isinstance(value, int | float):
            number = float(value)
        elif key != REASONING and (found := _NUMBER.search(str(value))):
            number = float(found[1])
        else:
            return None
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _object(raw: str) -> dict[str, Any]:
    if raw.count(_FENCE) > 1:
        raw = raw.rpartition(_FENCE)[2]
    text = _first_object("\n".join(x for x in raw.splitlines() if not x.lstrip().startswith("```")))
    try:
        data = json.loads(text)
    except ValueError:
        data = json.loads(_mended_quotes(_mended_breaks(text)))
    return dict(data)


def _first_object(text: str) -> str:
    """From the first outermost brace to the one that closes it; braces in strings do not count."""
    depth, start = 0, None
    for token in _TOKEN.finditer(text):
        if token[0] == "{":
            start = token.start() if depth == 0 else start
            depth += 1
        elif token[0] == "}":
            depth -= 1
            if depth == 0 and start is not None:
                return text[start : token.end()]
    raise ValueError("none closes")


def _mended_breaks(text: str) -> str:
    """Line breaks inside strings, written as JSON wants them."""

    def mend(token: re.Match[str]) -> str:
        return _BREAK.sub(lambda m: "\\n" if m[0] in "\r\n" else m[0], token[0])

    return _TOKEN.sub(mend, text)


def _mended_quotes(text: str) -> str:
    """A quote inside a string that nothing follows which may follow a string is part of the string."""
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
    """The text under each heading, empty where it is missing.

    A section ends at the next mark of a heading, the last one at a double dash: a mark anywhere, even in
    the middle of a line.
    """
    last = SECTIONS[kind][-1][0]
    found = {}
    for key, title in SECTIONS[kind]:
        heading = re.escape(title).replace("'", "['\u2019]").replace(r"\-", "[- ]")
        end = "--" if key == last else "#"
        match = re.search(rf"#\s*{heading}\s*\n(.*?)(?={end}|\Z)", reply, re.IGNORECASE | re.DOTALL)
        found[key] = match[1].strip() if match else ""
    return found


def written(kind: ScenarioKind, reply: str) -> str:
    """The reply as the judge reads it: its sections under their headings and nothing else of it."""
    found = sections(kind, reply)
    parts = [f"# {title}\n{found[key]}" for key, title in SECTIONS[kind]]
    return "\n\n".join([*parts, "--"])
