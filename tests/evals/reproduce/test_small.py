"""The whole pipeline on the embedded model: killed in the middle, resumed, and its table."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import pytest

from mapo.untrusted import PYTHON, own_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def command(out, *options):
    return [*PYTHON, "-m", "mapo", "reproduce", "table1", "--small", "--out", str(out), *options]


def test_a_killed_reproduction_resumes_and_prints_the_table_beside_the_papers(tmp_path):
    out = tmp_path / "repro"
    first = subprocess.Popen(
        command(out), env=own_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 300
    while not (out / "train-7b-grpo" / "manifest.json").exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 143
    done = subprocess.run(command(out), env=own_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Test world" in done.stdout
    assert "58.9" in done.stdout
    assert "Deviations from the paper" in done.stdout
    table = json.loads((out / "table1.json").read_text())
    assert [row["label"] for row in table["rows"]] == ["base model", "GRPO", "MAPO"]
    assert all(row["measured"]["n"] == 4 for row in table["rows"])
    assert (out / "table1.md").read_text().count("|") > 20
    steps = (out / "train-7b-grpo" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in steps] == [1, 2]
    other = subprocess.run(
        command(out, "optim.lr=1e-3"), env=own_environment(), capture_output=True, text=True, check=False
    )
    assert other.returncode == 2
    assert "other settings" in other.stderr
