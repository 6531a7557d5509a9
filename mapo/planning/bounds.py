"""What no schedule can beat, by hand: three laws of closed queues, beside which a simulation is believed.

- bottleneck: a server that does c seconds of work a second needs W / c seconds for W seconds of work;
- critical path: a dialogue's calls come one after another, so the longest dialogue is a lower bound;
- places: with m dialogues on their way at most, all dialogues' work needs their sum / m.

The rollout takes at least the largest of them. It is near it where one clearly dominates, and above it where
two are alike: then queues are sometimes empty at the one and sometimes at the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from mapo.planning.simulate import Route, Server

LONGEST = "longest dialogue"
PLACES = "rollout.at_once"


def bounds(routes: Sequence[Route], servers: Sequence[Server], at_once: int) -> dict[str, float]:
    """Lower bounds of the rollout's seconds: one for each server by its name, LONGEST and PLACES."""
    work = [0.0] * len(servers)
    for route in routes:
        for visit in route.visits:
            work[visit.server] += visit.work
    found = {server.name: done / server.capacity for server, done in zip(servers, work, strict=True)}
    found[LONGEST] = max(route.work for route in routes)
    found[PLACES] = sum(route.work for route in routes) / min(at_once, len(routes))
    return found
