"""What a policy of plain code has before it: the learner's lines, and what was told in them."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files

from mapo.models.chat import Request
from mapo.scenarios.scenario import Scenario
from mapo.scripted import policies as puppets

Speak = Callable[["Talk"], str]


@lru_cache
def sentences() -> puppets.Bank:
    folder = files("mapo") / "domains" / "tutoring"
    return tomllib.loads((folder / "sentences.toml").read_text(encoding="utf-8"))


class Talk(puppets.Talk):
    """Also knows which moments showed what."""

    def __init__(self, scenario: Scenario, request: Request, rng: random.Random, used: puppets.Used) -> None:
        super().__init__(scenario, request, rng, used, sentences())

    def earlier(self, *kinds: str) -> str:
        """A particular of an earlier moment that showed one of these."""
        terms = [term for beat in self.beats[:-1] if beat.cues["shows"] in kinds for term in beat.about]
        return self.rng.choice(terms) if terms else ""

    def answer(self) -> str:
        """What could simply be said."""
        answers = self.told("answer")
        return answers[-1] if answers else "it is in the book"
