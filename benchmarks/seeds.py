"""Train with several seeds and test every run under several judges.

    .venv/bin/python benchmarks/seeds.py --judge scripted --judge local:made/judge_2 \
        --json docs/results/make-train.json [--seeds 5] [--out DIR]

For each seed: `mapo train pocket run.seed=K`, whose test has the judge of training, then `mapo eval empa` of
the exported policy under each further judge, with the settings of the config. The untrained policy is tested
once per further judge. Prints scores, time and memory, and the mean gain under each judge with a Student's t
interval over seeds. A run that is complete in DIR is not repeated. --json writes a result file for
scripts/docs_tables.py, which names the judge of training and its weights.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

from mapo.config import Config, load_config
from mapo.local_model.shipped import local_folder
from mapo.measure.stats import t_interval
from mapo.players.identity import fingerprint

SCRIPTED = "scripted"


def mapo(*words: object) -> None:
    """Run a command of mapo; its output is shown only if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "mapo", *map(str, words)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"mapo {' '.join(map(str, words))} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def measured(command: list[object]) -> tuple[float, float]:
    """Run a command of mapo; return its seconds and the peak of the memory of all its processes in GB."""
    began, peak = time.monotonic(), 0
    child = subprocess.Popen([sys.executable, "-m", "mapo", *map(str, command)])
    while child.poll() is None:
        peak = max(peak, memory_of(child.pid))
        time.sleep(0.5)
    if child.returncode:
        sys.exit(f"mapo {' '.join(map(str, command))} failed")
    return time.monotonic() - began, peak / 1e9


def memory_of(process: int) -> int:
    """Return the proportional memory of a process and its descendants in bytes (Linux)."""
    total, waiting = 0, [process]
    while waiting:
        folder = Path("/proc") / str(waiting.pop())
        try:
            rollup = (folder / "smaps_rollup").read_text()
            waiting += [
                int(child)
                for children in folder.glob("task/*/children")
                for child in children.read_text().split()
            ]
        except OSError:  # it has ended
            continue
        total += sum(int(row.split()[1]) * 1024 for row in rollup.splitlines() if row.startswith("Pss:"))
    return total


