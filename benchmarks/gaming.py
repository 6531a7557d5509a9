"""Test whether a judge can be gamed: play every scripted policy and attack in every scenario.

    .venv/bin/python benchmarks/gaming.py [seeds] [--domain NAME or FOLDER] [--judge local:FOLDER]

The judge is the domain's scripted one unless --judge names a model. Prints the table of
docs/scripted-world.md, and how many turns per second are played. The attacks on the shipped domains are in
tests/support.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from mapo import Rubric
from mapo.domain_folders import DEFAULT, domain_folder
from mapo.measure.epmq import composite
from mapo.players.session import ModelSession
from mapo.players.spec import ModelSpec
from mapo.sandbox.cast import Policy
from mapo.sandbox.rollout import Job, Rules, play_all
from mapo.scenarios.sets import load_scenarios
from mapo.scoring.result import recompute
from mapo.types import Dialogue
from support.attacks import policies_of


async def play(policy: Policy, jobs: list[Job], rubric: Rubric, judge: str, domain: str) -> list[Dialogue]:
    async with ModelSession(concurrency=64) as session:
        cast = {"judge": ModelSpec(judge)} if judge else None
        return await play_all(jobs, policy, await session.casting(cast, rubric, domain), Rules(rubric))


def main(seeds: int, domain: str, source: str, judge: str) -> None:
    rubric = Rubric.load(domain_folder(domain))
    scenarios = load_scenarios(source, domain)
    jobs = [Job(s, f"{s.id}-{seed}", seed=seed) for s in scenarios for seed in range(seeds)]
    print(f"| policy | EPM-Q | passes | turns | {' | '.join(rubric.keys)} |")
    print("|---" * (4 + len(rubric.keys)) + "|")
    played = spent = 0.0
    for name, policy in policies_of(domain).items():
        began = time.perf_counter()
        dialogues = asyncio.run(play(policy, jobs, rubric, judge, domain))
        spent += time.perf_counter() - began
        turns = sum(len(d.turns) for d in dialogues)
        played += turns
        results = [recompute(d, Path("none"), None, rubric, d.id) for d in dialogues]
        score = composite([r.indices for r in results])
        steps = [t.state.step for d in dialogues for t in d.turns if t.state is not None and t.state.step]
        means = [sum(step[axis] for step in steps) / len(steps) for axis in range(len(rubric.keys))]
        cells = " | ".join(f"{m:+.2f}" for m in means)
        passes = sum(r.passed for r in results)
        row = f"| {name} | {score.epm_q:.1f} | {passes}/{len(jobs)} | {turns / len(jobs):.1f} | {cells} |"
        print(row, flush=True)
    print(f"\n{played / spent:,.0f} turns per second, policies included")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("seeds", type=int, nargs="?", default=2, help="dialogues per scenario (default: 2)")
    parser.add_argument("--domain", default=DEFAULT, help="name or folder of a domain")
    parser.add_argument("--scenarios", default="builtin:all", help="set of scenarios (default: builtin:all)")
    parser.add_argument("--judge", default="", help="a model as judge, such as local:FOLDER")
    args = parser.parse_args()
    main(args.seeds, args.domain, args.scenarios, args.judge)
