"""Judges with known errors behind a loopback server, for testing what is reported about judges.

    judges = {"noisy": JudgeErrors(noise=0.3), "vain": JudgeErrors(bias=flattered)}
    with LoopbackServer(faulty_judges(judges)) as server:
        ...

Each judge is a domain's scripted judge that reads the same prompt a model would get. Every level is then
shifted by one with a given probability, and a bias is added to the progress levels. The random numbers depend
on the request and on how often it was sent, so that answers are the same in every run and in any order of
requests.
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

Bias = Callable[[str, str], int]
"""(reply, complete prompt) -> what is added to every progress level."""


@dataclass(frozen=True, slots=True)
class JudgeErrors:
    """The errors of a judge: `noise` is the probability that a level is off by one, `failures` that of an
    unusable answer. With `quotes` set to False, evidence is made up.
    """

    noise: float = 0.0
    bias: Bias = lambda _reply, _prompt: 0
    failures: float = 0.0
    quotes: bool = True
    seed: int = 0


def faulty_judges(
    errors_by_model: Mapping[str, JudgeErrors], domain: str = "empathy"
) -> Callable[[dict[str, Any]], str]:
    """Return an `answer` function for LoopbackServer: the judge named as the model fills in the turn form."""
    seen: Counter[str] = Counter()
    lock = threading.Lock()

    def answer(body: dict[str, Any]) -> str:
        request_hash = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        with lock:
            seen[request_hash] += 1
            times = seen[request_hash]
        errors = errors_by_model[body["model"]]
        chance = random.Random(f"{errors.seed}/{request_hash}/{times}")  # noqa: S311 (reproducible, not security)
        if chance.random() < errors.failures:
            return "I would rather not say."
        prompt = "\n".join(str(message["content"]) for message in body["messages"])
        turns = turns_in(body["messages"][1]["content"])
        levels = distorted(errors, honest_levels(turns, domain), turns[-1].reply.text, prompt, chance, domain)
        words = " ".join(turns[-1].reply.text.split()[:4]) if errors.quotes else "words nobody said"
        return json.dumps(
            {
                key: {
                    side: {"evidence": words, "reason": "as it seems", "level": level}
                    for side, level in zip(("progress", "regression"), axis_levels, strict=True)
                }
                for key, axis_levels in levels.items()
            }
        )

    return answer


def distorted(
    errors: JudgeErrors,
    levels: Mapping[str, tuple[int, int]],
    reply: str,
    prompt: str,
    chance: random.Random,
    domain: str = "empathy",
) -> dict[str, tuple[int, int]]:
    """Return the levels that this judge gives: bias, then noise, within the range of the rubric."""
    result = {}
    shift = errors.bias(reply, prompt)
    axes = {axis.key: axis for axis in Rubric.load(domain).axes}
    for key, (up, down) in levels.items():
        top, bottom = len(axes[key].progress) - 1, 1 - len(axes[key].regression)
        moved = [min(top, max(0, up + shift)), down]
        for at, (low, high) in enumerate(((0, top), (bottom, 0))):
            if chance.random() < errors.noise:
                moved[at] = min(high, max(low, moved[at] + chance.choice((-1, 1))))
        result[key] = (moved[0], moved[1])
    return result


def turns_in(prompt: str) -> list[Turn]:
    """Return the conversation quoted in a judge's prompt."""
    messages = [json.loads(x.partition(": ")[2]) for x in prompt.splitlines() if x.startswith('person: "')]
    replies = [json.loads(x.partition(": ")[2]) for x in prompt.splitlines() if x.startswith('reply: "')]
    return [Turn(a, Reply(b)) for a, b in zip(messages, replies, strict=True)]


def honest_levels(turns: list[Turn], domain: str = "empathy") -> dict[str, tuple[int, int]]:
    """Return the levels of the domain's scripted judge. In unknown scenarios, a question counts as
    progress.
    """
    return dict(_honest(tuple((turn.user, turn.reply.text) for turn in turns), domain))


@lru_cache(maxsize=4096)
def _honest(pairs: tuple[tuple[str, str], ...], domain: str) -> tuple[tuple[str, tuple[int, int]], ...]:
    turns = [Turn(said, Reply(reply)) for said, reply in pairs]
    scenario = next((known for said, _ in pairs if (known := _scenarios_by_opening(domain).get(said))), None)
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
    """Run a coroutine in an event loop of its own, because this may be called inside another loop."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(asyncio.run(work)))
    thread.start()
    thread.join()
    return result[0]


@lru_cache
def _scenarios_by_opening(domain: str) -> dict[str, Scenario]:
    return {scenario.opening: scenario for scenario in load_scenarios("builtin:all", domain)}