def score(folder: Path) -> dict[str, Any]:
    """Return EPM-Q with its interval over scenarios, and passes, of an evaluation."""
    done = subprocess.run(
        [sys.executable, "-m", "mapo", "score", str(folder), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    [model] = json.loads(done.stdout)
    low, high = model["intervals"]["epm_q"]
    return {"epm_q": model["epm_q"], "low": low, "high": high, "passes": model["passes"], "n": model["n"]}


def evaluate(policy: str, judge: str, out: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Test a policy under a judge, unless that was done."""
    config = load_config(args.config, args.set)
    words: list[Any] = ["--model", policy, "--scenarios", "builtin:test"]
    words += ["--repeats", args.repeats or config.eval.test_repeats]
    words += ["--temperature", config.eval.temperature, "--top-p", config.eval.top_p]
    words += ["--max-tokens", config.rollout.max_tokens]
    words += ["--max-turns", config.eval.max_turns] if config.eval.max_turns else []
    words += [] if config.rollout.system else ["--no-system"]
    words += [] if judge == SCRIPTED else ["--agents", SCRIPTED, "--judge-model", judge]
    if needs_run(out / "done", words):
        mapo("eval", "empa", *words, "--out", out, *(["--resume"] if out.exists() else []))
        (out / "done").write_text(json.dumps({"settings": list(map(str, words))}))
    return score(out)


def needs_run(record: Path, settings: list[Any]) -> bool:
    """Return whether work has no record yet. If it was done with other settings, the program ends."""
    if not record.exists():
        return True
    try:
        recorded = json.loads(record.read_text())["settings"]
    except (ValueError, KeyError):  # from an earlier version
        recorded = None
    if recorded != list(map(str, settings)):
        sys.exit(f"{record.parent} was made with other settings; give another --out")
    return False


def train(seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train and test with one seed, unless that was done."""
    out = args.out / f"seed_{seed}"
    figures = out / "measured.json"
    settings = [args.config, f"run.seed={seed}", *args.set]
    if needs_run(figures, settings):
        seconds, memory = measured(
            ["train", *settings, "--out", out, *(["--resume"] if out.exists() else [])]
        )
        done = {
            "settings": list(map(str, settings)),
            "seconds": round(seconds),
            "gigabytes": round(memory, 2),
        }
        figures.write_text(json.dumps(done))
    exported = args.out / f"policy_{seed}"
    if not exported.exists():
        mapo("export", out, "--out", exported)
    measures = json.loads(figures.read_text())
    row: dict[str, Any] = {"seed": seed, **{name: measures[name] for name in ("seconds", "gigabytes")}}
    row["training"] = (score(out / "eval" / "before"), score(out / "eval" / "after"))
    for judge in args.judge:
        name = judge.rpartition(":")[2].replace("/", "_")
        before = evaluate(args.model, judge, args.out / f"before_{name}", args)
        row[judge] = (before, evaluate(f"local:{exported}", judge, args.out / f"after_{seed}_{name}", args))
    return row


def judge_of(config: Config) -> dict[str, str]:
    """Return the entries of a result file that name the judge of training, and its weights if it is local."""
    model = config.roles.judge.model if config.roles.judge else None
    if model is None:
        return {"judge": SCRIPTED}
    folder = local_folder(model.removeprefix("local:"))
    weights = {"judge_weights": fingerprint(folder)} if model.startswith("local:") and folder.is_dir() else {}
    return {"judge": model, **weights}


def mean_gain(values: list[float]) -> str:
    """Return the mean gain over seeds with its interval, as text."""
    interval = t_interval(values) if len(values) > 1 else None
    return f"{fmean(values):+.1f}" + (f" ({interval[0]:+.1f} to {interval[1]:+.1f})" if interval else "")


def result_file(
    rows: list[dict[str, Any]], gains: dict[str, list[float]], args: argparse.Namespace
) -> dict[str, Any]:
    """Return the trainings as a result file of scripts/docs_tables.py: one row per seed."""
    columns = {
        "seed": "{seed}",
        "EPM-Q before": "{before:.1f} ({before_low:.1f} to {before_high:.1f})",
        "EPM-Q after": "{after:.1f} ({after_low:.1f} to {after_high:.1f})",
        "gain": "{gain:+.1f}",
        "passed after": "{passed}/{n}",
        **{f"gain, judge {judge}": f"{{gain_{k}:+.1f}}" for k, judge in enumerate(args.judge, 1)},
        "seconds": "{seconds}",
        "GB": "{gigabytes:.1f}",
    }
    table = []
    for place, row in enumerate(rows):
        before, after = row["training"]
        entry = {"seed": row["seed"]}
        for when, tested in (("before", before), ("after", after)):
            entry |= {
                when: round(tested["epm_q"], 2),
                f"{when}_low": round(tested["low"], 2),
                f"{when}_high": round(tested["high"], 2),
            }
        entry |= {"gain": round(gains["training"][place], 2), "passed": after["passes"], "n": after["n"]}
        entry |= {f"gain_{k}": round(gains[judge][place], 2) for k, judge in enumerate(args.judge, 1)}
        table.append({**entry, "seconds": row["seconds"], "gigabytes": row["gigabytes"]})
    means = [f"Mean gain {mean_gain(gains['training'])}"]
    means += [f"under the judge {judge} {mean_gain(gains[judge])}" for judge in args.judge]
    return {
        "command": " ".join(["mapo train", args.config, "run.seed=K", *args.set]),
        **judge_of(load_config(args.config, args.set)),
        "setup": f"{'; '.join(means)}; intervals of means: Student's t over seeds, of scores: bootstrap over "
        f"scenarios, 95 %. Seconds and memory with both tests. {os.cpu_count()} {platform.machine()} cores.",
        "columns": columns,
        "rows": table,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="pocket")
    parser.add_argument("--model", default="local:pocket", help="the untrained policy")
    parser.add_argument("--set", nargs="*", default=[], help="settings of the trainings (KEY.PATH=VALUE)")
    parser.add_argument("--judge", action="append", default=[], help="further judge: local:NAME, or scripted")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--repeats", type=int, help="dialogues per scenario under further judges (default: as in the test)"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/seeds"))
    parser.add_argument("--json", type=Path, help="result file to write")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for seed in range(args.seeds):
        rows.append(row := train(seed, args))
        print(f"seed {seed}: {row['seconds']} s, {row['gigabytes']} GB", flush=True)
        for judge in ("training", *args.judge):
            before, after = row[judge]
            shown = " -> ".join(
                f"{x['epm_q']:.1f} ({x['low']:.1f} to {x['high']:.1f})" for x in (before, after)
            )
            print(f"  judge {judge}: {shown}, passed {after['passes']}/{after['n']}", flush=True)
    gains = {
        judge: [row[judge][1]["epm_q"] - row[judge][0]["epm_q"] for row in rows]
        for judge in ("training", *args.judge)
    }
    for judge, values in gains.items():
        print(f"mean gain under judge {judge}: {mean_gain(values)}")
    if args.json:
        text = json.dumps(result_file(rows, gains, args), indent=1) + "\n"
        args.json.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
