r"""Compare methods, rewards and the treatment of endings, with a learning rate tuned for each.

    .venv/bin/python benchmarks/ablation.py --json docs/results/ablation.json \
        [--jobs 14] [--set model.device=cuda]

For every method and reward, one training per rate with a seed of its own; the rate with the best validation
score is taken. Then every method with both rewards and both treatments of endings, with several seeds, each
followed by the test. Each training is a process with one thread, --jobs of them side by side. One that is
complete in --out is not repeated, and one that was stopped continues.

Dialogues are longer than in the config `pocket` (20 turns): in shorter ones hardly any ends early, so that
the treatment of endings changes nothing. --json writes two result files for scripts/docs_tables.py: the table
of methods, and beside it FILE-runs.json with every training.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from seeds import judge_of

from mapo.config import load_config
from mapo.measure.stats import t_interval

METHODS = ("mapo", "turn", "batch", "grpo", "reinforce++", "reinforce++_turn")
REWARDS, ENDINGS = ("idr", "adr"), ("continued", "cut")
RATES = ("1.5e-4", "3e-4", "6e-4")
TURNS = 20
TUNING_SEED = 100
COMMON = ("run.processes=1", f"rollout.max_turns={TURNS}", "rollout.at_once=64")


@dataclass(frozen=True, slots=True)
class Training:
    """One training of the comparison."""

    method: str
    reward: str
    endings: str
    rate: str
    seed: int

    @property
    def name(self) -> str:
        return "_".join((self.method, self.reward, self.endings, self.rate, f"seed{self.seed}"))

    @property
    def settings(self) -> list[str]:
        return [
            f'advantage.method="{self.method}"',
            f'reward.name="{self.reward}"',
            f'advantage.endings="{self.endings}"',
            f"optim.lr={self.rate}",
            f"run.seed={self.seed}",
        ]


def summary(folder: Path) -> dict[str, Any]:
    """Return what a finished training found, with the training score of each step."""
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        **json.loads((folder / "summary.json").read_text()),
        "by_step": [round(step["score"], 1) for step in steps],
    }


def run(training: Training, folder: Path, settings: Sequence[str]) -> dict[str, Any] | None:
    """Train, unless that was done; return what was found, or None after a failure."""
    if not (folder / "summary.json").exists():
        resume = ["--resume"] if (folder / "manifest.json").exists() else []
        command = [sys.executable, "-m", "mapo", "train", *settings, *training.settings, "--out", str(folder)]
        done = subprocess.run(
            [*command, *resume],
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            print(f"failed: {training.name}: {done.stderr.strip()[-400:]}", flush=True)
            return None
    found = summary(folder)
    score = found.get("after") or found.get("validation")
    print(f"{training.name}: {score['epm_q']:.1f}" if score else training.name, flush=True)
    return found


def run_all(
    trainings: Sequence[Training], out: Path, settings: Sequence[str], jobs: int
) -> dict[Training, dict[str, Any]]:
    """Run trainings side by side; return those that did not fail."""
    with ThreadPoolExecutor(jobs) as pool:
        found = pool.map(lambda training: run(training, out / training.name, settings), trainings)
        return {training: each for training, each in zip(trainings, found, strict=True) if each is not None}


def best_rates(tuned: dict[Training, dict[str, Any]]) -> dict[tuple[str, str], str]:
    """Return the rate of the best validation score of each method and reward."""
    scores: dict[tuple[str, str], dict[str, float]] = {}
    for training, found in tuned.items():
        scores.setdefault((training.method, training.reward), {})[training.rate] = found["validation"][
            "epm_q"
        ]
    return {key: max(of_rate, key=of_rate.__getitem__) for key, of_rate in scores.items()}


def mean(values: Sequence[float]) -> dict[str, float]:
    """Return the mean and half of its 95 % interval over seeds."""
    interval = t_interval(values)
    half = (interval[1] - interval[0]) / 2 if interval else float("nan")
    return {"mean": round(fmean(values), 1), "pm": round(half, 1)}


def gain(one: dict[int, float], other: dict[int, float]) -> str:
    """Return the mean difference of two lists of scores by seed, with its interval."""
    differences = [one[seed] - other[seed] for seed in one if seed in other]
    interval = t_interval(differences)
    if interval is None:
        return ""
    return f"{fmean(differences):+.1f} ({interval[0]:+.1f} to {interval[1]:+.1f})"


def by_seed(
    tested: dict[Training, dict[str, Any]], method: str, reward: str, endings: str
) -> dict[int, float]:
    """Return the test scores of one method by seed."""
    wanted = (method, reward, endings)
    return {
        training.seed: found["after"]["epm_q"]
        for training, found in tested.items()
        if (training.method, training.reward, training.endings) == wanted
    }


def table(tested: dict[Training, dict[str, Any]], rates: dict[tuple[str, str], str]) -> list[dict[str, Any]]:
    """Return a row per method and reward, and how far MAPO is ahead with the same reward."""
    rows = []
    for reward, method in product(REWARDS, METHODS):
        scores = {endings: by_seed(tested, method, reward, endings) for endings in ENDINGS}
        if not all(scores.values()):
            continue
        row: dict[str, Any] = {"method": method, "reward": reward, "rate": rates[method, reward]}
        for endings in ENDINGS:
            row[endings] = "{mean} ± {pm}".format(**mean(list(scores[endings].values())))
        row["gain"] = gain(scores["continued"], scores["cut"])
        ahead = gain(by_seed(tested, "mapo", reward, "continued"), scores["continued"])
        row["ahead"] = ahead if method != "mapo" else ""
        rows.append(row)
    return rows


def result_files(
    tested: dict[Training, dict[str, Any]],
    rates: dict[tuple[str, str], str],
    settings: Sequence[str],
    command: str,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the table of methods and that of all trainings."""
    config = load_config(settings[0], list(settings[1:]))
    before = [found["before"]["epm_q"] for found in tested.values()]
    seeds = len({training.seed for training in tested})
    about = {
        "command": command,
        **judge_of(config),
        "setup": f"Held-out EPM-Q after {config.optim.steps} steps of {config.rollout.scenarios} x "
        f"{config.rollout.siblings} dialogues of up to {config.rollout.max_turns} turns; untrained "
        f"{fmean(before):.1f}. {seeds} seeds; ± and brackets: 95 % intervals over seeds (Student's t), "
        f"differences paired by seed. Rate: best of {', '.join(RATES)} in the validation of one more seed.",
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
    runs = [
        {
            "method": training.method,
            "reward": training.reward,
            "endings": training.endings,
            "rate": training.rate,
            "seed": training.seed,
            "epm_q": round(found["after"]["epm_q"], 2),
            "passed": found["after"]["passes"],
            "training": " ".join(map(str, found["by_step"])),
        }
        for training, found in tested.items()
    ]
    run_columns = {
        **{name: f"{{{name}}}" for name in ("method", "reward", "endings", "rate", "seed")},
        "EPM-Q": "{epm_q:.2f}",
        "passed": "{passed}",
        "training score by step": "{training}",
    }
    return (
        {**about, "columns": columns, "rows": table(tested, rates)},
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
    parser.add_argument("--out", type=Path, default=Path("runs/ablation"))
    parser.add_argument("--json", type=Path, help="result file to write")
    args = parser.parse_args()
    settings = [args.config, *COMMON, *args.set]
    steps = load_config(args.config, [*COMMON, *args.set]).optim.steps
    tuning = [
        Training(method, reward, ENDINGS[0], rate, TUNING_SEED)
        for method, reward, rate in product(METHODS, REWARDS, RATES)
    ]
    validated = [f"eval.every={steps}", "eval.test_repeats=0"]
    rates = best_rates(run_all(tuning, args.out / "tune", [*settings, *validated], args.jobs))
    print(json.dumps({f"{method} {reward}": rate for (method, reward), rate in rates.items()}, indent=1))
    trainings = [
        Training(method, reward, endings, rates[method, reward], seed)
        for seed, endings, reward, method in product(range(args.seeds), ENDINGS, REWARDS, METHODS)
        if (method, reward) in rates
    ]
    tested = run_all(trainings, args.out / "test", [*settings, "eval.every=0"], args.jobs)
    for row in table(tested, rates):
        print(*row.values(), sep="  ")
    if args.json:
        command = " ".join(["python benchmarks/ablation.py", *(["--set", *args.set] if args.set else [])])
        files = result_files(tested, rates, settings, command)
        for path, data in zip((args.json, args.json.with_stem(f"{args.json.stem}-runs")), files, strict=True):
            path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if len(tested) < len(trainings) or len(rates) < len(METHODS) * len(REWARDS):
        sys.exit("some trainings failed; the same command tries them again")


if __name__ == "__main__":
    main()
