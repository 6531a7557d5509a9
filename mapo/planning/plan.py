"""The plan: a step's time, where it goes, and the fewest replicas that do not hold the policy up.

Several steps are drawn and simulated, with the replicas as given and, the same dialogues again, with others.
The floor is the step when no call to the roles around the policy ever waits or slows down: more replicas
of them cannot help. Recommended are the fewest with which a step is within 10 % of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mapo.planning.bounds import bounds
from mapo.planning.load import POLICY, Shape, check, draw, roles_of, server_names, servers_of
from mapo.planning.rates import Rates
from mapo.planning.simulate import Outcome, Route, simulate

NEAR = 1.1
"""A step within this of the floor is as good as there."""
Replicas = dict[str, int]


@dataclass(frozen=True, slots=True)
class RolePlan:
    """A role in one step. `seconds_alone` is a call on an idle server, `seconds` a call as it is;
    `share` its part of all the time that dialogues spend, waiting in line included."""

    role: str
    server: str
    calls: float
    prompt: float
    cached: float
    output: float
    seconds_alone: float
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """`bound_s` is what its work alone takes; `utilisation` that over the rollout. `recommended` is None for
    the policy's server: that is the one to be kept busy."""

    server: str
    roles: tuple[str, ...]
    replicas: int
    utilisation: float
    bound_s: float
    recommended: int | None


@dataclass(frozen=True, slots=True)
class Try:
    """A step with that many replicas of `server`, and the others as recommended."""

    server: str
    replicas: int
    step_s: float
    over_floor: float


