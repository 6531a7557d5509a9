"""benchmarks/tuned_methods.py chooses rates, compares methods by seed and writes tables of the docs."""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "benchmarks")]
import docs_tables  # noqa: E402
import tuned_methods  # noqa: E402

RATES = {("mapo", "idr"): "3e-4", ("grpo", "idr"): "3e-4"}


@pytest.fixture
def tests():
    """Two methods and seeds; MAPO is 10 and 14 ahead of GRPO, and gains 1 and 3 if endings are continued."""
    scores = {
        ("mapo", "continued"): (40.0, 46.0),
        ("mapo", "cut"): (39.0, 43.0),
        ("grpo", "continued"): (30.0, 32.0),
        ("grpo", "cut"): (30.0, 32.0),
    }
    return [
        tuned_methods.Tested(method, "idr", endings, "3e-4", seed, 20.0, after, 1, (20.0, after))
        for (method, endings), of_seeds in scores.items()
        for seed, after in enumerate(of_seeds)
    ]


def test_methods_are_compared_seed_by_seed(tests):
    mapo, grpo = tuned_methods.table(tests, RATES)
    assert (mapo["continued"], mapo["cut"]) == ("43.0 ± 38.1", "41.0 ± 25.4")  # t(1) = 12.706
    assert mapo["gain"] == "+2.0 (-10.7 to +14.7)"  # s = sqrt(2)
    assert mapo["ahead"] == ""
    assert grpo["gain"] == "+0.0 (+0.0 to +0.0)"
    assert grpo["ahead"] == "+12.0 (-13.4 to +37.4)"


def test_one_seed_has_no_intervals(tests):
    mapo, grpo = tuned_methods.table([test for test in tests if test.seed == 0], RATES)
    assert (mapo["continued"], mapo["gain"], grpo["ahead"]) == ("40.0", "", "")


def test_the_result_files_are_tables_of_the_docs(tests, tmp_path):
    settings = ["pocket", *tuned_methods.COMMON]
    files = tuned_methods.result_files(tests, RATES, settings, "python benchmarks/tuned_methods.py")
    shown = []
    for number, data in enumerate(files):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(data))
        shown.append(docs_tables.render(docs_tables.read_result(file)))
    assert "|mapo|idr|3e-4|43.0 ± 38.1|41.0 ± 25.4|+2.0 (-10.7 to +14.7)||" in shown[0]
    assert "16 x 4 dialogues of up to 20 turns; untrained 20.0" in shown[0]
    assert "|mapo|idr|continued|3e-4|1|46.00|1|20.0 46.0|" in shown[1]


def ablate_nothing(commands, best):
    """Return a stand-in for `mapo ablate` that writes what its runs would have found."""

    def ablate(settings, out, *options):
        commands.append((settings, out.name, options))
        options = dict(option.removeprefix("--").split("=", 1) for option in options)
        seeds = [100] if out.name == "tune" else range(int(options["seeds"]))
        rates = tuned_methods.RATES if out.name == "tune" else [None]
        methods, rewards = options["methods"].split(","), options["rewards"].split(",")
        for method, reward, rate, seed in product(methods, rewards, rates, seeds):
            varied = {"advantage.method": method, "reward.name": reward}
            varied |= {"optim.lr": float(rate)} if rate else {}
            run = tuned_methods.RunDir(out / tuned_methods.GridCell.of(varied, seed).name)
            run.root.mkdir(parents=True)
            score = {"epm_q": 50.0 if rate == best(method, reward) else 40.0, "passes": 0}
            outcome = {"before": score, "after": score, "validation": score}
            run.summary.write_text(json.dumps(outcome))
            run.metrics.write_text('{"score": 21.26}\n')

    return ablate


def test_each_method_is_tested_with_the_rate_of_its_best_validation(tmp_path, monkeypatch):
    commands = []
    best = lambda method, reward: "6e-4" if (method, reward) == ("mapo", "idr") else "1.5e-4"  # noqa: E731
    monkeypatch.setattr(tuned_methods, "ablate", ablate_nothing(commands, best))
    file = tmp_path / "tuned.json"
    options = ["--out", str(tmp_path / "out"), "--json", str(file), "--seeds", "2"]
    monkeypatch.setattr(sys, "argv", ["tuned_methods.py", *options])
    tuned_methods.main()
    tuning, *testing = commands
    assert "eval.test_repeats=0" in tuning[0]
    folders = {folder: options for _, folder, options in testing}
    assert set(folders) == {
        *("continued_idr_6e-4", "continued_idr_1.5e-4", "continued_adr_1.5e-4"),
        *("cut_idr_6e-4", "cut_idr_1.5e-4", "cut_adr_1.5e-4"),
    }
    assert "--methods=mapo" in folders["cut_idr_6e-4"]
    assert len(json.loads(file.read_text())["rows"]) == 12
    assert len(json.loads(file.with_stem("tuned-runs").read_text())["rows"]) == 6 * 2 * 2 * 2


def test_failed_trainings_end_the_program(tmp_path):
    with pytest.raises(SystemExit, match="tries them again"):
        tuned_methods.ablate(["no-such-config"], tmp_path / "out")
