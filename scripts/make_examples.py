"""Write the example set that `mapo score` shows without arguments: mapo/data/examples/.

Two made-up helpers, each in six made-up talks. Levels are drawn from a distribution per helper, and the
lines are picked to match the levels, so the set shows what records and scores look like and nothing
about any real model. Deterministic: running it again changes nothing.

    .venv/bin/python scripts/make_examples.py
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from mapo import AxisMarks, Dialogue, Mark, Reply, Rubric, Trajectory, Turn
from mapo.sandbox.reward import rewards_of
from mapo.store import encode_dialogue, write_atomic

OUT = Path(__file__).resolve().parent.parent / "mapo" / "data" / "examples"
RUBRIC = Rubric.load("empathy")

TALKS = {
    "night-shift": ("career", "A", {"C.1": 1, "C.2": 2, "C.3": 1, "A.1": 2, "A.2": 2, "A.3": 3, "P.1": 1, "P.2": 1, "P.3": 1}),
    "sold-piano": ("leisure", "C", {"C.1": 3, "C.2": 3, "C.3": 3, "A.1": 2, "A.2": 1, "A.3": 2, "P.1": 1, "P.2": 1, "P.3": 0}),
    "third-draft": ("values", "P", {"C.1": 1, "C.2": 1, "C.3": 1, "A.1": 1, "A.2": 1, "A.3": 1, "P.1": 3, "P.2": 2, "P.3": 3}),
}  # fmt: skip
USER = {
    "night-shift": [
        "Came home from the ward at seven again. Everyone else was leaving for work.",
        "It's fine, somebody has to do it.",
        "I put the kettle on and then forgot I had.",
        "My sister asked when I last sat down to eat. I made a joke.",
        "There was a patient tonight. I don't really want to go into it.",
        "You stop noticing which day it is.",
    ],
    "sold-piano": [
        "They carried the piano down today. It took four men.",
        "I hadn't played in years, so it makes no sense to mind.",
        "My father tuned it himself, you know. Badly.",
        "The wall behind it is a different colour now.",
        "I told the buyer it was only furniture.",
        "I keep walking around where it stood.",
    ],
    "third-draft": [
        "Third draft of the application and I deleted it again.",
        "People like me don't get picked for these things anyway.",
        "I used to just send things off. I don't know when that stopped.",
        "My old teacher would say just do it. Easy for her.",
        "I did write one paragraph I didn't hate.",
        "The deadline is Friday, not that it matters.",
    ],
}
REPLIES = {
    2: [
        "You turn it into a joke before anyone can see how much it costs you. You don't have to do that here.",
        "It sounds less like an object leaving and more like the last place where he was still around.",
        "One paragraph you didn't hate: that is you picking yourself, before anybody else gets a vote.",
    ],
    1: [
        "That sounds lonely, coming home just as everyone else sets off.",
        "You noticed the colour of the wall. Something is missing there.",
        "You kept going back to it three times. That says you want it.",
    ],
    0: ["I see.", "Thanks for telling me.", "And how was the rest of the day?"],
    -1: ["Try to look on the bright side.", "You should really make a plan for that.", "Everything happens for a reason."],
    -2: ["Honestly, others have it much worse.", "You are being dramatic about this.", "Just do it and stop complaining."],
}  # fmt: skip
HELPERS = {"listener": ((0.15, 0.55, 0.30), (0.88, 0.11, 0.01)), "lecturer": ((0.55, 0.40, 0.05), (0.45, 0.40, 0.15))}  # fmt: skip


def play(helper: str, scenario: str, seed: int) -> Dialogue:
    rng = random.Random(f"{helper}/{scenario}/{seed}")
    category, axis, levels = TALKS[scenario]
    start = {key: Mark(level) for key, level in levels.items()}
    path = Trajectory(RUBRIC, RUBRIC.start(start))
    progress, regression = HELPERS[helper]
    turns: list[Turn] = []
    while not (ending := path.ending()):
        form = {
            key: AxisMarks(
                Mark(rng.choices((0, 1, 2), progress)[0]), Mark(-rng.choices((0, 1, 2), regression)[0])
            )
            for key in RUBRIC.keys
        }
        worst = min(m.regression.level for m in form.values())
        tone = worst if worst < 0 else max(m.progress.level for m in form.values())
        lines = USER[scenario]
        reply = Reply(rng.choice(REPLIES[tone]))
        turns.append(Turn(lines[len(turns) % len(lines)], reply, form, path.judge(form)))
    rewards = rewards_of(path, "idr")
    return Dialogue(
        id=f"{helper}-{scenario}-{seed}",
        scenario=scenario,
        model=helper,
        rubric=RUBRIC.name,
        profile="published",
        start_levels=start,
        start=path.start,
        turns=tuple(replace(turn, reward=r) for turn, r in zip(turns, rewards, strict=True)),
        ending=ending,
        reward="idr/zone",
        group=scenario,
        seed=seed,
        tags={"category": category, "axis": axis},
    )


def main() -> None:
    for helper in HELPERS:
        lines = [encode_dialogue(play(helper, scenario, seed)) for scenario in TALKS for seed in (1, 2)]
        path = OUT / helper / "dialogues" / "step_00000.jsonl"
        write_atomic(path, b"".join(line + b"\n" for line in lines))
        print(f"{path}: {len(lines)} dialogues")


if __name__ == "__main__":
    main()
