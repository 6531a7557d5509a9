"""The context of the tutoring domain's scripted policies."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files

from mapo.models.chat import Request
from mapo.scenarios.scenario import Scenario
from mapo.scripted.policies import Bank, PolicyContext, Used

Speak = Callable[["TutoringContext"], str]


@lru_cache
def sentences() -> Bank:
    """Return the sentence templates of the scripted policies."""
    folder = files("mapo") / "domains" / "tutoring"
    return tomllib.loads((folder / "sentences.toml").read_text(encoding="utf-8"))


class TutoringContext(PolicyContext):
    """A policy context that also knows what each beat shows about the learner."""

    def __init__(self, scenario: Scenario, request: Request, rng: random.Random, used: Used) -> None:
        super().__init__(scenario, request, rng, used, sentences())

    def earlier(self, *kinds: str) -> str:
        """Return a particular of an earlier beat that shows one of `kinds`, or an empty string."""
        terms = [term for beat in self.beats[:-1] if beat.cues["shows"] in kinds for term in beat.about]
        return self.rng.choice(terms) if terms else ""

    def answer(self) -> str:
        """Return the answer that could simply be given away."""
        answers = self.cues("answer")
        return answers[-1] if answers else "it is in the book"
