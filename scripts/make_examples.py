"""Write the example dialogues that `mapo score` shows without arguments: mapo/data/examples/.

    PYTHONPATH=. .venv/bin/python scripts/make_examples.py [--check]

Plays two scripted policies, the honest helper and the adviser, in six built-in scenarios of the scripted
world. The examples show what records and scores look like; they say nothing about a real model. The result is
deterministic, because durations are left out. With `--check` nothing is written; the exit status is 1 if a
stored file differs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from mapo import Job, Rubric, Rules, play_all
from mapo.records import encode_dialogue
from mapo.sandbox.domain import scripted_cast, scripted_policy
from mapo.scenarios.sets import load_scenarios
from mapo.store import write_atomic

OUT = Path(__file__).resolve().parent.parent / "mapo" / "data" / "examples"
POLICIES = ("honest", "adviser")
SCENARIOS = (
    "career-boat-shed",
    "health-four-jars",
    "leisure-black-bean",
    "living-first-keys",
    "relationships-booster-seat",
    "values-honest-boy",
)


def example_lines(policy: str) -> list[bytes]:
    """Play a scripted policy in the example scenarios and return the records."""
    scenarios = {scenario.id: scenario for scenario in load_scenarios("builtin:train")}
    jobs = [Job(scenarios[name], name, seed=1) for name in SCENARIOS]
    rules = Rules(Rubric.load("empathy"))
    dialogues = asyncio.run(
        play_all(jobs, scripted_policy("empathy", policy), scripted_cast("empathy"), rules)
    )
    return [encode_dialogue(replace(dialogue, seconds=None)) + b"\n" for dialogue in dialogues]


def main(arguments: list[str] | None = None) -> int:
    """Write or check the example files; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare with the stored files, write nothing")
    options = parser.parse_args(arguments)
    stale = 0
    for policy in POLICIES:
        path = OUT / policy / "dialogues" / "examples.jsonl"
        lines = example_lines(policy)
        if not options.check:
            write_atomic(path, b"".join(lines))
            print(f"{path}: {len(lines)} dialogues")
        elif path.read_bytes() != b"".join(lines):
            stale += 1
            print(f"{path} differs; run scripts/make_examples.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
