"""Scripted policies: their context, and how a function becomes a policy.

A domain's scripted policies are functions from a `PolicyContext` to a reply (`mapo/domains/*/policies.py`):
an honest one that knows the annotations of what has been told so far (never what is still hidden), and
several that only pretend to help, to test the scripted judge.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from mapo.errors import InputError
from mapo.models.chat import Answer, Request
from mapo.sandbox.cast import Policy
from mapo.scenarios.scenario import Beat, Scenario
from mapo.scripted.reading import words
from mapo.types import Reply

Used = dict[str, list[str]]
"""What a policy has already used in this dialogue, by kind."""

Bank = Mapping[str, Sequence[str]]
"""Sentence templates by kind."""


class PolicyContext:
    """What a scripted policy knows when it replies: the user's messages and the story beats behind them.

    `turn` is the number of the current turn, `beats` are the beats told so far, and `met` is True if the last
    message tells one.
    """

    def __init__(
        self, scenario: Scenario, request: Request, rng: random.Random, used: Used, bank: Bank
    ) -> None:
        self.lines = [m.content for m in request.messages if m.role == "user"]
        self.turn = len(self.lines)
        self.rng = rng
        self.bank = bank
        beat_of = {line: beat for beat in scenario.beats for line in beat.says}
        self.beats: list[Beat] = []
        for line in self.lines:
            if (beat := beat_of.get(line)) and beat not in self.beats:
                self.beats.append(beat)
        self.met = self.lines[-1] in beat_of
        self.used = used

    def phrase(self, kind: str, **slots: str) -> str:
        """Return a sentence of that kind; all are used, in random order, before one is repeated."""
        bank = list(self.bank[kind])
        order = self.used.setdefault(kind, self.rng.sample(bank, len(bank)))
        order.append(order.pop(0))
        return order[-1].format(**slots)

    @property
    def last_message(self) -> str:
        """The latest user message."""
        return self.lines[-1]

    def cues(self, kind: str) -> list[str]:
        """Return the cues of that kind told so far (deeds, wishes), rephrased to address the person."""
        return [second_person(b.cues[kind]) for b in self.beats if kind in b.cues]

    def once(self, kind: str) -> str:
        """Return the latest cue of that kind that was not used before, or an empty string."""
        done = self.used.setdefault(f"done {kind}", [])
        fresh = [phrase for phrase in self.cues(kind) if phrase not in done]
        done += fresh[-1:]
        return fresh[-1] if fresh else ""

    def about(self) -> str:
        """Return a particular of the current beat, preferably one in the last message."""
        terms = self.beats[-1].about if self.beats else longest(self.lines[0])
        in_message = [term for term in terms if term.lower() in self.last_message.lower()]
        return self.rng.choice(in_message or list(terms))


def longest(line: str) -> tuple[str, ...]:
    """Return the three longest words of a line."""
    return tuple(sorted(set(words(line)), key=lambda w: (-len(w), w))[:3])


_SWAP = {
    "i": "you",
    "my": "your",
    "me": "you",
    "myself": "yourself",
    "mine": "yours",
    "am": "are",
    "i'm": "you're",
}


def second_person(phrase: str) -> str:
    """Rephrase the person's words in the second person."""
    return " ".join(_SWAP.get(word.lower(), word) for word in phrase.split())


T = TypeVar("T", bound=PolicyContext)
MakeContext = Callable[[Scenario, Request, random.Random, Used], T]


class ScriptedPolicy:
    """A policy function as a Chat, for one dialogue."""

    def __init__(
        self, name: str, speak: Callable[[T], str], context: MakeContext[T], scenario: Scenario, seed: int
    ):
        self.name = f"scripted:{name}"
        self.rng = random.Random(f"{name}/{scenario.id}/{seed}")  # noqa: S311 (seeded on purpose)
        used: Used = {}
        self.say: Callable[[Request], str] = lambda request: speak(context(scenario, request, self.rng, used))

    async def reply(self, request: Request) -> Answer:
        return Answer(Reply(self.say(request)))


def make_policy(name: str, policies: Mapping[str, Callable[[T], str]], context: MakeContext[T]) -> Policy:
    """Return the policy of that name; `context` creates the context of each reply."""
    if name not in policies:
        raise InputError(f"there is no scripted policy '{name}'", fix=f"Use one of: {', '.join(policies)}")
    return lambda job: ScriptedPolicy(name, policies[name], context, job.scenario, job.seed)
