"""Scenarios -> the tables verl reads its prompts from: one row a scenario, in the run directory.

verl wants a prompt in every row; the dialogue itself begins with the scenario's own words, so the prompt here
is only what verl's logs see. The training table has every step's scenarios in the order of the local engine;
verl must not shuffle it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mapo.config import Config
from mapo.scenarios.scenario import Scenario

AGENT = "mapo_dialogue"
"""The agent loop's name in verl."""


def write_tables(folder: Path, config: Config, scenarios: dict[str, Sequence[Scenario]]) -> dict[str, Path]:
    """train.parquet, validation.parquet and test.parquet; written once, the same again on a resume."""
    from mapo.train.rollouts import step_jobs

    r, steps = config.rollout, config.optim.steps
    order = [
        job.scenario
        for step in range(1, steps + 1)
        for job in step_jobs(scenarios["train"], step, per_step=r.scenarios, siblings=1, seed=config.run.seed)
    ]
    found = {}
    repeats = {"train": r.siblings, "validation": config.eval.repeats, "test": config.eval.test_repeats}
    for split, times in repeats.items():
        rows = order if split == "train" else scenarios[split]
        found[split] = folder / f"{split}.parquet"
        _write(found[split], [_row(scenario, split, at, times) for at, scenario in enumerate(rows)])
    return found


def _row(scenario: Scenario, split: str, index: int, times: int) -> dict[str, Any]:
    return {
        "__rollout_n__": times,
        "data_source": f"mapo/{split}",
        "agent_name": AGENT,
        "prompt": [{"role": "user", "content": scenario.opening}],
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": index, "scenario": scenario.id, "split": split},
    }


def _write(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), new)
    new.replace(file)
