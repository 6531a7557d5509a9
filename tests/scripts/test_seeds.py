"""benchmarks/seeds.py writes a result file that scripts/docs_tables.py renders."""

from __future__ import annotations

import importlib.util
import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from mapo.config import load_config
from mapo.local_model.shipped import POCKET_JUDGE
from mapo.players.identity import fingerprint

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import docs_tables  # noqa: E402


@pytest.fixture(scope="module")
def seeds():
    spec = importlib.util.spec_from_file_location("seeds", ROOT / "benchmarks" / "seeds.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def scores(epm_q):
    return {"epm_q": epm_q, "low": epm_q - 1, "high": epm_q + 1, "passes": 3, "n": 24}


def row(seed, gain):
    pair = (scores(20.0), scores(20.0 + gain))
    return {"seed": seed, "seconds": 300, "gigabytes": 1.5, "training": pair, "scripted": pair}


@pytest.fixture
def result(seeds):
    args = Namespace(config="pocket", set=["optim.lr=1e-4"], judge=["scripted"])
    return seeds.result_file(
        [row(0, 4.0), row(1, 8.0)], {"training": [4.0, 8.0], "scripted": [1.0, 2.0]}, args
    )


def test_the_result_file_names_the_judge_and_its_weights(result):
    assert result["judge"] == "local:pocket-judge"
    assert result["judge_weights"] == fingerprint(POCKET_JUDGE)


def test_the_result_file_is_a_table_of_the_docs(result, tmp_path):
    file = tmp_path / "make-train.json"
    file.write_text(json.dumps(result))
    text = docs_tables.render(docs_tables.read_result(file))
    assert "|0|20.0 (19.0 to 21.0)|24.0 (23.0 to 25.0)|+4.0|3/24|+1.0|300|1.5|" in text
    assert "*Judge: local:pocket-judge (weights " in text
    assert "Mean gain +6.0 (-19.4 to +31.4); under the judge scripted +1.5" in text  # t(1) = 12.706, s = 2.83
    assert text.strip().endswith("Command: `mapo train pocket run.seed=K optim.lr=1e-4`")


def test_the_plain_code_judge_has_no_weights(seeds):
    assert seeds.judge_of(load_config("pocket", ["roles.judge.model="])) == {"judge": "scripted"}


@pytest.mark.parametrize("record", ['{"settings": ["--repeats", "3"]}', "", '{"seconds": 180}'])
def test_work_that_was_done_with_other_settings_is_not_taken_for_this_one(seeds, tmp_path, record):
    file = tmp_path / "done"
    assert seeds.needs_run(file, ["--repeats", 2])
    file.write_text(json.dumps({"settings": ["--repeats", "2"]}))
    assert not seeds.needs_run(file, ["--repeats", 2])
    file.write_text(record)
    with pytest.raises(SystemExit, match="other settings"):
        seeds.needs_run(file, ["--repeats", 2])
