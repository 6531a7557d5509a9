"""Ranking judges with known errors, and recorded siblings of known quality for them to rank."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence

from mapo.judges.sample import Recording
from mapo.measure.rubric import Rubric
from mapo.scenarios.sets import load_scenarios
from mapo.types import AxisMarks, Dialogue, Mark, Reply, Turn

RUBRIC = Rubric.load("empathy")


def shown_replies(prompt: str) -> dict[str, str]:
    """The last reply of each conversation in a ranking prompt, by letter."""
    parts = re.split(r"^Conversation ([A-Z])$", prompt, flags=re.MULTILINE)[1:]
    return {
        letter: json.loads(re.findall(r"^reply: (.*)$", text, re.MULTILINE)[-1])
        for letter, text in zip(parts[::2], parts[1::2], strict=True)
    }


def scored(prompt: str, score: Callable[[str, int], float]) -> str:
    """The answer of a ranking judge: `score` maps a reply and its place to a number."""
    points = {x: score(text, at) for at, (x, text) in enumerate(shown_replies(prompt).items())}
    return json.dumps({x: {"reason": "r", "score": max(0, min(10, round(p)))} for x, p in points.items()})


def quality(reply: str) -> int:
    """The quality that is written into a reply; 0 if its words are not in their order."""
    match = re.match(r"it is worth (\d) to me", reply)
    return 2 + int(match[1]) if match else 0


def siblings(groups: int = 8, size: int = 4, turns: int = 2, seed: int = 0) -> list[Recording]:
    """Recorded siblings whose replies say what they are worth, with levels that say the same."""
    rng = random.Random(seed)
    scenarios = load_scenarios("builtin:all")[:groups]
    return [
        _recording(scenario, f"d{k}", [rng.randint(0, 2) for _ in range(turns)])
        for scenario in scenarios
        for k in range(size)
    ]


def _recording(scenario, name: str, worth: Sequence[int]) -> Recording:
    turns = [
        Turn(
            f"line {n} of {name}",
            Reply(f"it is worth {3 * level} to me and to {name} in turn {n}"),
            {key: AxisMarks(Mark(level), Mark(0)) for key in RUBRIC.keys},
        )
        for n, level in enumerate(worth)
    ]
    start = (0.0,) * len(RUBRIC.axes)
    dialogue = Dialogue(name, scenario.id, "m", RUBRIC.name, "published", {}, start, tuple(turns))
    return Recording("run", dialogue, scenario, RUBRIC)
