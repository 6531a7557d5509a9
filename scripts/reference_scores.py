"""Measure the reference scores of the shipped domains' scripted worlds and write their `reference.json`.

    PYTHONPATH=. .venv/bin/python scripts/reference_scores.py [--check]

Plays the silent and the honest policy with `mapo eval empa`, and computes the score of a dialogue in which
every reply is judged level 0. With `--check` nothing is written; the exit status is 1 if a stored file differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mapo.domain_folders import SHIPPED, domain_folder
from mapo.measure.epmq import composite, indices
from mapo.measure.potential import Trajectory
from mapo.measure.rubric import Rubric
from mapo.scoring.reference import ANY, REFERENCE_FILE, REFERENCE_SCHEMA
from mapo.scoring.score import score
from mapo.types import AxisMarks, Mark

LABELS = {
    "empathy": {"silent": "silent policy", "honest": "honest helper"},
    "tutoring": {"silent": "silent policy", "honest": "honest tutor"},
}
REPEATS = 4


def no_change_score(domain: str) -> dict[str, Any]:
    """Compute the score of a dialogue in which no reply moves the person in any direction."""
    rubric = Rubric.load(domain)
    path = Trajectory(rubric, tuple(-10.0 for _ in rubric.keys), "published")
    for _ in range(rubric.ending.min_turns):
        path.judge({key: AxisMarks(Mark(0), Mark(0)) for key in rubric.keys})
    return {
        "name": "no_change",
        "label": "nothing happens",
        "epm_q": round(composite([indices(path)]).epm_q, 2),
        "source": "computed from the EPM-Q formula: every reply is judged level 0 on every axis",
        "judge": ANY,
    }


def played_score(domain: str, policy: str) -> dict[str, Any]:
    """Play a scripted policy in the test scenarios and return its score."""
    options = f"--model scripted:{policy} --domain {domain} --scenarios builtin:test --repeats {REPEATS}"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "mapo", "eval", "empa", *options.split(), "--out", str(out)]
        subprocess.run(command, check=True, capture_output=True)
        model = score(out).models[0].score
    return {
        "name": policy,
        "label": LABELS[domain][policy],
        "epm_q": round(model.composite.epm_q, 2),
        "source": "measured on the built-in test scenarios with scripted user, director and judge",
        "command": f"mapo eval empa {options}",
        "scenarios": model.cases,
        "dialogues": model.n,
        "passes": model.passes,
        **({} if policy == "honest" else {"chart": False}),
    }


def main(check: bool) -> int:
    stale = []
    for domain in SHIPPED:
        scores = [played_score(domain, "silent"), no_change_score(domain), played_score(domain, "honest")]
        text = json.dumps({"schema": REFERENCE_SCHEMA, "scores": scores}, indent=1) + "\n"
        file = domain_folder(domain) / REFERENCE_FILE
        if check and file.read_text(encoding="utf-8") != text:
            stale.append(str(file))
        elif not check:
            file.write_text(text, encoding="utf-8")
        print(domain, {entry["label"]: entry["epm_q"] for entry in scores})
    print("\n".join(f"{file} differs from the measured scores" for file in stale))
    return 1 if stale else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare with the stored files")
    sys.exit(main(parser.parse_args().check))
