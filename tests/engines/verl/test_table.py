"""The tables verl reads: the local engine's scenarios in its order, written the same each time."""

from __future__ import annotations

import pyarrow.parquet
import pytest

from mapo.config import load_config
from mapo.engines.verl.table import AGENT, write_tables
from mapo.train.rollouts import step_jobs
from mapo.train.run import chosen_scenarios


@pytest.fixture(scope="module")
def config():
    # more steps than one epoch has scenarios
    settings = [
        "optim.steps=9",
        "rollout.scenarios=16",
        "run.seed=3",
        "eval.repeats=5",
        "eval.test_repeats=4",
    ]
    return load_config(None, settings)


@pytest.fixture(scope="module")
def scenarios(config):
    return chosen_scenarios(config)


def test_the_training_table_has_the_local_engines_order(config, scenarios, tmp_path):
    files = write_tables(tmp_path / "verl", config, scenarios)
    table = pyarrow.parquet.read_table(files["train"]).to_pylist()
    jobs = [
        job.scenario
        for step in range(1, 10)
        for job in step_jobs(scenarios["train"], step, per_step=16, siblings=4, seed=3)[::4]
    ]
    assert [row["extra_info"]["scenario"] for row in table] == [scenario.id for scenario in jobs]
    assert [row["prompt"] for row in table] == [[{"role": "user", "content": s.opening}] for s in jobs]
    assert [row["extra_info"]["index"] for row in table] == list(range(9 * 16))
    assert {row["__rollout_n__"] for row in table} == {4}
    assert {row["agent_name"] for row in table} == {AGENT}


@pytest.mark.parametrize(("split", "times"), [("validation", 5), ("test", 4)])
def test_held_out_tables_have_every_scenario_once(split, times, config, scenarios, tmp_path):
    files = write_tables(tmp_path, config, scenarios)
    table = pyarrow.parquet.read_table(files[split]).to_pylist()
    assert [row["extra_info"]["scenario"] for row in table] == [s.id for s in scenarios[split]]
    assert {(row["__rollout_n__"], row["extra_info"]["split"]) for row in table} == {(times, split)}
    assert {row["data_source"] for row in table} == {f"mapo/{split}"}


def test_written_again_they_are_the_same(config, scenarios, tmp_path):
    first = {s: f.read_bytes() for s, f in write_tables(tmp_path, config, scenarios).items()}
    again = {s: f.read_bytes() for s, f in write_tables(tmp_path, config, scenarios).items()}
    assert first == again
    assert sorted(f.name for f in tmp_path.iterdir()) == sorted(f"{s}.parquet" for s in first)
