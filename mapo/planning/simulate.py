"""A step's dialogues as customers that go from server to server: how long until the last is done?

A discrete-event simulation. A dialogue is a route of visits, one after another; at most `at_once` are on
their way, and the next begins when one ends, as in `play_all`. A server takes `slots` calls at once, the
others wait in line, first come, first served. Up to `full` of them run at full speed; beyond, they share
that speed evenly, as in a server that batches until its bandwidth is used up.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Server:
    """All replicas of one endpoint together."""

    name: str
    slots: float = math.inf
    full: float = math.inf

    @property
    def capacity(self) -> float:
        """Seconds of work done in a second, at most."""
        return min(self.slots, self.full)


@dataclass(frozen=True, slots=True)
class Visit:
    """One call. `work` is how long it takes on an idle server."""

    role: str
    server: int
    work: float
    prompt: float = 0.0
    cached: float = 0.0
    output: float = 0.0


@dataclass(frozen=True, slots=True)
class Route:
    """The calls of one dialogue in order.

    With `follows`, it begins when the first `head` visits of that earlier route are over: a start form is
    asked for once, and the siblings wait for the same answer.
    """

    visits: tuple[Visit, ...]
    turns: int = 0
    head: int = 0
    follows: int | None = None

    @property
    def work(self) -> float:
        return sum(visit.work for visit in self.visits)


@dataclass(slots=True)
class Tally:
    """Of one role: calls, seconds of work, and seconds from asking to the answer."""

    calls: int = 0
    work: float = 0.0
    stay: float = 0.0


@dataclass(slots=True)
class Outcome:
    """`seconds` until the last dialogue was done; `roles` what each role's calls took."""

    seconds: float = 0.0
    roles: dict[str, Tally] = field(default_factory=dict)

    def note(self, visit: Visit, stay: float) -> None:
        tally = self.roles[visit.role]
        tally.calls += 1
        tally.work += visit.work
        tally.stay += stay


class _Station:
    """A server at work. Its clock counts seconds of work done for each call that is in; it runs slower than
    real time where calls share the speed, so a call is over when the clock has moved on by its work."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.clock = self.now = 0.0
        self.number = 0
        self.busy: list[tuple[float, int, int]] = []
        self.line: deque[tuple[int, float]] = deque()

    @property
    def speed(self) -> float:
        return min(1.0, self.server.full / max(1, len(self.busy)))

    def next_end(self) -> float:
        """When the next call is over, if nobody comes."""
        return self.now + max(0.0, self.busy[0][0] - self.clock) / self.speed if self.busy else math.inf

    def move_to(self, now: float) -> None:
        self.clock += (now - self.now) * self.speed
        self.now = now

    def arrive(self, now: float, who: int, work: float) -> None:
        self.move_to(now)
        if len(self.busy) < self.server.slots:
            self._let_in(who, work)
        else:
            self.line.append((who, work))

    def end(self, now: float) -> int:
        """Whose call is over now; the first in line takes the place."""
        self.move_to(now)
        _, _, who = heapq.heappop(self.busy)
        if self.line:
            self._let_in(*self.line.popleft())
        return who

    def _let_in(self, who: int, work: float) -> None:
        self.number += 1  # of two that end together, the first to come goes first
        heapq.heappush(self.busy, (self.clock + work, self.number, who))


def simulate(routes: Sequence[Route], servers: Sequence[Server], at_once: int) -> Outcome:
    """Play all routes to their end."""
    stations = [_Station(server) for server in servers]
    found = Outcome(roles={visit.role: Tally() for route in routes for visit in route.visits})
    place, asked = [0] * len(routes), [0.0] * len(routes)
    waiting = deque(range(len(routes)))
    followers: dict[int, list[int]] = {}

    def begin(now: float) -> None:
        who = waiting.popleft()
        leader = routes[who].follows
        if leader is not None and place[leader] < routes[leader].head:
            followers.setdefault(leader, []).append(who)
        else:
            go_on(who, now)

    def go_on(who: int, now: float) -> None:
        """The next call of a dialogue; where there is none, the next dialogue."""
        if place[who] < len(routes[who].visits):
            visit = routes[who].visits[place[who]]
            asked[who] = now
            stations[visit.server].arrive(now, who, visit.work)
        elif waiting:
            begin(now)

    for _ in range(min(at_once, len(routes))):
        begin(0.0)
    while True:
        station = min(stations, key=_Station.next_end)
        now = station.next_end()
        if math.isinf(now):
            return found
        who = station.end(now)
        found.seconds = now
        found.note(routes[who].visits[place[who]], now - asked[who])
        place[who] += 1
        freed = followers.pop(who, []) if place[who] == routes[who].head else []
        for other in (who, *freed):
            go_on(other, now)
