"""Faults of a turn and the role they belong to: user, director, judge or policy.

Everything is detected by plain code, from the texts and the scenario. Scripted roles have no faults: their
repetitions belong to the world they make.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mapo.sandbox.director import DIRECTOR_FAILED
from mapo.sandbox.faults.manners import (
    cut_off,
    is_call_failure,
    loops,
    script_of,
    speaks_as_assistant,
    tokens,
    unreadable,
    word_sequences,
)
from mapo.sandbox.faults.quotes import letters, quoted
from mapo.sandbox.faults.story import Story
from mapo.scenarios.scenario import Scenario
from mapo.types import Turn

ROLES = ("user", "director", "judge", "policy")
SAME = 0.6
"""Share of a message's word sequences that must occur in earlier ones for it to repeat or copy them."""
FEW_SEQUENCES = 3
FEWEST_WORDS = 4
"""Shorter messages ("I don't know") are repeated by anyone."""


class FaultDetector:
    """Finds the faults of a dialogue's turns, one after the other."""

    def __init__(self, scenario: Scenario | None = None, cast: Mapping[str, str] | None = None) -> None:
        self.story = Story(scenario) if scenario else None
        self.scripted = {role for role, name in (cast or {}).items() if name == "scripted"}
        self.revealed = 0
        self.script = ""
        self.lines, self.replies = _Texts(), _Texts()

    def faults(self, turn: Turn) -> tuple[str, ...]:
        """Return the faults of the next turn, each as "ROLE: what is wrong"."""
        checks = {"user": self._user, "director": _director, "judge": _judge, "policy": self._policy}
        return tuple(
            f"{role}: {fault}"
            for role, check in checks.items()
            if role not in self.scripted
            for fault in check(turn)
        )

    def _user(self, turn: Turn) -> Iterator[str]:
        line, words = turn.user, _Words(turn.user)
        self.revealed += turn.direction is not None and turn.direction.act == "reveal_stage"
        if is_call_failure(line):
            yield "failed call"
            return
        script = script_of(line)
        self.script = self.script or script
        if not line.strip():
            yield "empty"
        elif unreadable(line) or loops(words.sequences):
            yield "unreadable"
        elif cut_off(line):
            yield "cut off"
        if self.replies.contain(words):
            yield "copies the reply"
        if self.lines.contain(words):
            yield "repeats itself"
        if speaks_as_assistant(line):
            yield "speaks as an assistant"
        if script and script != self.script:
            yield "another language"
        if self.story and self.story.contradicted_by(line):
            yield "contradicts the persona"
        if self.story and self.story.told_early(line, self.revealed):
            yield "tells a later stage"
        self.lines.add(words)

    def _policy(self, turn: Turn) -> Iterator[str]:
        text, words = turn.reply.text, _Words(turn.reply.text)
        if is_call_failure(text):
            yield "failed call"
            return
        if not text.strip():
            yield "empty"
        elif unreadable(text) or loops(words.sequences):
            yield "unreadable"
        if turn.reply.finish == "length":
            yield "cut off"
        if self.replies.contain(words):
            yield "repeats itself"
        self.replies.add(words)


def _director(turn: Turn) -> Iterator[str]:
    if turn.direction is not None and turn.direction.reason.startswith(DIRECTOR_FAILED):
        yield "failed"


def _judge(turn: Turn) -> Iterator[str]:
    if turn.levels is None:
        yield "failed"
        return
    marks = (mark for axis in turn.levels.values() for mark in (axis.progress, axis.regression))
    quotes = [mark.evidence for mark in marks if mark.level and letters(mark.evidence)]
    if not all(quoted(evidence, turn.reply.text) for evidence in quotes):
        yield "evidence is not in the reply"


class _Words:
    """A text as its words and their sequences, with those that occur twice."""

    def __init__(self, text: str) -> None:
        self.words = tuple(tokens(text))
        self.sequences = word_sequences(self.words)


class _Texts:
    """Earlier texts of one speaker."""

    def __init__(self) -> None:
        self._sequences: set[tuple[str, ...]] = set()
        self._short: set[tuple[str, ...]] = set()

    def contain(self, text: _Words) -> bool:
        """Return whether most of `text` was said before."""
        if len(text.sequences) < FEW_SEQUENCES:
            return len(text.words) >= FEWEST_WORDS and text.words in self._short
        again = sum(sequence in self._sequences for sequence in text.sequences)
        return again >= SAME * len(text.sequences)

    def add(self, text: _Words) -> None:
        self._sequences.update(text.sequences)
        if len(text.sequences) < FEW_SEQUENCES:
            self._short.add(text.words)


def role_of(fault: str) -> str:
    """Return the role that a recorded fault belongs to; empty if it names none."""
    role = fault.partition(":")[0]
    return role if role in ROLES else ""