@dataclass(frozen=True, slots=True)
class Plan:
    shape: Shape
    step_s: float
    rollout_s: float
    rollout_range_s: tuple[float, float]
    update_s: float
    limits_s: float
    turns: float
    bottleneck: str
    bounds_s: dict[str, float]
    roles: tuple[RolePlan, ...]
    servers: tuple[ServerPlan, ...]
    floor_s: float
    floor_bottleneck: str
    recommended_s: float
    tries: tuple[Try, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {"schema": "mapo.plan/1", **asdict(self)}


def make_plan(shape: Shape, rates: Rates, *, draws: int = 5, seed: int = 0) -> Plan:
    """Everything there is to say; `draws` steps are simulated and averaged."""
    check(shape, rates)
    steps = _Steps(shape, rates, [draw(shape, rates, seed + i) for i in range(draws)])
    names = server_names(shape, rates)
    given = {name: rates.servers[name].replicas for name in names}
    outcomes = steps.outcomes(given)
    rollouts = [outcome.seconds for outcome in outcomes]
    least = steps.bounds_s(given)
    plenty = {name: steps.plenty(name) if name != names[0] else given[name] for name in names}
    best = recommend(steps, plenty, names[1:])
    return Plan(
        shape=shape,
        step_s=steps.step_s(given),
        rollout_s=_mean(rollouts),
        rollout_range_s=(min(rollouts), max(rollouts)),
        update_s=steps.update_s,
        limits_s=steps.limits_s,
        turns=steps.turns,
        bottleneck=_largest(least),
        bounds_s=least,
        roles=tuple(steps.role_plans(outcomes)),
        servers=tuple(
            ServerPlan(
                name,
                tuple(role for role in roles_of(shape, rates) if rates.server_of(role) == name),
                given[name],
                least[name] / _mean(rollouts),
                least[name],
                best[name] if name != names[0] else None,
            )
            for name in names
        ),
        floor_s=steps.step_s(plenty),
        floor_bottleneck=_largest(steps.bounds_s(plenty)),
        recommended_s=steps.step_s(best),
        tries=tuple(_tries(steps, best, plenty, names[1:])),
        notes=tuple(_notes(shape, rates, steps)),
    )


class _Steps:
    """The same few steps, played with any number of replicas."""

    def __init__(self, shape: Shape, rates: Rates, routes: Sequence[Sequence[Route]]) -> None:
        self.shape, self.rates, self.routes = shape, rates, routes
        self.update_s = self._update_s()
        self.limits_s = self._limits_s()
        self._known: dict[tuple[int, ...], list[Outcome]] = {}

    def outcomes(self, replicas: Replicas) -> list[Outcome]:
        key = tuple(replicas.values())
        if key not in self._known:
            servers = servers_of(self.shape, self.rates, replicas)
            self._known[key] = [simulate(routes, servers, self.shape.at_once) for routes in self.routes]
        return self._known[key]

    def step_s(self, replicas: Replicas) -> float:
        rollout = _mean([outcome.seconds for outcome in self.outcomes(replicas)])
        return max(rollout + self.update_s, self.limits_s)

    def bounds_s(self, replicas: Replicas) -> dict[str, float]:
        servers = servers_of(self.shape, self.rates, replicas)
        found = [bounds(routes, servers, self.shape.at_once) for routes in self.routes]
        return {name: _mean([each[name] for each in found]) for name in found[0]}

    def plenty(self, name: str) -> int:
        """As many replicas as could ever be of use: a dialogue has one call at a time."""
        given = self.rates.servers[name]
        a_replica = min(given.streams, math.inf if given.full is None else given.full)
        return max(1, math.ceil(min(self.shape.at_once, self.shape.dialogues) / a_replica))

    def role_plans(self, outcomes: Sequence[Outcome]) -> list[RolePlan]:
        n = len(self.routes)
        stays = sum(tally.stay for outcome in outcomes for tally in outcome.roles.values())
        found = []
        for role in roles_of(self.shape, self.rates):
            visits = [v for routes in self.routes for r in routes for v in r.visits if v.role == role]
            stay = sum(outcome.roles[role].stay for outcome in outcomes)
            found.append(
                RolePlan(
                    role,
                    self.rates.server_of(role),
                    calls=len(visits) / n,
                    prompt=sum(v.prompt for v in visits) / n,
                    cached=sum(v.cached for v in visits) / n,
                    output=sum(v.output for v in visits) / n,
                    seconds_alone=_mean([v.work for v in visits]),
                    seconds=stay / max(1, len(visits)),
                    share=stay / stays,
                )
            )
        return found

    @property
    def turns(self) -> float:
        """Of a dialogue, on average."""
        return _mean([route.turns for routes in self.routes for route in routes])

    @property
    def longest(self) -> float:
        return max(self._tokens())

    def _tokens(self) -> list[float]:
        """Of each dialogue: the last prompt of the policy, and the reply to it."""
        last = [
            [v for v in route.visits if v.role == POLICY][-1] for routes in self.routes for route in routes
        ]
        return [visit.prompt + visit.output for visit in last]

    def _update_s(self) -> float:
        """A dialogue is trained as one row."""
        given = self.rates.update
        if given.seconds is not None:
            return given.seconds
        return sum(self._tokens()) / len(self.routes) / (given.tokens_per_s or math.inf)

    def _limits_s(self) -> float:
        """What requests and tokens a minute alone make of a step; each address has its own."""
        shape, most = self.shape, 0.0
        for place in range(1, len(server_names(shape, self.rates))):  # the policy's own server has none
            visits = [v for routes in self.routes for r in routes for v in r.visits if v.server == place]
            tokens = sum(v.prompt + v.output for v in visits)
            for used, limit in (
                (len(visits), shape.requests_per_minute),
                (tokens, shape.tokens_per_minute),
            ):
                most = max(most, 60 * used / len(self.routes) / limit if limit else 0.0)
        return most


def recommend(steps: _Steps, plenty: Replicas, names: Sequence[str]) -> Replicas:
    """The fewest replicas of `names` with which a step is within NEAR of one with plenty of them.

    Each alone first, the others in plenty; then, as several scarce servers add up, one more where most is
    used until it is enough; then one less where that still is.
    """
    enough = NEAR * steps.step_s(plenty)
    found = dict(plenty)
    for name in names:
        found[name] = _fewest(steps, plenty, name, enough)
    while steps.step_s(found) > enough:
        used = steps.bounds_s(found)
        found[_largest({name: used[name] for name in names if found[name] < plenty[name]})] += 1
    for name in names:
        while found[name] > 1 and steps.step_s({**found, name: found[name] - 1}) <= enough:
            found[name] -= 1
    return found


def _fewest(steps: _Steps, plenty: Replicas, name: str, enough: float) -> int:
    low, high = 1, plenty[name]
    while low < high:
        middle = (low + high) // 2
        if steps.step_s({**plenty, name: middle}) <= enough:
            high = middle
        else:
            low = middle + 1
    return low


def _tries(steps: _Steps, best: Replicas, plenty: Replicas, names: Sequence[str]) -> list[Try]:
    floor = steps.step_s(plenty)
    found = []
    for name in names:
        n = best[name]
        for replicas in sorted({1, max(1, n // 2), max(1, n - 1), n, n + 1, 2 * n}):
            seconds = steps.step_s({**best, name: replicas})
            found.append(Try(name, replicas, seconds, seconds / floor))
    return found


def _notes(shape: Shape, rates: Rates, steps: _Steps) -> list[str]:
    found = []
    at_once = min(shape.at_once, shape.dialogues)
    if shape.agents and shape.requests < at_once:
        found.append(
            f"roles.requests = {shape.requests} calls at once to one address for {at_once} dialogues: "
            "raise it, or more replicas are of no use"
        )
    if shape.at_once < shape.dialogues:
        found.append(
            f"rollout.at_once = {shape.at_once} of {shape.dialogues} dialogues: the rest begin as others end"
        )
    if rates.dialogues.turns is None:
        found.append(f"no dialogues.turns given: every dialogue is taken to last {shape.max_turns} turns")
    if shape.context is not None and steps.longest > shape.context:
        found.append(
            f"dialogues grow to {steps.longest:.0f} tokens, rollout.context is {shape.context}: "
            "those will end earlier than planned here"
        )
    if not shape.agents:
        found.append("roles.agents = scripted: plain code plays the roles, in no time")
    if steps.limits_s:
        found.append(f"requests and tokens a minute alone make a step {steps.limits_s:.0f} s")
    return found


def _largest(numbers: dict[str, float]) -> str:
    return max(numbers, key=lambda name: numbers[name])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
