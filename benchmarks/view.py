"""Measure `mapo view` on many runs: time of the first index, response times of the pages, memory.

    python benchmarks/view.py [RUNS] [DIALOGUES]

Writes runs to a temporary folder, starts the real server on it in another process, and requests every kind of
page.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from mapo import Rubric  # noqa: E402
from mapo.records import encode_dialogue  # noqa: E402
from support import view_runs  # noqa: E402

STEPS = 10
REQUESTS = 15
OVERLAID = 6


def make(root: Path, runs: int, dialogues: int) -> float:
    """Write runs that differ in names and numbers; return their size in gigabytes."""
    rubric = Rubric.load("empathy")
    per_step = dialogues // STEPS
    base = [
        encode_dialogue(
            view_runs.talk(rubric, f"{i // 4:03d}_scenario-{i // 4}_{i % 4}", turns=8, seed=i, step=1)
        )
        for i in range(per_step)
    ]
    held = [
        encode_dialogue(view_runs.talk(rubric, f"held-{i}_1", tags=view_runs.TAGS[i % 3])) for i in range(12)
    ]
    for r in range(runs):
        run = root / f"group-{r % 10}" / f"run-{r:03d}"
        (run / "dialogues").mkdir(parents=True)
        (run / "config.toml").write_text(view_runs.CONFIG.format(method="mapo", steps=STEPS))
        (run / "manifest.json").write_text(
            json.dumps({"schema": "mapo.train/1", "method": "mapo", "seed": r})
        )
        lines = [json.dumps(view_runs.metrics_line(step)) for step in range(1, STEPS + 1)]
        (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        for step in range(1, STEPS + 1):
            mark = b'"step":%d' % step
            with open(run / "dialogues" / f"step_{step:05d}.jsonl", "wb") as file:
                file.writelines(line.replace(b'"step":1', mark) + b"\n" for line in base)
        for part in ("before", "after"):
            (run / "eval" / part).mkdir(parents=True)
            (run / "eval" / part / "dialogues.jsonl").write_bytes(b"\n".join(held) + b"\n")
    return sum(f.stat().st_size for f in root.rglob("*") if f.is_file()) / 1e9


def fetch(address: str) -> tuple[float, bytes]:
    began = time.perf_counter()
    with urllib.request.urlopen(address, timeout=600) as answer:
        body = answer.read()
    return time.perf_counter() - began, body


def memory_mb(pid: int) -> float:
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def wait_for_index(site: str) -> float:
    """Wait until all runs are indexed; return the seconds."""
    began = time.perf_counter()
    while True:
        if json.loads(fetch(f"{site}api/version")[1])["busy"] is None:
            return time.perf_counter() - began
        time.sleep(0.5)


def measure(site: str, runs: int, dialogues: int) -> None:
    """Request every kind of page and print the response times."""
    middle = runs // 2
    run = f"group-{middle % 10}:run-{middle:03d}"
    dialogue = f"run/{run}/d/dialogues:step_00005.jsonl/{min(7, dialogues // STEPS - 1)}"
    overlaid = [f"run=group-{i}:run-{i:03d}" for i in range(min(runs, OVERLAID))]
    words = urllib.parse.quote("reply 3")
    pages = {
        "runs": "",
        "one run": f"run/{run}",
        "its figures": f"api/figures?run={run}",
        "several runs' figures": "api/figures?" + "&".join(overlaid),
        "dialogues, all runs": "dialogues",
        "dialogues of a run": f"dialogues?run={run}&part=train&step=5",
        "by reward, all runs": "dialogues?low=0.5&sort=reward",
        "search, all runs": f"dialogues?q={words}",
        "search in a run": f"dialogues?run={run}&q={words}",
        "one dialogue": dialogue,
        "its trajectory": f"api/{dialogue}/trajectory",
        "compare": f"compare?run={run}",
        "benchmarks": "benchmarks",
    }
    print(f"{'page':22} {'median ms':>10} {'worst ms':>9} {'kB':>7}")
    for name, path in pages.items():
        responses = [fetch(site + path) for _ in range(REQUESTS)]
        times = [1000 * seconds for seconds, _ in responses]
        print(
            f"{name:22} {statistics.median(times):10.0f} {max(times):9.0f} {len(responses[0][1]) / 1000:7.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=int, nargs="?", default=200, help="number of runs (default: 200)")
    parser.add_argument(
        "dialogues", type=int, nargs="?", default=500, help="training dialogues per run (default: 500)"
    )
    args = parser.parse_args()
    runs, dialogues = args.runs, args.dialogues
    if runs < 1 or dialogues < STEPS:
        parser.error(f"there must be at least 1 run and {STEPS} dialogues per run")
    with tempfile.TemporaryDirectory(prefix="mapo-view-bench-") as folder:
        root = Path(folder) / "runs"
        size = make(root, runs, dialogues)
        print(f"{runs} runs, {runs * (dialogues // STEPS * STEPS + 24):,} dialogues, {size:.2f} GB")
        env = {**os.environ, "XDG_CACHE_HOME": f"{folder}/cache"}
        command = [sys.executable, "-m", "mapo", "view", str(root), "--port", "0"]
        for attempt in ("first index", "opened again"):
            with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as server:
                site = re.search(r"http://\S+/", server.stderr.readline())[0]
                try:
                    print(
                        f"{attempt}: {wait_for_index(site):.1f} s, {memory_mb(server.pid):.0f} MB", flush=True
                    )
                    if attempt == "opened again":
                        measure(site, runs, dialogues)
                        print(f"memory afterwards: {memory_mb(server.pid):.0f} MB")
                finally:
                    server.send_signal(signal.SIGINT)
        cached = sum(f.stat().st_size for f in Path(folder, "cache").rglob("*") if f.is_file()) / 1e9
        print(f"index: {cached:.2f} GB")


if __name__ == "__main__":
    main()
