"""Lower bounds of a step's time, and the fewest replicas with which the policy does not have to wait.

Three laws of closed queues bound a rollout from below, however its calls are scheduled:

- bottleneck: a server that does c seconds of work per second needs W / c seconds for W seconds of work;
- critical path: the calls of a dialogue come one after another, so the longest dialogue is a lower bound;
- concurrency: with m dialogues in progress at most, their total work takes at least its sum / m.

The estimate of the rollout is the largest bound. A real rollout comes close to it where one bound clearly
dominates and is longer where two are similar. The floor is the step with unlimited replicas of every server
but the policy's. The recommendation is the fewest replicas whose bound does not exceed that floor.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from mapo.planning.demand import (
    POLICY,
    Demand,
    Shape,
    check,
    lengths,
    longest_dialogue_s,
    roles_of,
    row_tokens,
    server_names,
    step_demand,
)
from mapo.planning.rates import Rates

LONGEST = "longest dialogue"
CONCURRENCY = "rollout.at_once"


@dataclass(frozen=True, slots=True)
class RolePlan:
    """A role's calls in one step. `seconds` is the time of one call on an idle server; `share` is the role's
    share of a dialogue's time if no call has to wait."""

    role: str
    server: str
    calls: float
    prompt: float
    cached: float
    output: float
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """A server's load in one step. `bound_s` is the time its work takes if nothing else limits it;
    `utilisation` is `bound_s` over the estimated rollout time, an upper bound. `recommended` is None for the
    policy's server."""

    server: str
    roles: tuple[str, ...]
    replicas: int
    utilisation: float
    bound_s: float
    recommended: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """Lower bounds in seconds: of a step as configured (`step_s`), with unlimited replicas (`floor_s`) and
    with the recommended ones (`recommended_s`). `limits_s` is the bound from rate limits."""

    shape: Shape
    step_s: float
    rollout_s: float
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
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {"schema": "mapo.plan/2", **asdict(self)}


def make_plan(shape: Shape, rates: Rates) -> Plan:
    """Compute all bounds of a step, and the recommendation."""
    check(shape, rates)
    names = server_names(shape, rates)
    demands = {role: step_demand(shape, rates, role) for role in roles_of(shape, rates)}
    served = {name: [role for role in demands if rates.server_of(role) == name] for name in names}
    work = {name: sum(demands[role].seconds for role in roles) for name, roles in served.items()}
    total = sum(work.values())
    update = _update_s(shape, rates)
    limits = _limits_s(shape, [sum((demands[r] for r in served[name]), Demand()) for name in names[1:]])

    def bounds_of(replicas: dict[str, float]) -> dict[str, float]:
        return {
            **{name: work[name] / _capacity(shape, rates, name, replicas[name]) for name in names},
            LONGEST: longest_dialogue_s(shape, rates),
            CONCURRENCY: total / shape.concurrent,
        }

    def step_of(bounds: dict[str, float]) -> float:
        return max(max(bounds.values()) + update, limits)

    configured = {name: float(rates.servers[name].replicas) for name in names}
    bounds = bounds_of(configured)
    unlimited = bounds_of({name: configured[name] if name == names[0] else math.inf for name in names})
    floor = step_of(unlimited)
    best = {name: _fewest(work[name], _per_replica(rates, name), floor - update) for name in names[1:]}
    rollout = max(bounds.values())
    return Plan(
        shape=shape,
        step_s=step_of(bounds),
        rollout_s=rollout,
        update_s=update,
        limits_s=limits,
        turns=sum(lengths(shape, rates)) / len(lengths(shape, rates)),
        bottleneck=_largest(bounds),
        bounds_s=bounds,
        roles=tuple(
            RolePlan(
                role,
                rates.server_of(role),
                calls=demand.calls,
                prompt=demand.prompt,
                cached=demand.cached,
                output=demand.output,
                seconds=demand.seconds / demand.calls if demand.calls else 0.0,
                share=demand.seconds / total,
            )
            for role, demand in demands.items()
        ),
        servers=tuple(
            ServerPlan(
                name,
                tuple(served[name]),
                rates.servers[name].replicas,
                bounds[name] / rollout,
                bounds[name],
                best.get(name),
            )
            for name in names
        ),
        floor_s=floor,
        floor_bottleneck=_largest(unlimited),
        recommended_s=step_of(bounds_of({**configured, **best})),
        notes=tuple(_notes(shape, rates, limits)),
    )


def _per_replica(rates: Rates, name: str) -> float:
    """Return the most seconds of work that one replica does per second."""
    server = rates.servers[name]
    return min(server.streams, math.inf if server.full is None else server.full)


def _capacity(shape: Shape, rates: Rates, name: str, replicas: float) -> float:
    """Return the seconds of work all replicas do per second. Only the policy's server gets more concurrent
    calls than `roles.requests`."""
    most = math.inf if name == rates.server_of(POLICY) else float(shape.requests)
    return min(replicas * _per_replica(rates, name), most)


def _fewest(work: float, per_replica: float, seconds: float) -> int:
    """Return the fewest replicas that do `work` within `seconds`."""
    return max(1, math.ceil(work / seconds / per_replica - 1e-9)) if work else 1


def _update_s(shape: Shape, rates: Rates) -> float:
    if rates.update.seconds is not None:
        return rates.update.seconds
    turn_counts = lengths(shape, rates)
    tokens = shape.dialogues * sum(row_tokens(rates, turns) for turns in turn_counts) / len(turn_counts)
    return tokens / (rates.update.tokens_per_s or math.inf)


def _limits_s(shape: Shape, demands: list[Demand]) -> float:
    """Return the least seconds per step under the limits on requests and tokens per minute. `demands` has one
    entry per address except the policy's, which has no such limits."""
    seconds = [0.0]
    for demand in demands:
        if shape.requests_per_minute:
            seconds.append(60 * demand.calls / shape.requests_per_minute)
        if shape.tokens_per_minute:
            seconds.append(60 * (demand.prompt + demand.output) / shape.tokens_per_minute)
    return max(seconds)


def _notes(shape: Shape, rates: Rates, limits_s: float) -> list[str]:
    notes = []
    if shape.agents and shape.requests < shape.concurrent:
        notes.append(
            f"roles.requests allows {shape.requests} concurrent calls per address for {shape.concurrent} "
            "dialogues; raise it, or additional replicas stay idle"
        )
    if shape.at_once < shape.dialogues:
        notes.append(
            f"rollout.at_once plays {shape.at_once} of {shape.dialogues} dialogues at a time; "
            "the others start as these finish"
        )
    if rates.dialogues.turns is None:
        notes.append(f"dialogues.turns is not set; every dialogue is assumed to last {shape.max_turns} turns")
    longest = row_tokens(rates, max(lengths(shape, rates)))
    if shape.context is not None and longest > shape.context:
        notes.append(
            f"dialogues grow to {longest:.0f} tokens but rollout.context is {shape.context}; "
            "those dialogues will end earlier than estimated here"
        )
    if not shape.agents:
        notes.append("roles.agents is scripted; scripted roles take no time")
    if limits_s:
        notes.append(f"requests and tokens per minute alone make a step take {limits_s:.0f} s")
    return notes


def _largest(numbers: dict[str, float]) -> str:
    return max(numbers, key=lambda name: numbers[name])
