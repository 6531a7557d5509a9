"""Simulator health (`mapo/scoring/health.py`) of known worlds: what its bounds rest on.

python benchmarks/health.py                      # the scripted world, every policy
python benchmarks/health.py --published FOLDER   # and EMPA result files, one folder a model
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from mapo import Job, Rubric, Rules, play_all
from mapo.sandbox.domain import scripted_cast
from mapo.scenarios.sets import load_scenarios
from mapo.scoring.findings import warnings
from mapo.scoring.folders import read_folders
from mapo.scoring.health import Health, UserLines, health, health_of, mood_of
from support.attacks import policies_of

HEAD = (
    "repeated",
    "shared",
    "as_assistant",
    "other_language",
    "told_early",
    "off_persona",
    "warm_after_miss",
    "warm_after_good",
)


def scripted(domain: str) -> Iterator[tuple[str, Health]]:
    scenarios = load_scenarios("builtin:all", domain)
    known = {s.id: s for s in scenarios}
    jobs = [Job(s, f"{s.id}_{k}", seed=k) for s in scenarios for k in range(2)]
    rules = Rules(Rubric.load(domain))
    for name, policy in policies_of(domain).items():
        played = asyncio.run(play_all(jobs, policy, scripted_cast(domain), rules))
        yield f"{domain}, {name}", health(played, known)


def published(root: Path) -> Iterator[tuple[str, Health]]:
    for folder in read_folders(root):
        talks = []
        for result in folder.results:
            data: Any = json.loads((folder.path / f"{result.id}.json").read_bytes())
            lines = [said["content"] for said in data["history"] if said["role"] == "actor"]
            ending = result.ending.reason.value if result.ending else "unfinished"
            talks.append(UserLines(result.case, lines, [mood_of(form) for form in result.path.forms], ending))
        yield folder.path.name, health_of(talks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--published", type=Path)
    parser.add_argument("--domains", default="empathy,tutoring")
    asked = parser.parse_args()
    print(f"{'':34}{'lines':>7}" + "".join(f"{name[:13]:>14}" for name in HEAD) + "  endings")
    for domain in asked.domains.split(","):
        for name, found in scripted(domain):
            _row(name, found)
    if asked.published:
        for name, found in published(asked.published):
            _row(name, found)


def _row(name: str, found: Health) -> None:
    told = found.as_json()
    cells = "".join(f"{'–' if told[key] is None else f'{told[key]:.3f}':>14}" for key in HEAD)
    endings = " ".join(f"{k} {n}" for k, n in found.endings.items())
    print(f"{name[:33]:34}{found.lines:>7}{cells}  {endings}", flush=True)
    for warning in warnings(told):
        print(f"    {warning}")


if __name__ == "__main__":
    main()
