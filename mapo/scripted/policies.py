"""Policies of plain code: what one has before it when it speaks, and how it becomes a policy.

A domain's policies are functions from a `Talk` to a reply (`mapo/domains/*/policies.py`): an honest one that
knows what was told so far (its annotations, never what is still hidden), and many that only pretend, to see
what its scripted judge falls for.
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
"""What a policy has said or done in this dialogue, by kind."""

Bank = Mapping[str, Sequence[str]]
"""Sentences with gaps, by what they do."""


class Talk:
    """What a policy has before it: the person's lines so far, and what was told in them."""

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
        """A sentence of that kind, each in turn in an order of its own."""
        bank = list(self.bank[kind])
        order = self.used.setdefault(kind, self.rng.sample(bank, len(bank)))
        order.append(order.pop(0))
        return order[-1].format(**slots)

    @property
    def said(self) -> str:
        return self.lines[-1]

    def told(self, kind: str) -> list[str]:
        """What the cues of that kind say so far (deeds, wishes), as one would say it back."""
        return [turned_round(b.cues[kind]) for b in self.beats if kind in b.cues]

    def once(self, kind: str) -> str:
        """The latest of them that was not taken up before, or nothing."""
        done = self.used.setdefault(f"done {kind}", [])
        fresh = [phrase for phrase in self.told(kind) if phrase not in done]
        done += fresh[-1:]
        return fresh[-1] if fresh else ""

    def about(self) -> str:
        """A particular of the moment: in the last line if one is there."""
        terms = self.beats[-1].about if self.beats else longest(self.lines[0])
        here = [term for term in terms if term.lower() in self.said.lower()]
        return self.rng.choice(here or list(terms))


def longest(line: str) -> tuple[str, ...]:
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


def turned_round(phrase: str) -> str:
    """The person's words, as said to them."""
    return " ".join(_SWAP.get(word.lower(), word) for word in phrase.split())


T = TypeVar("T", bound=Talk)
Making = Callable[[Scenario, Request, random.Random, Used], T]


class Puppet:
    """A function as a Chat, for one dialogue."""

    def __init__(self, name: str, speak: Callable[[T], str], talk: Making[T], scenario: Scenario, seed: int):
        self.name = f"scripted:{name}"
        self.rng = random.Random(f"{name}/{scenario.id}/{seed}")  # noqa: S311 (seeded on purpose)
        used: Used = {}
        self.say: Callable[[Request], str] = lambda request: speak(talk(scenario, request, self.rng, used))

    async def reply(self, request: Request) -> Answer:
        return Answer(Reply(self.say(request)))


def puppet_policy(name: str, policies: Mapping[str, Callable[[T], str]], talk: Making[T]) -> Policy:
    """The policy of that name; `talk` makes what it has before it."""
    if name not in policies:
        raise InputError(f"no scripted policy '{name}'", fix=f"Use one of: {', '.join(policies)}")
    return lambda job: Puppet(name, policies[name], talk, job.scenario, job.seed)
