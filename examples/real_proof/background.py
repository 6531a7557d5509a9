"""Tables about how the results came about: judges, people, learning rates and costs."""

from __future__ import annotations

import json

from costs import training_costs
from measures import MAX_LOST
from study import Study
from tables import EMPTY_TABLE, Row, Table, table

from mapo.store import RunDir


def tuning(study: Study) -> Table:
    if not study.rates_file.exists():
        return EMPTY_TABLE
    found = json.loads(study.rates_file.read_text("utf-8"))
    rows = [
        {**row, "chosen": "yes" if found["chosen"][row["method"]] == row["rate"] else ""}
        for row in found["scores"]
    ]
    columns = {
        "method": "{method}",
        "rate": "{rate:g}",
        "validation EPM-Q": "{epm_q:.1f}",
        "scenarios lost": "{lost}",
        "chosen": "{chosen}",
    }
    setup = (
        f"{study.settings.tune.steps} steps each, seed {study.settings.tune.seed}, validation under judge A "
        f"on the {found['scenarios']} scenarios that all of them played; {found['left_out']} left out. A "
        f"training that lost more than {MAX_LOST:.0%} of the scenarios has no score and is not chosen."
    )
    return table(setup, columns, rows)


def judges(study: Study) -> Table:
    rows = []
    halves = json.loads(study.halves.read_text("utf-8")) if study.halves.exists() else {}
    for name in "ab":
        file = RunDir(study.judge(name)).role
        if not file.exists():
            continue
        result = json.loads(file.read_text("utf-8"))
        for part, measured in result["tests"].items():
            rows.append(
                {
                    "judge": name.upper(),
                    "policies": ", ".join(halves.get(name, ())),
                    "unseen": part,
                    "turns": measured.get("turns"),
                    "kappa": measured.get("kappa"),
                    "correlation": measured.get("correlation"),
                    "within": measured.get("within"),
                    "attacks": _attacks(result) if part == "both" else None,
                }
            )
    columns = {
        "judge": "{judge}",
        "learned from": "{policies}",
        "unseen": "{unseen}",
        "turns": "{turns}",
        "mean kappa": "{kappa:.2f}",
        "step correlation": "{correlation:.2f}",
        "within dialogues": "{within:.2f}",
        "attacks that worked": "{attacks}",
    }
    return table("Agreement with the recorded judge on held-out recordings of each half.", columns, rows)


def _attacks(result: Row) -> str | None:
    attacks = (result.get("probes") or {}).get("attacks")
    return f"{len(attacks['worked'])}/{attacks['tried']}" if attacks else None


HEALTH = ("repeated", "shared", "as_assistant", "other_language", "off_persona", "warm_after_miss")


def people(study: Study) -> Table:
    if not study.people_file.exists():
        return EMPTY_TABLE
    found = json.loads(study.people_file.read_text("utf-8"))
    rows = []
    for kind, cast in found["casts"].items():
        health, fidelity = cast["health"], cast["fidelity"]
        row: Row = {"cast": kind, "used": "yes" if kind == found["chosen"] else ""}
        row |= {key: 100 * health[key] for key in HEALTH if health.get(key) is not None}
        row |= {
            "lines": health["lines"],
            "warnings": len(health["warnings"]),
            "fidelity": fidelity.get("score"),
        }
        rows.append(row)
    columns = {
        "user and director": "{cast}",
        "lines": "{lines}",
        **{key.replace("_", " "): f"{{{key}:.1f}} %" for key in HEALTH},
        "warnings": "{warnings}",
        "fidelity": "{fidelity:.2f}",
        "used": "{used}",
    }
    setup = (
        "The base model as policy on validation scenarios under judge A. Health: docs/sandbox.md; fidelity: "
        "against the recorded users, 1 if a classifier cannot tell them apart."
    )
    return table(setup, columns, rows)


def cost(study: Study) -> Table:
    rows, priced = training_costs(study)
    columns = {
        "run": "{run}",
        "steps": "{steps}",
        "dialogues": "{dialogues:,}",
        "turns = judge calls": "{turns:,}",
        "seconds": "{seconds:.0f}",
        "of rollouts": "{rollout_s:.0f}",
        "of updates": "{update_s:.0f}",
        "sampled tokens (M)": "{sampled_tokens:.2f}",
        "trained tokens (M)": "{trained_tokens:.2f}",
        "judge tokens at an API (M)": "{judge_tokens:.1f}",
        **{f"judge: {model}": f"{{judge_{i}:,.2f}}" for i, model in enumerate(priced)},
        **{f"all roles: {model}": f"{{cast_{i}:,.2f}}" for i, model in enumerate(priced)},
    }
    setup = (
        "Seconds include starting and interruptions. API tokens and costs are estimates: counted calls times "
        "the typical call of `mapo plan`."
    )
    return table(setup, columns, rows)
