"""Made-up recordings: a few policies and scenarios, whose replies show their levels in plain words."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

from mapo.judges.sample import Recording
from mapo.measure.rubric import Rubric
from mapo.scenarios.scenario import Scenario
from mapo.scenarios.sets import load_scenarios
from mapo.types import Dialogue, Direction, Mark, Reply, Turn

EMPATHY = Rubric.load("empathy")
WORDS = ("stone", "river", "lantern")
"""What a reply says for progress 0, 1 and 2."""


def scenarios(count: int = 5) -> dict[str, Scenario]:
    return {s.id: s for s in load_scenarios("builtin:all")[:count]}


def recording(policy: str, scenario: Scenario, turns: int = 4, seed: int = 0, good: float = 0.5) -> Recording:
    """A dialogue in which the words of each reply give its levels away."""
    rng = random.Random(f"{policy}/{scenario.id}/{seed}")
    played = []
    for number in range(1, turns + 1):
        level = 2 if rng.random() < good else rng.randrange(2)
        harm = int(rng.random() < 0.3)
        reply = f"{WORDS[level]} {WORDS[level]}{' thorn' * harm} {policy}"
        levels = EMPATHY.levels(**dict.fromkeys(EMPATHY.keys, (level, -harm)))
        levels = {
            k: type(m)(Mark(m.progress.level, reply, f"it says {WORDS[level]}"), m.regression)
            for k, m in levels.items()
        }
        act = Direction("go_on" if number % 2 else "wait") if number > 1 else None
        played.append(Turn(f"line {number} about {scenario.topic[:12]}", Reply(reply), levels, direction=act))
    start = {item.key: Mark(2) for item in EMPATHY.indicators}
    dialogue = Dialogue(
        f"{policy}-{scenario.id}",
        scenario.id,
        policy,
        EMPATHY.name,
        "published",
        start,
        EMPATHY.start(start),
        tuple(played),
    )
    return Recording(policy, dialogue, scenario, EMPATHY)


def recordings(policies: int = 4, count: int = 5, turns: int = 4) -> list[Recording]:
    """Every policy in every scenario; the policies differ in how often they do well."""
    return [
        recording(f"p{n}", scenario, turns, good=(n + 1) / (policies + 1))
        for n in range(policies)
        for scenario in scenarios(count).values()
    ]


def judged_line(own: Recording) -> dict:
    """One line of a file of judged turns."""

    def side(mark: Mark) -> dict:
        return {"level": mark.level, "evidence": mark.evidence, "reason": mark.reason}

    return {
        "model": own.dialogue.model,
        "case": own.scenario.id,
        "judge": "made up",
        "start": list(own.dialogue.start),
        "turns": [
            {
                "user": turn.user,
                "reply": turn.reply.text,
                "levels": turn.levels
                and {
                    k: {"progress": side(m.progress), "regression": side(m.regression)}
                    for k, m in turn.levels.items()
                },
            }
            for turn in own.dialogue.turns
        ],
    }


def write_judged_turns(path: Path, own: list[Recording]) -> Path:
    """Write a file of judged turns, compressed if its name ends in .gz."""
    text = "".join(json.dumps(judged_line(r)) + "\n" for r in own).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path
