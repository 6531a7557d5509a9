"""benchmarks/ablation.py chooses rates, compares methods by seed and writes tables of the docs."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "benchmarks")]
import docs_tables  # noqa: E402


@pytest.fixture(scope="module")
def ablation():
    spec = importlib.util.spec_from_file_location("ablation", ROOT / "benchmarks" / "ablation.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["ablation"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def found(epm_q):
    part = {"epm_q": epm_q, "passes": 1, "n": 24}
    return {"before": {**part, "epm_q": 20.0}, "after": part, "validation": part, "by_step": [20.0, epm_q]}


@pytest.fixture
def tested(ablation):
    """Two methods and seeds; MAPO is 10 and 14 ahead of GRPO, and gains 1 and 3 if endings are continued."""
    scores = {
        ("mapo", "continued"): (40.0, 46.0),
        ("mapo", "cut"): (39.0, 43.0),
        ("grpo", "continued"): (30.0, 32.0),
        ("grpo", "cut"): (30.0, 32.0),
    }
    return {
        ablation.Training(method, "idr", endings, "3e-4", seed): found(epm_q)
        for (method, endings), of_seeds in scores.items()
        for seed, epm_q in enumerate(of_seeds)
    }


def test_the_rate_with_the_best_validation_is_taken(ablation):
    tuned = {
        ablation.Training("mapo", "idr", "continued", rate, 100): found(epm_q)
        for rate, epm_q in (("1.5e-4", 30.0), ("3e-4", 41.0), ("6e-4", 40.0))
    }
    assert ablation.best_rates(tuned) == {("mapo", "idr"): "3e-4"}


def test_methods_are_compared_seed_by_seed(ablation, tested):
    rates = {("mapo", "idr"): "3e-4", ("grpo", "idr"): "3e-4"}
    mapo, grpo = ablation.table(tested, rates)
    assert mapo["method"] == "mapo" and mapo["continued"].startswith("43.0 ± ") and mapo["ahead"] == ""
    assert mapo["gain"] == "+2.0 (-10.7 to +14.7)"  # t(1) = 12.706, s = sqrt(2)
    assert grpo["gain"] == "+0.0 (+0.0 to +0.0)" and grpo["ahead"] == "+12.0 (-13.4 to +37.4)"


def test_the_result_files_are_tables_of_the_docs(ablation, tested, tmp_path):
    rates = {("mapo", "idr"): "3e-4", ("grpo", "idr"): "3e-4"}
    settings = ["pocket", *ablation.COMMON]
    files = ablation.result_files(tested, rates, settings, "python benchmarks/ablation.py")
    shown = []
    for number, data in enumerate(files):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(data))
        shown.append(docs_tables.render(docs_tables.read_result(file)))
    assert "|mapo|idr|3e-4|43.0 ± 38.1|41.0 ± 25.4|+2.0 (-10.7 to +14.7)||" in shown[0]
    assert "64 dialogues" not in shown[0] and "16 x 4 dialogues of up to 20 turns; untrained 20.0" in shown[0]
    assert "|mapo|idr|continued|3e-4|1|46.00|1|20.0 46.0|" in shown[1]


def test_a_finished_training_is_not_repeated_and_a_failed_one_is_left_out(
    ablation, tmp_path, monkeypatch, capsys
):
    good, bad = (ablation.Training("mapo", "idr", "cut", "3e-4", seed) for seed in (0, 1))
    folder = tmp_path / good.name
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"score": 21.26}\n{"score": 30.0}\n')
    (folder / "summary.json").write_text(json.dumps({"after": {"epm_q": 31.0, "passes": 0}}))
    commands = []

    def refuse(command, **options):
        commands.append(command)
        return subprocess.CompletedProcess(command, 2, "", "error: no such config\n")

    monkeypatch.setattr(ablation.subprocess, "run", refuse)
    result = ablation.run_all([good, bad], tmp_path, ["pocket"], jobs=2)
    assert {t.seed: r["by_step"] for t, r in result.items()} == {0: [21.3, 30.0]}
    [command] = commands
    assert "run.seed=1" in command and "--resume" not in command
    assert f"failed: {bad.name}: error: no such config" in capsys.readouterr().out
