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
from mapo.store import BadLine, RunDir, read_dialogues, read_steps


def training_costs(study: Study) -> list[dict[str, Any]]:
    """Return one row per finished training: seconds, dialogues, tokens, calls, and API costs by model."""
    from mapo.cli.common.models import read_prices

    prices = read_prices(Path(study.inputs.prices)) if study.inputs.prices else {}
    rates = read_rates(tomllib.loads(EXAMPLE), "the example rates")
    rows = []
    for run in study.trainings:
        folder = RunDir(study.run(run))
        if not folder.summary.exists():
            continue
        steps = read_steps(folder.metrics)
        turns = _turns(folder)
        judge, people = Demand(), Demand()
        for n in turns:
            judge += dialogue_demand(rates, "judge", n)
            for role in AGENT_ROLES:
                people += dialogue_demand(rates, role, n) if role != "judge" else Demand()
        rows.append(
            {
                "run": run.name,
                "steps": len(steps),
                "dialogues": len(turns),
                "turns": sum(turns),
                "seconds": _seconds(study, f"train_{run.name}"),
                "rollout_s": sum(step["rollout_s"] for step in steps),
                "update_s": sum(step["update_s"] for step in steps),
                "sampled_tokens": sum(step["sampled_tokens"] for step in steps),
                "trained_tokens": sum(step["tokens"] for step in steps),
                "judge_calls": sum(turns),
                "judge_prompt_tokens": judge.prompt,
                "judge_output_tokens": judge.output,
                "judge_cost": {model: _cost(judge, price) for model, price in prices.items()},
                "cast_cost": {model: _cost(people + judge, price) for model, price in prices.items()},
            }
        )
    return rows


def _turns(run: RunDir) -> list[int]:
    """Return the turns of every dialogue of a training, validations included."""
    files = [*run.dialogues.glob("step_*.jsonl"), *run.evals.glob("*/*.jsonl")]
    read = (d for file in sorted(files) for d in read_dialogues(file))
    return [len(d.turns) for d in read if not isinstance(d, BadLine) and d.turns]


def _cost(demand: Demand, price: Any) -> float:
    counts = {"prompt": demand.prompt, "cached": demand.cached, "completion": demand.output}
    return cost_of(counts, price)


def _seconds(study: Study, command: str) -> float | None:
    """Return the seconds of a command, starts and interruptions included."""
    return stage_seconds(study).get(command)


def stage_seconds(study: Study) -> dict[str, float]:
    """Return the seconds of every command."""
    folder = StageFiles(study.work).out / "stages"
    records = {file.stem: json.loads(file.read_text("utf-8")) for file in sorted(folder.glob("*.json"))}
    return {name: float(record["seconds"]) for name, record in records.items()}
