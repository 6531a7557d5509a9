"""Judges that are off by a known amount, for a loopback server: to test what is said about judges.

    with LoopbackServer(judges_that({"noisy": Habit(noise=0.3), "vain": Habit(likes=flattered)})) as server:
    ...

Each is a domain's judge of plain code, read off the very prompt a model would get; then every level strays by
one with a known chance, and what the judge likes is added to its progress. Chance follows from the request
and from how often it has come, so answers are the same in every run, in whatever order requests arrive.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mapo.measure.rubric import Rubric
from mapo.sandbox.cast import Job
from mapo.sandbox.domain import scripted_cast
from mapo.scenarios.scenario import Scenario
from mapo.scenarios.sets import load_scenarios
from mapo.types import Levels, Reply, Turn

Likes = Callable[[str, str], int]
"""(the reply, the whole prompt) -> what is added to every progress level."""


@dataclass(frozen=True, slots=True)
class Habit:
    """How a judge is off: `noise` is the chance of a level to stray by one, `deaf` that of no form at all;
    with `quotes` false its evidence is made up."""

    noise: float = 0.0
    likes: Likes = lambda _reply, _prompt: 0
    deaf: float = 0.0
    quotes: bool = True
    seed: int = 0


def judges_that(habits: Mapping[str, Habit], domain: str = "empathy") -> Callable[[dict[str, Any]], str]:
    """An `answer` for LoopbackServer: the judge named as model fills in the turn form."""
    seen: Counter[str] = Counter()
    lock = threading.Lock()

    def answer(body: dict[str, Any]) -> str:
        asked = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        with lock:
            seen[asked] += 1
            times = seen[asked]
        habit = habits[body["model"]]
        chance = random.Random(f"{habit.seed}/{asked}/{times}")  # noqa: S311 (chance on purpose)
        if chance.random() < habit.deaf:
            return "I would rather not say."
        prompt = "\n".join(str(message["content"]) for message in body["messages"])
        turns = turns_in(body["messages"][1]["content"])
        levels = strayed(habit, honest_levels(turns, domain), turns[-1].reply.text, prompt, chance, domain)
        words = " ".join(turns[-1].reply.text.split()[:4]) if habit.quotes else "words nobody said"
        return json.dumps(
            {
                key: {
                    side: {"evidence": words, "reason": "as it seems", "level": level}
                    for side, level in zip(("progress", "regression"), own, strict=True)
                }
                for key, own in levels.items()
            }
        )

    return answer


def strayed(
    habit: Habit,
    levels: Mapping[str, tuple[int, int]],
    reply: str,
    prompt: str,
    chance: random.Random,
    domain: str = "empathy",
) -> dict[str, tuple[int, int]]:
    """The levels as this judge gives them: what it likes, then its noise, within the rubric's tables."""
    found = {}
    more = habit.likes(reply, prompt)
    axes = {axis.key: axis for axis in Rubric.load(domain).axes}
    for key, (up, down) in levels.items():
        top, bottom = len(axes[key].progress) - 1, 1 - len(axes[key].regression)
        moved = [min(top, max(0, up + more)), down]
        for at, (low, high) in enumerate(((0, top), (bottom, 0))):
            if chance.random() < habit.noise:
                moved[at] = min(high, max(low, moved[at] + chance.choice((-1, 1))))
        found[key] = (moved[0], moved[1])
    return found


def turns_in(shown: str) -> list[Turn]:
    """The conversation quoted in a judge's prompt."""
    said = [json.loads(x.partition(": ")[2]) for x in shown.splitlines() if x.startswith('person: "')]
    replies = [json.loads(x.partition(": ")[2]) for x in shown.splitlines() if x.startswith('reply: "')]
    return [Turn(a, Reply(b)) for a, b in zip(said, replies, strict=True)]


def honest_levels(turns: list[Turn], domain: str = "empathy") -> dict[str, tuple[int, int]]:
    """What the domain's judge of plain code gives; for people it does not know, a question is progress."""
    return dict(_honest(tuple((turn.user, turn.reply.text) for turn in turns), domain))


@lru_cache(maxsize=4096)
def _honest(pairs: tuple[tuple[str, str], ...], domain: str) -> tuple[tuple[str, tuple[int, int]], ...]:
    turns = [Turn(said, Reply(reply)) for said, reply in pairs]
    scenario = next((known for said, _ in pairs if (known := _people(domain).get(said))), None)
    if scenario is None:
        asks = int(any(sign in pairs[-1][1] for sign in "?？"))
        return tuple((key, (asks, 0)) for key in Rubric.load(domain).keys)
    judge = scripted_cast(domain)(Job(scenario, "judged")).judge

    async def follow() -> Levels:
        for at in range(1, len(turns)):
            await judge.judge(turns[:at])
        return await judge.judge(turns)

    levels = _run(follow())
    return tuple((key, (marks.progress.level, marks.regression.level)) for key, marks in levels.items())


def _run(work: Any) -> Any:
    """To its end, in a loop of its own: this may be called inside another."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(asyncio.run(work)))
    thread.start()
    thread.join()
    return result[0]


@lru_cache
def _people(domain: str) -> dict[str, Scenario]:
    return {scenario.opening: scenario for scenario in load_scenarios("builtin:all", domain)}
