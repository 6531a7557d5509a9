"""Print the simulator health (`mapo/scoring/health.py`) of known simulators, on which its limits are based.

python benchmarks/health.py                      # the scripted world with every policy
python benchmarks/health.py --published FOLDER   # and EMPA result files, one folder per model
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

COLUMNS = (
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
    by_id = {s.id: s for s in scenarios}
    jobs = [Job(s, f"{s.id}_{k}", seed=k) for s in scenarios for k in range(2)]
    rules = Rules(Rubric.load(domain))
    for name, policy in policies_of(domain).items():
        dialogues = asyncio.run(play_all(jobs, policy, scripted_cast(domain), rules))
        yield f"{domain}, {name}", health(dialogues, by_id)


def published(root: Path) -> Iterator[tuple[str, Health]]:
    for folder in read_folders(root):
        lines_of_dialogues = []
        for result in folder.results:
            data: Any = json.loads((folder.path / f"{result.id}.json").read_bytes())
            lines = [entry["content"] for entry in data["history"] if entry["role"] == "actor"]
            ending = result.ending.reason.value if result.ending else "unfinished"
            moods = [mood_of(form) for form in result.path.forms]
            lines_of_dialogues.append(UserLines(result.case, lines, moods, ending))
        yield folder.path.name, health_of(lines_of_dialogues)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--published", type=Path, help="folder of EMPA result files, one folder per model")
    parser.add_argument("--domains", default="empathy,tutoring", help="scripted worlds, comma-separated")
    args = parser.parse_args()
    print(f"{'':34}{'lines':>7}" + "".join(f"{name[:13]:>14}" for name in COLUMNS) + "  endings")
    for domain in args.domains.split(","):
        for name, result in scripted(domain):
            print_row(name, result)
    if args.published:
        for name, result in published(args.published):
            print_row(name, result)


def print_row(name: str, result: Health) -> None:
    values = result.as_json()
    cells = "".join(f"{'–' if values[key] is None else f'{values[key]:.3f}':>14}" for key in COLUMNS)
    endings = " ".join(f"{k} {n}" for k, n in result.endings.items())
    print(f"{name[:33]:34}{result.lines:>7}{cells}  {endings}", flush=True)
    for warning in warnings(values):
        print(f"    {warning}")


if __name__ == "__main__":
    main()
