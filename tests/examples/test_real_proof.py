"""The comparison of examples/real_proof with a tiny model on built-in scenarios: killed, resumed, carried to
another place, read."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mapo.scenarios.sets import read_set
from support.recordings import recordings, write_judged_turns

ROOT = Path(__file__).parents[2]
PROOF = ROOT / "examples" / "real_proof" / "proof.py"
SMALL = """
train = [
  "model.lora.rank=2", "model.lora.alpha=4", "model.device=cpu", "model.checkpointing=false",
  "roles.user.max_tokens=12", "rollout.scenarios=2", "rollout.siblings=2", "rollout.max_turns=3",
  "rollout.max_tokens=7", "rollout.context=2048", "rollout.at_once=4", "optim.steps=3", "optim.tokens=2048",
  "eval.every=1", "eval.max_turns=3", "run.checkpoint_every=1", "run.threads=1",
]
[primary]
comparisons = ["mapo - base"]
[data]
official = false
validation = 2
test = 5
[judges]
options = ["--lora", "2", "--tokens", "3072", "--epochs", "1", "--no-refit", "--device", "cpu"]
[people]
learn = []
[tune]
rates = [1e-2]
[methods.mapo]
settings = ["advantage.method=mapo"]
[test]
options = ["--max-turns", "3", "--max-tokens", "7", "--user-max-tokens", "12"]
base_seeds = 1
[pairs]
count = 2
"""


UNPLAYABLE = "career-dropped-not"
"""A test scenario whose opening does not fit into the context."""


@pytest.fixture
def call(tmp_path, cast_model):
    """Return a function that starts a stage of one study in its own process group."""
    root = tmp_path / "here"
    root.mkdir()
    (root / "small.toml").write_text(SMALL)
    shutil.copytree(cast_model, root / "tiny")
    files = read_set("builtin:all").files
    for name in sorted(files)[:9]:
        (root / "own").mkdir(exist_ok=True)
        shutil.copy(files[name], root / "own")
    long = root / "own" / f"{UNPLAYABLE}.toml"
    long.write_text(
        long.read_text().replace('opening = "', 'opening = "' + "I do not know what to say. " * 400)
    )
    write_judged_turns(root / "turns.jsonl.gz", recordings(6, 3, turns=2))
    inputs = ["--settings", "small.toml", "--model", "tiny", "--cards", "own", "--turns", "turns.jsonl.gz"]

    def start(stage: str, *words: str, where: Path = root) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, str(PROOF), stage, "--work", "work", *inputs, *words],
            cwd=where,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    start.root = root
    return start


def finished(process: subprocess.Popen, status: int = 0) -> str:
    text, _ = process.communicate()
    assert process.returncode == status, text
    return text


def results_of(work: Path) -> dict:
    """Return the rows of all tables, without times."""
    times = ("seconds", "rollout_s", "update_s")
    files = [file for file in (work / "results").glob("*.json") if file.name != "scores.json"]
    tables = {file.stem: json.loads(file.read_text())["rows"] for file in files}
    return {
        name: [{k: v for k, v in row.items() if k not in times} for row in rows]
        for name, rows in tables.items()
    }


@pytest.mark.slow
def test_a_comparison_that_is_killed_and_carried_to_another_place(call):
    work, there = call.root / "work", call.root.parent / "there"
    assert "run the same command" in finished(call("all", "--minutes", "0.02"), status=3)
    killed = call("all", "--jobs", "2")
    while not (work / "runs/mapo_0/checkpoints/step_00001").exists():
        assert killed.poll() is None, killed.communicate()[0]
        time.sleep(0.2)  # there is nothing to wait on but files of other processes
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    killed.stdout.close()

    finished(call("pack", "--file", "packed.tar.gz", "--part-mb", "0.1"))
    there.mkdir()
    shutil.copytree(call.root / "tiny", there / "tiny")
    shutil.copy(call.root / "small.toml", there)
    parts = [file for file in call.root.glob("packed.tar.gz.*") if shutil.copy(file, there)]
    assert len(parts) > 2 and max(part.stat().st_size for part in parts) <= 100_000
    finished(call("unpack", "--file", "packed.tar.gz", where=there))
    both = [call("all", "--jobs", "1"), call("all", "--jobs", "1", where=there)]
    for resumed in map(finished, both):
        assert "judge_a begins" not in resumed  # nothing is repeated
        assert "train_mapo_0 took" in resumed and "goes on without" in resumed
    assert "resumed at step" in (work / "logs/train_mapo_0.log").read_text()
    results = results_of(work)
    assert results == results_of(there / "work")
    scores = work / "results/scores.json"
    assert scores.read_bytes() == (there / "work/results/scores.json").read_bytes()
    finished(call("pool", "--work", "pooled", "--scores", str(scores)))
    [pooled] = json.loads((call.root / "pooled/primary.json").read_text())["rows"]
    assert pooled["mean"] == pytest.approx(results["primary"][0]["mean"], abs=1e-3)

    assert [(row["judge"], row["case"]) for row in results["left_out"]] == [
        ("B", UNPLAYABLE),
        ("A", UNPLAYABLE),
    ]
    [primary] = results["primary"]
    assert (primary["difference"], primary["cases"]) == ("mapo - base", 4)
    assert [row["method"] for row in results["methods"]] == ["base", "mapo"]
    steps = [(row["run"], row["step"]) for row in results["agreement"]]
    assert steps == [("base_0", 0), ("mapo_0", 1), ("mapo_0", 2), ("mapo_0", 3)]
    base, mapo = results["quality"]
    assert abs(base["kl"]) < 1e-4 and base["fluency"] < 0 and mapo["tokens"] == 7
    assert results["cost"][0]["dialogues"] == 3 * 4 + 3 * 2  # three steps and three validations
    page = (work / "report.md").read_text()
    assert "Left out: 1 of 5 cases" in page

    with open(work / "pairs/verdicts.csv", encoding="utf-8") as file:
        pairs = [row["pair"] for row in csv.DictReader(file)]
    key = json.loads((work / "pairs_key.json").read_text())["pairs"]
    verdicts = "".join(f"{pair},{'1' if key[pair]['1'] == 'trained' else '2'},\n" for pair in pairs)
    (call.root / "read.csv").write_text(f"pair,verdict,reason\n{verdicts}")
    assert "trained 2, base 0, tie 0" in finished(call("verdicts", "--file", "read.csv"))

    names = {"small": [], "whole": ["--everything"]}
    for name, words in names.items():
        finished(call("pack", "--file", f"{name}.tar.gz", *words))
        listed = subprocess.run(
            ["tar", "tzf", f"{name}.tar.gz.000"], cwd=call.root, capture_output=True, text=True
        )
        names[name] = listed.stdout
    assert "optimizer" not in names["whole"] and "tokenizer" not in names["whole"]
    assert "policies/mapo_0/adapter_model.safetensors" in names["whole"]
    assert "policies/mapo_0" not in names["small"]  # it is tested
