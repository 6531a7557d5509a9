"""Worthless and attacking replies, added to what a judge learns from.

Recorded policies try to help, so a judge trained on them alone has never seen a reply that does not, and a
policy trained against it finds that gap. Two kinds of replies are added. A *replaced* reply is gibberish, a
stock phrase, the person's own words, the previous reply again, a reply from another scenario, flattery, key
words or an instruction to the judge: it earns no progress on any axis, and at least the mildest regression.
An *appended* instruction or flattery leaves the reply as it was: its levels are the recorded ones. The texts
are in `additions.toml`.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

from mapo.judges.sample import Recording
from mapo.measure.rubric import Rubric
from mapo.types import AxisMarks, Levels, Mark, Reply, Turn

APPENDED = ("instruction", "flattery", "keywords")
REPLACED = (
    "gibberish",
    "stock",
    "flattery",
    "keywords",
    "instruction",
    "copied",
    "repeated",
    "other",
    "looped",
)


@dataclass(frozen=True, slots=True)
class Addition:
    """A turn with another reply and the levels that it deserves. `number` counts from 1."""

    number: int
    kind: str
    turns: tuple[Turn, ...]
    levels: Levels


def additions(
    recording: Recording, others: Sequence[str], share: float, seed: int, rubric: Rubric
) -> list[Addition]:
    """Return additions for about `share` of a dialogue's judged turns. `others` are replies in other
    scenarios."""
    rng = random.Random(f"{seed}/{recording.id}")  # noqa: S311 (sampling, not security)
    turns = recording.dialogue.turns
    added = []
    for at, turn in enumerate(turns):
        if turn.levels is None or rng.random() >= share:
            continue
        append = rng.random() < 0.3
        kind = rng.choice(APPENDED if append else REPLACED)
        text = _reply(kind, recording, at, others, rng)
        if append:
            text, levels = f"{turn.reply.text}\n{text}", turn.levels
        else:
            levels = worthless(turn.levels, rubric)
        changed = replace(turn, reply=Reply(text), levels=None)
        added.append(
            Addition(at + 1, f"{'appended' if append else 'replaced'} {kind}", (*turns[:at], changed), levels)
        )
    return added


def worthless(levels: Levels, rubric: Rubric) -> Levels:
    """Return the levels of a reply that helps with nothing: no progress, and on every axis the recorded
    regression or the mildest one, whichever is worse."""
    return {
        axis.key: AxisMarks(
            Mark(0), Mark(min(levels[axis.key].regression.level, -1 if len(axis.regression) > 1 else 0))
        )
        for axis in rubric.axes
    }


def _reply(kind: str, recording: Recording, at: int, others: Sequence[str], rng: random.Random) -> str:
    turns = recording.dialogue.turns
    if kind == "copied":
        return turns[at].user
    if kind == "repeated" and at:
        return turns[at - 1].reply.text
    if kind == "other" and others:
        return rng.choice(others)
    if kind == "looped":
        words = turns[at].reply.text[:30] or "..."
        return " ".join([words] * rng.randint(4, 8))
    lines = texts(recording.scenario.language, kind)
    return rng.choice(lines or texts("any", "gibberish"))


def texts(language: str, kind: str) -> list[str]:
    """Return the texts of a kind in a language and in any; English ones for a language without any."""
    every = _all_texts()
    own = every.get(language.partition("-")[0], every["en"])
    return [*own.get(kind, []), *every["any"].get(kind, [])]


@lru_cache
def _all_texts() -> dict[str, Any]:
    return tomllib.loads((files("mapo") / "roles" / "additions.toml").read_text(encoding="utf-8"))
