"""What a policy of plain code has before it: the person's lines, and what was told in them."""

from __future__ import annotations

import random
from collections.abc import Callable

from mapo.domains.empathy.reading import data, feelings, named_feelings, words
from mapo.sandbox.chat import Request
from mapo.sandbox.scenario import Beat, Scenario

Speak = Callable[["Talk"], str]


class Talk:
    """What a policy has before it: the person's lines so far, and what was told in them."""

    def __init__(
        self, scenario: Scenario, request: Request, rng: random.Random, used: dict[str, list[str]]
    ) -> None:
        self.lines = [m.content for m in request.messages if m.role == "user"]
        self.turn = len(self.lines)
        self.rng = rng
        beat_of = {line: beat for beat in scenario.beats for line in beat.says}
        self.beats: list[Beat] = []
        for line in self.lines:
            if (beat := beat_of.get(line)) and beat not in self.beats:
                self.beats.append(beat)
        self.met = self.lines[-1] in beat_of
        self.used = used

    def phrase(self, kind: str, **slots: str) -> str:
        """A sentence of that kind, each in turn in an order of its own."""
        bank = data("sentences.toml")[kind]
        order = self.used.setdefault(kind, self.rng.sample(bank, len(bank)))
        order.append(order.pop(0))
        return order[-1].format(**slots)

    @property
    def said(self) -> str:
        return self.lines[-1]

    def told(self, kind: str) -> list[str]:
        """The deeds, wishes or values told so far, as one would say them back."""
        return [_you(b.cues[kind]) for b in self.beats if kind in b.cues]

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

    def feeling(self) -> str:
        """The feeling of the moment, by the first name for it."""
        shown = named_feelings(self.said)
        canonical = next(iter(shown), self.beats[-1].cues.get("feeling", "") if self.beats else "")
        return feelings()[canonical]["names"][0] if canonical else ""


def longest(line: str) -> tuple[str, ...]:
    return tuple(sorted(set(words(line)), key=lambda w: (-len(w), w))[:3])


def _you(phrase: str) -> str:
    """The person's words, turned round."""
    swap = {
        "i": "you",
        "my": "your",
        "me": "you",
        "myself": "yourself",
        "mine": "yours",
        "am": "are",
        "i'm": "you're",
    }
    return " ".join(swap.get(word.lower(), word) for word in phrase.split())
