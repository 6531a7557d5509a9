"""Can the scripted judge be fooled? Every scripted policy through every built-in scenario.

    .venv/bin/python benchmarks/gaming.py [seeds]

Prints the table of docs/scripted-world.md, and how many turns a second one core plays.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from mapo import Rubric
from mapo.domains.empathy.policies import POLICIES, scripted_policy
from mapo.domains.empathy.scripted import scripted_cast
from mapo.evals.epmq import composite
from mapo.evals.results import recompute
from mapo.sandbox.rollout import Job, Rules, play_all
from mapo.sandbox.scenarios import load_scenarios


def main(seeds: int = 2) -> None:
    rubric = Rubric.load("empathy")
    scenarios = load_scenarios("builtin:all")
    jobs = [Job(s, f"{s.id}-{seed}", seed=seed) for s in scenarios for seed in range(seeds)]
    print("| policy | EPM-Q | passes | turns | C | A | P |")
    print("|---|---|---|---|---|---|---|")
    played = spent = 0.0
    for name in POLICIES:
        began = time.perf_counter()
        dialogues = asyncio.run(play_all(jobs, scripted_policy(name), scripted_cast, Rules(rubric)))
        spent += time.perf_counter() - began
        turns = sum(len(d.turns) for d in dialogues)
        played += turns
        results = [recompute(d, Path("none"), None, rubric, d.id) for d in dialogues]
        score = composite([r.indices for r in results])
        steps = [t.state.step for d in dialogues for t in d.turns]
        means = [sum(step[axis] for step in steps) / len(steps) for axis in range(3)]
        cells = " | ".join(f"{m:+.2f}" for m in means)
        passes = sum(r.passed for r in results)
        print(f"| {name} | {score.epm_q:.1f} | {passes}/{len(jobs)} | {turns / len(jobs):.1f} | {cells} |")
    print(f"\n{played / spent:,.0f} turns a second on one core, policies included")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
