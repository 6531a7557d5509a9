"""From a training config and rates to the routes of a step's dialogues.

The order is that of `play`: the start form where it is asked for, then turn by turn the policy and the judge
and, if the dialogue goes on, the director and the user. Everything random is drawn here, so that the same
dialogues can be played through with more or fewer replicas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mapo.config import Config
from mapo.errors import InputError
from mapo.planning.rates import Call, Rates, ServerRates
from mapo.planning.simulate import Route, Server, Visit

AROUND = ("judge", "director", "user")
POLICY = "policy"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a training config says about a step. `requests` is how many calls at once an address gets;
    `agents` whether models play the roles around the policy."""

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


def shape_of(config: Config) -> Shape:
    """Of all processes together: each has its own places for dialogues and its own limits."""
    rollout, roles, n = config.rollout, config.roles, config.run.processes
    a_minute = roles.requests_per_minute, roles.tokens_per_minute
    return Shape(
        scenarios=rollout.scenarios,
        siblings=rollout.siblings,
        max_turns=rollout.max_turns,
        max_tokens=rollout.max_tokens,
        at_once=n * rollout.at_once,
        requests=n * roles.requests,
        agents=roles.agents == "llm",
        context=rollout.context,
        steps=config.optim.steps,
        requests_per_minute=n * a_minute[0] if a_minute[0] else None,
        tokens_per_minute=n * a_minute[1] if a_minute[1] else None,
    )


def roles_of(shape: Shape, rates: Rates) -> list[str]:
    """Whose calls there are."""
    if not shape.agents:
        return [POLICY]
    return [POLICY, *AROUND, *(["start"] if rates.calls.start else [])]


def check(shape: Shape, rates: Rates) -> None:
    """Refuse rates that do not say enough for this training."""
    for role in roles_of(shape, rates):
        call: Call | None = getattr(rates.calls, role)
        if call is None:
            raise InputError(
                f"no [calls.{role}]", where="rates", fix="`mapo plan --example` explains every key"
            )
        name = rates.server_of(role)
        if call.seconds is None and rates.servers[name].tokens_per_s is None:
            raise InputError(
                f"nothing says how long a call of the {role} takes",
                where="rates",
                fix=f"Give servers.{name}.tokens_per_s, or calls.{role}.seconds",
            )
    if rates.calls.policy.output > shape.max_tokens:
        raise InputError(
            f"calls.policy.output is {rates.calls.policy.output:g}, rollout.max_tokens {shape.max_tokens}",
            where="rates",
            fix="Replies cannot be longer than their limit: change one of them",
        )


def server_names(shape: Shape, rates: Rates) -> list[str]:
    """The servers that are called, the policy's first."""
    return list(dict.fromkeys(rates.server_of(role) for role in roles_of(shape, rates)))


def servers_of(shape: Shape, rates: Rates, replicas: dict[str, int]) -> list[Server]:
    """With so many replicas. Nobody but the policy gets more calls at once than `roles.requests`."""
    found = []
    for name in server_names(shape, rates):
        given = rates.servers[name]
        slots = replicas[name] * given.streams
        if name != rates.server_of(POLICY):
            slots = min(slots, shape.requests)
        full = math.inf if given.full is None else replicas[name] * given.full
        found.append(Server(name, slots, full))
    return found


def draw(shape: Shape, rates: Rates, seed: int) -> list[Route]:
    """The dialogues of one step, siblings side by side as `play_all` gets them."""
    return _Drawing(shape, rates, np.random.default_rng(seed)).routes()


class _Drawing:
    def __init__(self, shape: Shape, rates: Rates, random: np.random.Generator) -> None:
        self.shape, self.rates, self.random = shape, rates, random
        names = server_names(shape, rates)
        roles = roles_of(shape, rates)
        self.calls: dict[str, Call] = {role: getattr(rates.calls, role) for role in roles}
        self.places = {role: names.index(rates.server_of(role)) for role in roles}
        self.servers: dict[str, ServerRates] = {role: rates.servers[rates.server_of(role)] for role in roles}

    def routes(self) -> list[Route]:
        found: list[Route] = []
        for _ in range(self.shape.scenarios):
            leader = len(found)
            head = self.visits("start", 1) if "start" in self.calls else []
            found.append(self.talk(head))
            found += [self.talk(follows=leader if head else None) for _ in range(self.shape.siblings - 1)]
        return found

    def talk(self, head: Sequence[Visit] = (), follows: int | None = None) -> Route:
        """The calls of a dialogue, turn by turn."""
        given = self.rates.dialogues.turns
        counts = [self.shape.max_turns] if given is None else [given] if isinstance(given, int) else given
        turns = min(self.shape.max_turns, int(self.random.choice(counts)))
        visits = list(head)
        for turn in range(1, turns + 1):
            visits += self.visits(POLICY, turn)
            if self.shape.agents:
                visits += self.visits("judge", turn)
            if self.shape.agents and turn < turns:
                visits += [*self.visits("director", turn), *self.visits("user", turn)]
        return Route(tuple(visits), turns, len(head), follows)

    def visits(self, role: str, turn: int) -> list[Visit]:
        """The call, and perhaps the same again."""
        again = self.calls[role].again
        whole = int(again)
        return [self.visit(role, turn) for _ in range(1 + whole + (self.random.random() < again - whole))]

    def visit(self, role: str, turn: int) -> Visit:
        call, server = self.calls[role], self.servers[role]
        factor = self.factor(call.spread)
        output = call.output * factor
        if role == POLICY:
            output = min(output, float(self.shape.max_tokens))
        prompt = call.prompt + call.growth * (turn - 1)
        if call.seconds is not None:
            work = call.seconds * factor
        else:
            fresh = prompt * (1 - call.cached)
            work = server.latency + output / (server.tokens_per_s or math.inf)
            work += fresh / server.prefill_per_s if server.prefill_per_s else 0.0
        return Visit(role, self.places[role], work, prompt, prompt * call.cached, output)

    def factor(self, spread: float) -> float:
        """Around 1, with that standard deviation, never negative: log-normal, with a tail of slow calls."""
        if not spread:
            return 1.0
        sigma = math.sqrt(math.log1p(spread**2))
        return math.exp(self.random.normal(-(sigma**2) / 2, sigma))
