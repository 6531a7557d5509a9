r"""Compare methods, rewards and the treatment of endings, with tuned learning rates.

    .venv/bin/python benchmarks/tuned_methods.py --json docs/results/tuned-methods.json \
        [--jobs 14] [--set model.device=cuda]

`mapo ablate` first trains every method and reward with each rate and a seed of its own; the rate with the
best validation score is taken. Then it trains them with both treatments of endings and several seeds, each
followed by the test. Called again with the same --out, the command trains what is missing.

Dialogues are longer than in the config `pocket` (20 turns): in shorter ones hardly any ends early, so that
the treatment of endings changes nothing. --json writes two result files for scripts/docs_tables.py: the table
of methods, and beside it FILE-runs.json with every training.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from seeds import judge_of

from mapo.config import load_config
from mapo.errors import MapoError
from mapo.evals.ablation.cells import GridCell
from mapo.measure.stats import t_interval
from mapo.store import RunDir

METHODS = ("mapo", "turn", "batch", "grpo", "reinforce++", "reinforce++_turn")
REWARDS, ENDINGS = ("idr", "adr"), ("continued", "cut")
RATES = ("1.5e-4", "3e-4", "6e-4")
TUNING_SEED = 100
COMMON = ("run.processes=1", "rollout.max_turns=20", "rollout.at_once=64")


@dataclass(frozen=True, slots=True)
class Tested:
    """A training and its test."""

    method: str
    reward: str
    endings: str
    rate: str
    seed: int
    before: float
    after: float
    passed: int
    by_step: tuple[float, ...]
    """The training score of each step."""


Rates = dict[tuple[str, str], str]
"""The learning rate of each method and reward."""


def ablate(settings: Sequence[str], out: Path, *options: str) -> None:
    """Run `mapo ablate`; if runs fail, this program ends."""
    if subprocess.run([sys.executable, "-m", "mapo", "ablate", *settings, "--out", out, *options]).returncode:
        sys.exit(f"trainings in {out} failed; the same command tries them again")


def summary(run: RunDir) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(run.summary.read_text(encoding="utf-8"))
    return result


def tuned_rates(folder: Path) -> Rates:
    """Return the rate of the best validation score of each method and reward."""
    rates = {}
    for method, reward in product(METHODS, REWARDS):
        scores = {}
        for rate in RATES:
            settings = {"advantage.method": method, "reward.name": reward, "optim.lr": float(rate)}
            run = RunDir(folder / GridCell.of(settings, TUNING_SEED).name)
            scores[rate] = summary(run)["validation"]["epm_q"]
        rates[method, reward] = max(scores, key=scores.__getitem__)
    return rates


def read_test(folder: Path, method: str, reward: str, endings: str, rate: str, seed: int) -> Tested:
    settings = {"advantage.method": method, "reward.name": reward}
    run = RunDir(folder / GridCell.of(settings, seed).name)
    outcome = summary(run)
    steps = [json.loads(line) for line in run.metrics.read_text(encoding="utf-8").splitlines()]
    return Tested(
        method,
        reward,
        endings,
        rate,
        seed,
        outcome["before"]["epm_q"],
        outcome["after"]["epm_q"],
        outcome["after"]["passes"],
        tuple(round(step["score"], 1) for step in steps),
    )


def mean(values: Sequence[float]) -> str:
    """Return the mean and half of its 95 % interval over seeds."""
    interval = t_interval(values)
    return f"{fmean(values):.1f}" + (f" ± {(interval[1] - interval[0]) / 2:.1f}" if interval else "")


def gain(ones: dict[int, float], others: dict[int, float]) -> str:
    """Return the mean difference of two sets of scores by seed, with its interval."""
    differences = [ones[seed] - others[seed] for seed in ones if seed in others]
    interval = t_interval(differences)
    return f"{fmean(differences):+.1f} ({interval[0]:+.1f} to {interval[1]:+.1f})" if interval else ""


def by_seed(tests: Sequence[Tested], method: str, reward: str, endings: str) -> dict[int, float]:
    wanted = (method, reward, endings)
    return {test.seed: test.after for test in tests if (test.method, test.reward, test.endings) == wanted}


def table(tests: Sequence[Tested], rates: Rates) -> list[dict[str, Any]]:
    """Return a row per method and reward, and how far MAPO is ahead with the same reward."""
    rows = []
    for (method, reward), rate in rates.items():
        scores = {endings: by_seed(tests, method, reward, endings) for endings in ENDINGS}
        row = {"method": method, "reward": reward, "rate": rate}
        row |= {endings: mean(list(scores[endings].values())) for endings in ENDINGS}
        row["gain"] = gain(scores["continued"], scores["cut"])
        mapo = by_seed(tests, "mapo", reward, "continued")
        row["ahead"] = gain(mapo, scores["continued"]) if method != "mapo" else ""
        rows.append(row)
    return rows


def result_files(
    tests: Sequence[Tested], rates: Rates, settings: Sequence[str], command: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the table of methods and that of all trainings."""
    config = load_config(settings[0], list(settings[1:]))
    seeds = len({test.seed for test in tests})
    about = {
        "command": command,
        **judge_of(config),
        "setup": f"Held-out EPM-Q after {config.optim.steps} steps of {config.rollout.scenarios} x "
        f"{config.rollout.siblings} dialogues of up to {config.rollout.max_turns} turns; untrained "
        f"{fmean(test.before for test in tests):.1f}. {seeds} seeds; ± and brackets: 95 % intervals over "
        f"seeds (Student's t), differences paired by seed. Rate: best of {', '.join(RATES)} in the "
        "validation of one more seed, with endings continued.",
    }
    columns = {
        "method": "{method}",
        "reward": "{reward}",
        "rate": "{rate}",
        "EPM-Q, endings continued": "{continued}",
        "endings cut": "{cut}",
        "gain of continuing": "{gain}",
        "MAPO ahead by (continued)": "{ahead}",
    }
    run_columns = {
        **{name: f"{{{name}}}" for name in ("method", "reward", "endings", "rate", "seed")},
        "EPM-Q": "{epm_q:.2f}",
        "passed": "{passed}",
        "training score by step": "{training}",
    }
    runs = [
        {
            "method": test.method,
            "reward": test.reward,
            "endings": test.endings,
            "rate": test.rate,
            "seed": test.seed,
            "epm_q": round(test.after, 2),
            "passed": test.passed,
            "training": " ".join(map(str, test.by_step)),
        }
        for test in tests
    ]
    return (
        {**about, "columns": columns, "rows": table(tests, rates)},
        {**about, "columns": run_columns, "rows": runs},
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="pocket")
    parser.add_argument("--set", nargs="*", default=[], help="settings of all trainings (KEY.PATH=VALUE)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="trainings side by side")
    parser.add_argument("--out", type=Path, default=Path("runs/tuned-methods"))
    parser.add_argument("--json", type=Path, help="result file to write")
    args = parser.parse_args()
    settings = [args.config, *COMMON, *args.set]
    try:
        steps = load_config(args.config, [*COMMON, *args.set]).optim.steps
    except MapoError as error:
        sys.exit(str(error))
    jobs = f"--jobs={args.jobs}"
    tuning = [*settings, f"eval.every={steps}", "eval.test_repeats=0", f'advantage.endings="{ENDINGS[0]}"']
    grid = [f"--methods={','.join(METHODS)}", f"--rewards={','.join(REWARDS)}"]
    rate_axis = f"--vary=optim.lr={','.join(RATES)}"
    ablate(tuning, args.out / "tune", *grid, rate_axis, f"--seeds={TUNING_SEED},", jobs)
    rates = tuned_rates(args.out / "tune")
    tests = []
    for endings, reward, rate in product(ENDINGS, REWARDS, RATES):
        methods = [method for method in METHODS if rates[method, reward] == rate]
        if not methods:
            continue
        folder = args.out / f"{endings}_{reward}_{rate}"
        tested = [*settings, "eval.every=0", f'advantage.endings="{endings}"', f"optim.lr={rate}"]
        grid = [f"--methods={','.join(methods)}", f"--rewards={reward}", f"--seeds={args.seeds}"]
        ablate(tested, folder, *grid, jobs)
        tests += [
            read_test(folder, method, reward, endings, rate, seed)
            for method, seed in product(methods, range(args.seeds))
        ]
    for row in table(tests, rates):
        print(*row.values(), sep="  ")
    if args.json:
        command = [
            "python",
            "benchmarks/tuned_methods.py",
            "--config",
            args.config,
            "--seeds",
            str(args.seeds),
        ]
        command += ["--set", *args.set] if args.set else []
        files = result_files(tests, rates, settings, shlex.join(command))
        for path, data in zip((args.json, args.json.with_stem(f"{args.json.stem}-runs")), files, strict=True):
            path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
