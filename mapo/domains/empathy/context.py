"""The context of the empathy domain's scripted policies."""

from __future__ import annotations

import random
from collections.abc import Callable

from mapo.domains.empathy.reading import data, feelings, named_feelings
from mapo.models.chat import Request
from mapo.scenarios.scenario import Scenario
from mapo.scripted.policies import PolicyContext, Used

Speak = Callable[["EmpathyContext"], str]


class EmpathyContext(PolicyContext):
    """A policy context that also knows the current feeling."""

    def __init__(self, scenario: Scenario, request: Request, rng: random.Random, used: Used) -> None:
        super().__init__(scenario, request, rng, used, data("sentences.toml"))

    def feeling(self) -> str:
        """Return the current feeling by its first name, or an empty string."""
        shown = named_feelings(self.last_message)
        canonical = next(iter(shown), self.beats[-1].cues.get("feeling", "") if self.beats else "")
        return feelings()[canonical]["names"][0] if canonical else ""
