"""Write the example set that `mapo score` shows without arguments: mapo/data/examples/.

Two scripted policies, the honest helper and the adviser, in six built-in scenarios each, played in the
scripted world: the set shows what records and scores look like and says nothing about any real model.
Deterministic but for the seconds, which are left out.

    .venv/bin/python scripts/make_examples.py
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from mapo import Job, Rubric, Rules, play_all
from mapo.records import encode_dialogue
from mapo.sandbox.domain import scripted_cast, scripted_policy
from mapo.scenarios.sets import load_scenarios
from mapo.store import write_atomic

OUT = Path(__file__).resolve().parent.parent / "mapo" / "data" / "examples"


def main() -> None:
    rubric = Rubric.load("empathy")
    scenarios = load_scenarios("builtin:train")[::4]
    for name in ("honest", "adviser"):
        jobs = [Job(s, s.id, seed=1) for s in scenarios]
        policy, casting = scripted_policy("empathy", name), scripted_cast("empathy")
        played = asyncio.run(play_all(jobs, policy, casting, Rules(rubric)))
        path = OUT / name / "dialogues" / "examples.jsonl"
        lines = [encode_dialogue(replace(d, seconds=None)) for d in played]
        write_atomic(path, b"".join(line + b"\n" for line in lines))
        print(f"{path}: {len(lines)} dialogues")


if __name__ == "__main__":
    main()
