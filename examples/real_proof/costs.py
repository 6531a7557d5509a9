"""What the trainings took, and what their judge would have cost at an API.

Calls and turns are counted in the records. The tokens of a judge's call are the typical ones of `mapo plan`
(they grow with the turns): an estimate, unlike the counts.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from study import Study

from mapo.evals.reproduce.execute import StageFiles
from mapo.models.ledger import cost_of
from mapo.planning.demand import AGENT_ROLES, Demand, dialogue_demand
from mapo.planning.rates import EXAMPLE, read_rates
from mapo.store import RunDir, read_steps


def training_costs(study: Study) -> tuple[list[dict[str, Any]], list[str]]:
    """Return one row per finished training (seconds, dialogues, millions of tokens, API costs), and the
    models whose prices are known."""
    from mapo.cli.common.models import read_prices

    prices = read_prices(Path(study.inputs.prices)) if study.inputs.prices else {}
    rates = read_rates(tomllib.loads(EXAMPLE), "the example rates")
    rows = []
    for run in study.trainings:
        if not study.turn_counts(run).exists():
            continue
        steps = read_steps(RunDir(study.run(run)).metrics)
        turns = json.loads(study.turn_counts(run).read_text("utf-8"))
        by_role = {
            role: sum((dialogue_demand(rates, role, n) for n in turns), Demand()) for role in AGENT_ROLES
        }
        judge, everyone = by_role["judge"], sum(by_role.values(), Demand())
        rows.append(
            {
                "run": run.name,
                "steps": len(steps),
                "dialogues": len(turns),
                "turns": sum(turns),
                "seconds": stage_seconds(study).get(f"train_{run.name}"),
                "rollout_s": sum(step["rollout_s"] for step in steps),
                "update_s": sum(step["update_s"] for step in steps),
                "sampled_tokens": sum(step["sampled_tokens"] for step in steps) / 1e6,
                "trained_tokens": sum(step["tokens"] for step in steps) / 1e6,
                "judge_tokens": (judge.prompt + judge.output) / 1e6,
                **{f"judge_{i}": _cost(judge, price) for i, price in enumerate(prices.values())},
                **{f"cast_{i}": _cost(everyone, price) for i, price in enumerate(prices.values())},
            }
        )
    return rows, list(prices)


def _cost(demand: Demand, price: Any) -> float:
    counts = {"prompt": demand.prompt, "cached": demand.cached, "completion": demand.output}
    return cost_of(counts, price)


def stage_seconds(study: Study) -> dict[str, float]:
    """Return the seconds of every command."""
    folder = StageFiles(study.work).out / "stages"
    records = {file.stem: json.loads(file.read_text("utf-8")) for file in sorted(folder.glob("*.json"))}
    return {name: float(record["seconds"]) for name, record in records.items()}
