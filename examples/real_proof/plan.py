"""The primary comparison: what decides the study, named before the trainings begin.

`prepare` writes WORK/plan.json. The report shows these comparisons first and everything else as secondary.
The plan can change until the first training begins; afterwards a change is refused.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from commands import ATTEMPTS
from measures import MAX_LOST
from study import Study

from mapo.errors import InputError
from mapo.runs.claim import digest
from mapo.scenarios.sets import load_scenarios
from mapo.store import write_atomic

SCHEMA = "mapo.real_proof.plan/1"


def write_plan(study: Study) -> None:
    """Write the plan, or check that it is still the one that was written."""
    primary = study.settings.primary
    if not primary.comparisons:
        raise InputError(
            "no primary comparison is named",
            where="primary.comparisons",
            fix="Name one, such as 'mapo - base'",
        )
    methods = list(dict.fromkeys(name for pair in primary.pairs for name in pair))
    cases = sorted(scenario.id for scenario in load_scenarios(study.split("test")))
    plan = {
        "schema": SCHEMA,
        "comparisons": [f"{a} - {b}" for a, b in primary.pairs],
        "metric": "EPM-Q of the test dialogues, played and judged under judge B",
        "cases": {"count": len(cases), "digest": digest(cases)},
        "runs": [run.name for run in study.tested if run.method in methods],
        "test": "two-sided sign-flip test over cases, of differences averaged over the seeds",
        "correction": "Holm, over these comparisons",
        "level": primary.level,
        "left_out": f"a case that the test of one of these runs could not play in {ATTEMPTS} attempts is "
        "left out of these comparisons for all methods and seeds; cases that other tests lost stay in; a "
        f"test that lost more than {MAX_LOST:.0%} of the cases has failed, and so have these comparisons if "
        "the tests of these runs together lost more than that",
        "secondary": "all other comparisons, measures and judges",
    }
    if study.plan.exists():
        earlier = read_plan(study)
        begun = any((study.work / "stages").glob("train_*.json"))
        if {key: earlier.get(key) for key in plan} == plan:
            return
        if begun:
            raise InputError(
                "the primary comparison, or what it is about, differs from the one that was named before the "
                "trainings",
                where=str(study.plan),
                fix="Repeat the earlier settings, or use another --work",
            )
    written = datetime.now(UTC).isoformat(timespec="seconds")
    write_atomic(study.plan, json.dumps({**plan, "written": written}, indent=1) + "\n")


def read_plan(study: Study) -> dict[str, Any]:
    """Return the plan; empty before `prepare` wrote it."""
    return dict(json.loads(study.plan.read_text("utf-8"))) if study.plan.exists() else {}
