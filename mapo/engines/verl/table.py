"""The tables verl reads its prompts from: one row per scenario, in the run directory.

verl requires a prompt in every row. A dialogue builds its own prompts, so the one here appears only in verl's
logs. The training table lists the scenarios of all steps in the order of the local engine, so verl must not
shuffle it.
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
    """Write train.parquet, validation.parquet and test.parquet; return their paths by split.

    The content depends only on the arguments, so a resumed run gets the same tables.
    """
    from mapo.train.rollouts import step_jobs

    rollout, steps = config.rollout, config.optim.steps
    train_order = [
        job.scenario
        for step in range(1, steps + 1)
        for job in step_jobs(
            scenarios["train"], step, per_step=rollout.scenarios, siblings=1, seed=config.run.seed
        )
    ]
    files = {}
    repeats = {
        "train": rollout.siblings,
        "validation": config.eval.repeats,
        "test": config.eval.test_repeats,
    }
    for split, count in repeats.items():
        members = train_order if split == "train" else scenarios[split]
        files[split] = folder / f"{split}.parquet"
        _write(files[split], [_row(scenario, split, index, count) for index, scenario in enumerate(members)])
    return files


def _row(scenario: Scenario, split: str, index: int, repeats: int) -> dict[str, Any]:
    return {
        "__rollout_n__": repeats,
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
    temporary = file.with_suffix(".new")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), temporary)
    temporary.replace(file)
