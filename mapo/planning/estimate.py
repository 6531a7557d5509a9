"""What a run will call at most, estimated before it starts: calls, tokens and, where limits are set, time.

Token counts use the typical sizes of `rates.EXAMPLE`, so they are orders of magnitude. `mapo plan` computes
times from measured rates.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from mapo.config import Config
from mapo.planning.demand import AGENT_ROLES, POLICY, Demand, dialogue_demand
from mapo.planning.rates import EXAMPLE, Rates, read_rates
from mapo.players.casting import every_model
from mapo.show.progress import clock
from mapo.text import counted


@dataclass(frozen=True, slots=True)
class Estimate:
    """The most that a run will do. `text` renders it; limits per minute give a lower bound on its time."""

    dialogues: int = 0
    max_turns: int = 0
    calls: float = 0.0
    prompt: float = 0.0
    output: float = 0.0
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    @property
    def least_seconds(self) -> float | None:
        """The time that the rate limits imply; None if there are none."""
        times = []
        if self.requests_per_minute:
            times.append(60 * self.calls / self.requests_per_minute)
        if self.tokens_per_minute:
            times.append(60 * (self.prompt + self.output) / self.tokens_per_minute)
        return max(times, default=None)

    def __mul__(self, runs: int) -> Estimate:
        """Return the estimate of several equal runs."""
        return replace(
            self,
            dialogues=self.dialogues * runs,
            calls=self.calls * runs,
            prompt=self.prompt * runs,
            output=self.output * runs,
        )

    @property
    def text(self) -> str:
        parts = []
        if self.dialogues:
            turns = counted(self.max_turns, "turn")
            parts.append(f"{counted(self.dialogues, 'dialogue')} of up to {turns}")
        if self.calls:
            parts.append(f"up to {_rounded(self.calls, up=True)} model calls")
        if self.prompt or self.output:
            parts.append(
                f"about {_rounded(self.prompt)} prompt and {_rounded(self.output)} completion tokens"
            )
        if (seconds := self.least_seconds) is not None:
            parts.append(f"at least {clock(seconds)} at the configured rate limits")
        return ", ".join(parts)


def estimate_dialogues(
    dialogues: int,
    max_turns: int,
    roles: Sequence[str],
    *,
    judges: int = 1,
    starts: int = 0,
    max_tokens: int | None = None,
) -> Estimate:
    """Estimate dialogues in which the models of `roles` are called. `judges` is the size of the panel,
    `starts` the number of scenarios without start levels, for which a judge fills in the start form.

    `max_tokens` limits the policy's replies, if it is among the roles.
    """
    demand = Demand()
    for role in roles:
        one = dialogue_demand(_typical(), role, max_turns)
        if role == POLICY and max_tokens is not None:
            one = replace(one, output=min(one.output, float(one.calls * max_tokens)))
        demand += one * (judges if role == "judge" else 1)
    total = demand * dialogues
    if "judge" in roles:
        total += dialogue_demand(_typical(), "judge", 1) * (starts * judges)
    return Estimate(dialogues, max_turns, total.calls, total.prompt, total.output)


def estimate_judgements(judgements: float, turns: int) -> Estimate:
    """Estimate so many judgements of turns in dialogues of `turns` turns."""
    average = dialogue_demand(_typical(), "judge", max(1, turns)) * (1 / max(1, turns))
    total = average * judgements
    return Estimate(calls=total.calls, prompt=total.prompt, output=total.output)


def estimate_training(
    config: Config, scenarios: Mapping[str, int], *, done: int = 0, starts: int = 0
) -> Estimate:
    """Estimate a training run with so many scenarios per split, of which `done` steps are finished. `starts`
    of the scenarios have no start levels."""
    steps = config.optim.steps
    validations = sum(config.eval.due(step, steps) for step in range(done + 1, steps + 1))
    tests = 1 if done else 2
    rollouts = (steps - done) * config.rollout.scenarios * config.rollout.siblings
    evals = validations * scenarios["validation"] * config.eval.repeats
    evals += tests * scenarios["test"] * config.eval.test_repeats
    served = [role for role, spec in every_model(config).items() if spec.address is not None]
    roles = [role for role in AGENT_ROLES if any(name.startswith(role) for name in served)]
    judges = sum(name.startswith("judge ") for name in served) if config.roles.judging == "panel" else 1
    parts = [
        estimate_dialogues(count, turns, roles, judges=judges or 1, starts=forms)
        for count, turns, forms in (
            (rollouts, config.rollout.max_turns, starts),
            (evals, config.eval.max_turns or config.rollout.max_turns, 0),
        )
    ]
    if config.roles.ranker is not None:
        comparisons = (steps - done) * config.rollout.scenarios * config.rollout.max_turns
        parts.append(estimate_judgements(comparisons, config.rollout.siblings))
    if check := config.roles.check:
        turns = config.rollout.max_turns
        parts.append(estimate_judgements(rollouts * turns * check.share, turns))
    return Estimate(
        rollouts + evals,
        max((part.max_turns for part in parts if part.dialogues), default=0),
        sum(part.calls for part in parts),
        sum(part.prompt for part in parts),
        sum(part.output for part in parts),
        config.roles.requests_per_minute,
        config.roles.tokens_per_minute,
    )


@cache
def _typical() -> Rates:
    return read_rates(tomllib.loads(EXAMPLE), "the example rates")


def _rounded(number: float, *, up: bool = False) -> str:
    """Return a number with two significant digits: 950, 12,000, 3.1 M. `up`: never less than the number."""
    unit = 10 ** max(0, len(str(int(number))) - 2)
    number = math.ceil(number / unit) * unit if up else float(f"{number:.2g}")
    return f"{number / 1e6:,.3g} M" if number >= 1e6 else f"{number:,.0f}"
