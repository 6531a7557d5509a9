"""The work of one training step, per role: calls, tokens and seconds on an idle server.

The calls are those of `mapo.sandbox.rollout.play`: the judge's start form where start levels are unknown
(once per scenario), then in every turn the policy and the judge and, unless it is the last turn, the director
and the user. All numbers are expected values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mapo.config import Config
from mapo.errors import InputError
from mapo.planning.rates import CallRates, Rates

AGENT_ROLES = ("judge", "director", "user")
POLICY = "policy"
START = "start"


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a training step. `requests` is the number of concurrent calls to one address; `agents` is
    whether models play user, director and judge."""

    scenarios: int
    siblings: int
    max_turns: int
    max_tokens: int
    at_once: int
    requests: int
    agents: bool
    context: int | None = None
    steps: int = 1
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    @property
    def dialogues(self) -> int:
        return self.scenarios * self.siblings

    @property
    def concurrent(self) -> int:
        """The number of dialogues in progress at the same time."""
        return min(self.at_once, self.dialogues)


def shape_of(config: Config) -> Shape:
    """Return the shape of a step over all processes. Each process plays its own dialogues; limits are
    shared."""
    rollout, roles, n = config.rollout, config.roles, config.run.processes
    return Shape(
        scenarios=rollout.scenarios,
        siblings=rollout.siblings,
        max_turns=rollout.max_turns,
        max_tokens=rollout.max_tokens,
        at_once=n * rollout.at_once,
        requests=roles.requests,
        agents=roles.agents == "llm",
        context=rollout.context,
        steps=config.optim.steps,
        requests_per_minute=roles.requests_per_minute,
        tokens_per_minute=roles.tokens_per_minute,
    )


def roles_of(shape: Shape, rates: Rates) -> list[str]:
    """Return the roles that make calls."""
    if not shape.agents:
        return [POLICY]
    return [POLICY, *AGENT_ROLES, *([START] if rates.calls.start else [])]


def check(shape: Shape, rates: Rates) -> None:
    """Raise InputError if the rates are incomplete for this training."""
    for role in roles_of(shape, rates):
        call: CallRates | None = getattr(rates.calls, role)
        if call is None:
            raise InputError(
                f"there is no [calls.{role}]", where="rates", fix="`mapo plan --example` explains every key"
            )
        name = rates.server_of(role)
        if call.seconds is None and rates.servers[name].tokens_per_s is None:
            raise InputError(
                f"the duration of a {role} call is not set",
                where="rates",
                fix=f"Set servers.{name}.tokens_per_s or calls.{role}.seconds",
            )
    if rates.calls.policy.output > shape.max_tokens:
        raise InputError(
            f"calls.policy.output is {rates.calls.policy.output:g} but rollout.max_tokens is "
            f"{shape.max_tokens}",
            where="rates",
            fix="Replies cannot be longer than that limit; change one of the two",
        )


def server_names(shape: Shape, rates: Rates) -> list[str]:
    """Return the servers that get calls, the policy's first."""
    return list(dict.fromkeys(rates.server_of(role) for role in roles_of(shape, rates)))


def lengths(shape: Shape, rates: Rates) -> list[int]:
    """Return the dialogue lengths in turns, all equally likely."""
    turns = rates.dialogues.turns
    if turns is None:
        return [shape.max_turns]
    return [min(shape.max_turns, n) for n in ([turns] if isinstance(turns, int) else turns)]


@dataclass(frozen=True, slots=True)
class Demand:
    """The calls of one role: their number, their tokens, and their seconds on an idle server."""

    calls: float = 0.0
    prompt: float = 0.0
    cached: float = 0.0
    output: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Demand) -> Demand:
        return Demand(
            self.calls + other.calls,
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.output + other.output,
            self.seconds + other.seconds,
        )

    def __mul__(self, n: float) -> Demand:
        return Demand(self.calls * n, self.prompt * n, self.cached * n, self.output * n, self.seconds * n)


def dialogue_demand(rates: Rates, role: str, turns: int) -> Demand:
    """Return the demand of a dialogue of `turns` turns on a role; for START, that of its scenario."""
    calls = 1 if role == START else turns if role in (POLICY, "judge") else turns - 1
    return sum((_turn_demand(rates, role, turn) for turn in range(calls)), Demand())


def _turn_demand(rates: Rates, role: str, turn: int) -> Demand:
    """Return the demand of one turn, counted from 0: the call and its expected repetitions."""
    call: CallRates = getattr(rates.calls, role)
    server = rates.servers[rates.server_of(role)]
    prompt = call.prompt + call.growth * turn
    seconds = call.seconds
    if seconds is None:
        seconds = server.latency + call.output / (server.tokens_per_s or math.inf)
        seconds += prompt * (1 - call.cached) / (server.prefill_per_s or math.inf)
    return Demand(1.0, prompt, prompt * call.cached, call.output, seconds) * (1 + call.again)


def step_demand(shape: Shape, rates: Rates, role: str) -> Demand:
    """Return the demand of a step on a role."""
    if role == START:
        return dialogue_demand(rates, role, 1) * shape.scenarios
    turn_counts = lengths(shape, rates)
    total = sum((dialogue_demand(rates, role, turns) for turns in turn_counts), Demand())
    return total * (shape.dialogues / len(turn_counts))


def longest_dialogue_s(shape: Shape, rates: Rates) -> float:
    """Return the expected seconds of the longest dialogue of a step, its calls one after another.

    With n equally likely lengths in ascending order, the longest of D dialogues is the i-th (from 1) with
    probability (i / n)^D - ((i - 1) / n)^D.
    """
    roles = roles_of(shape, rates)
    seconds_by_turns = {
        turns: sum(dialogue_demand(rates, role, turns).seconds for role in roles)
        for turns in set(lengths(shape, rates))
    }
    ordered = sorted(seconds_by_turns[turns] for turns in lengths(shape, rates))
    n, dialogues = len(ordered), shape.dialogues
    return sum(
        seconds * ((i / n) ** dialogues - ((i - 1) / n) ** dialogues)
        for i, seconds in enumerate(ordered, start=1)
    )


def row_tokens(rates: Rates, turns: int) -> float:
    """Return the tokens of a dialogue as one training row: the policy's last prompt and its reply."""
    call = rates.calls.policy
    return call.prompt + call.growth * (turns - 1) + call.output
