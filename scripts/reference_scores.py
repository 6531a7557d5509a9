"""Measure the reference scores of the shipped domains' scripted worlds and write their `reference.json`.

    PYTHONPATH=. .venv/bin/python scripts/reference_scores.py [--check]

Plays scripted policies with `mapo eval empa`, under the domain's scripted judge and under the shipped judge
model, and computes the score of a dialogue in which every reply is judged level 0. With `--check` nothing is
written; the exit status is 1 if a stored file differs. Scores under a model may differ by rounding between
machines, so `--check` allows them a difference of TOLERANCE; its weights must be the same.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from mapo.domain_folders import SHIPPED, SHIPPED_JUDGE, domain_folder
from mapo.local_model.shipped import POCKET_JUDGE
from mapo.measure.epmq import composite, indices
from mapo.measure.potential import Trajectory
from mapo.measure.rubric import Rubric
from mapo.players.identity import fingerprint
from mapo.scoring.reference import ANY, REFERENCE_FILE, REFERENCE_SCHEMA
from mapo.scoring.score import score
from mapo.scripted.world import SCRIPTED
from mapo.types import AxisMarks, Mark

REPEATS = 4
TOLERANCE = 0.5


class Played(NamedTuple):
    """A scripted policy to play under a judge. `honest` fills sentence templates, which plain code rates high;
    `listener` says replies written by hand."""

    name: str
    label: str
    judge: str = SCRIPTED
    chart: bool = True


PLAYED = {
    "empathy": (
        Played("silent", "silent policy", chart=False),
        Played("honest", "honest helper"),
        Played("silent", "silent policy", SHIPPED_JUDGE, chart=False),
        Played("honest", "sentence templates", SHIPPED_JUDGE, chart=False),
        Played("listener", "written replies", SHIPPED_JUDGE),
    ),
    "tutoring": (Played("silent", "silent policy", chart=False), Played("honest", "honest tutor")),
}


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


def played_score(domain: str, played: Played) -> dict[str, Any]:
    """Play a scripted policy in the test scenarios and return its score."""
    options = f"--model scripted:{played.name} --domain {domain} --scenarios builtin:test --repeats {REPEATS}"
    judged: dict[str, Any] = {}
    who = "user, director and judge"
    if played.judge != SCRIPTED:
        options += f" --agents scripted --judge-model local:{played.judge}"
        judged = {"judge": played.judge, "judge_weights": fingerprint(POCKET_JUDGE)}
        who = f"user and director, and the judge {played.judge}"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "mapo", "eval", "empa", *options.split(), "--out", str(out)]
        subprocess.run(command, check=True, capture_output=True)
        model = score(out).models[0].score
    return {
        "name": played.name,
        "label": played.label,
        "epm_q": round(model.composite.epm_q, 2),
        "source": f"measured on the built-in test scenarios with scripted {who}",
        "command": f"mapo eval empa {options}",
        "scenarios": model.cases,
        "dialogues": model.n,
        "passes": model.passes,
        **judged,
        **({} if played.chart else {"chart": False}),
    }


def same(stored: list[dict[str, Any]], measured: list[dict[str, Any]]) -> bool:
    """Return whether stored scores are the measured ones."""
    if len(stored) != len(measured):
        return False
    return all(_same(*pair) for pair in zip(stored, measured, strict=True))


def _same(stored: dict[str, Any], measured: dict[str, Any]) -> bool:
    if "judge_weights" not in measured:
        return stored == measured
    kept = {**measured, "epm_q": stored["epm_q"], "passes": stored.get("passes")}
    return stored == kept and abs(stored["epm_q"] - measured["epm_q"]) <= TOLERANCE


def main(check: bool) -> int:
    stale = []
    for domain in SHIPPED:
        scores = [no_change_score(domain), *(played_score(domain, played) for played in PLAYED[domain])]
        file = domain_folder(domain) / REFERENCE_FILE
        if check and not same(json.loads(file.read_bytes())["scores"], scores):
            stale.append(str(file))
        elif not check:
            text = json.dumps({"schema": REFERENCE_SCHEMA, "scores": scores}, indent=1) + "\n"
            file.write_text(text, encoding="utf-8")
        for entry in scores:
            print(domain, entry.get("judge", SCRIPTED), entry["label"], entry["epm_q"])
    print("\n".join(f"{file} differs from the measured scores" for file in stale))
    return 1 if stale else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare with the stored files")
    sys.exit(main(parser.parse_args().check))
