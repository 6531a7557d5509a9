"""The comparison of examples/real_proof with a tiny model on built-in scenarios: killed, resumed, read."""

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
  "rollout.max_tokens=7", "rollout.context=2048", "rollout.at_once=4", "optim.steps=2", "optim.tokens=2048",
  "eval.every=1", "eval.max_turns=3", "run.checkpoint_every=1", "run.threads=1",
]
[data]
official = false
validation = 2
test = 2
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


@pytest.fixture(scope="module")
def call(tmp_path_factory, cast_model):
    """Return a function that starts a stage of one study in its own process group."""
    root = tmp_path_factory.mktemp("proof")
    (root / "small.toml").write_text(SMALL)
    shutil.copytree(cast_model, root / "tiny")
    files = read_set("builtin:all").files
    for name in sorted(files)[:6]:
        (root / "own").mkdir(exist_ok=True)
        shutil.copy(files[name], root / "own")
    write_judged_turns(root / "turns.jsonl.gz", recordings(6, 3, turns=2))
    inputs = ["--settings", "small.toml", "--model", "tiny", "--cards", "own", "--turns", "turns.jsonl.gz"]

    def start(stage: str, *words: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, str(PROOF), stage, "--work", "work", *inputs, *words],
            cwd=root,
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


@pytest.mark.slow
def test_a_comparison_that_is_killed_and_resumed(call):
    work = call.root / "work"
    assert "run the same command" in finished(call("all", "--minutes", "0.02"), status=3)
    killed = call("all", "--jobs", "2")
    while not (work / "stages/train_mapo_0.json").exists():
        assert killed.poll() is None, killed.communicate()[0]
        time.sleep(0.2)  # there is nothing to wait on but files of other processes
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    resumed = finished(call("all", "--jobs", "2"))
    assert "judge_a begins" not in resumed  # nothing is repeated
    assert "train_mapo_0 took" in resumed

    names = ("methods", "differences", "judges", "people", "quality", "agreement", "cost", "curves")
    results = {name: json.loads((work / f"results/{name}.json").read_text()) for name in names}
    assert [row["method"] for row in results["methods"]["rows"]] == ["base", "mapo"]
    assert {row["judge"] for row in results["differences"]["rows"]} == {"A", "B"}
    steps = [(row["run"], row["step"]) for row in results["agreement"]["rows"]]
    assert steps == [("base_0", 0), ("mapo_0", 1), ("mapo_0", 2)]
    assert [line["step"] for line in results["curves"][0]["steps"]] == [1, 2]
    base, mapo = results["quality"]["rows"]
    assert abs(base["kl"]) < 1e-4 and base["fluency"] < 0 and mapo["tokens"] == 7
    assert results["cost"]["rows"][0]["dialogues"] == 2 * 4 + 2 * 2  # two steps and two validations
    page = (work / "report.md").read_text()
    assert "## Paired differences" in page

    with open(work / "pairs/verdicts.csv", encoding="utf-8") as file:
        pairs = [row["pair"] for row in csv.DictReader(file)]
    key = json.loads((work / "pairs_key.json").read_text())["pairs"]
    verdicts = "".join(f"{pair},{'1' if key[pair]['1'] == 'trained' else '2'},\n" for pair in pairs)
    (call.root / "read.csv").write_text(f"pair,verdict,reason\n{verdicts}")
    assert "trained 2, base 0, tie 0" in finished(call("verdicts", "--file", "read.csv"))

    finished(call("pack", "--file", "packed.tar"))
    listed = subprocess.run(["tar", "tf", "packed.tar"], cwd=call.root, capture_output=True, text=True).stdout
    assert "work/policies/mapo_0/adapter_model.safetensors" in listed
    assert "optimizer" not in listed and "tokenizer" not in listed
