"""What a policy of plain code has before it: the person's lines, what was told in them, and what is felt."""

from __future__ import annotations

import random
from collections.abc import Callable

from mapo.domains.empathy.reading import data, feelings, named_feelings
from mapo.models.chat import Request
from mapo.scenarios.scenario import Scenario
from mapo.scripted import policies as puppets

Speak = Callable[["Talk"], str]


class Talk(puppets.Talk):
    """Also knows the feeling of the moment."""

    def __init__(self, scenario: Scenario, request: Request, rng: random.Random, used: puppets.Used) -> None:
        super().__init__(scenario, request, rng, used, data("sentences.toml"))

    def feeling(self) -> str:
        """The feeling of the moment, by the first name for it."""
        shown = named_feelings(self.said)
        canonical = next(iter(shown), self.beats[-1].cues.get("feeling", "") if self.beats else "")
        return feelings()[canonical]["names"][0] if canonical else ""
