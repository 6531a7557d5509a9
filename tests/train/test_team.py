"""Several processes train as one: the same step up to rounding, the same ways to fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
import torch

import small
from mapo.store import read_jsonl
from mapo.train.team import Team
from mapo.train.update import joined


def command(model, out, *overrides):
    given = [*small.SMALL, f"model.source={model}", "rollout.scenarios=4", "eval.test_repeats=1", *overrides]
    return [sys.executable, "-m", "mapo", "train", "pocket", *given, "--out", str(out)]


def run(model, out, *overrides):
    return subprocess.run(command(model, out, *overrides), capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small.model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def alone(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "run"
    done = run(model, out)
    assert done.returncode == 0, done.stderr
    return out


def test_two_processes_learn_what_one_learns(model, alone, tmp_path):
    done = run(model, tmp_path / "two", "run.processes=2")
    assert done.returncode == 0, done.stderr
    a, b = (list(read_jsonl(out / "metrics.jsonl")) for out in (alone, tmp_path / "two"))
    # the first step has the same weights and noise: the same dialogues, and the same gradient up to rounding
    for key in ("reward", "return", "tokens", "dialogues", "turns"):
        assert a[0][key] == b[0][key], key
    assert a[0]["grad_norm"] == pytest.approx(b[0]["grad_norm"], rel=1e-4)
    assert a[0]["entropy"] == pytest.approx(b[0]["entropy"], rel=1e-4)
    assert len(list((tmp_path / "two" / "dialogues").glob("step_00001*.jsonl"))) == 2
    summary = json.loads((tmp_path / "two" / "summary.json").read_text())
    assert summary["dialogues"] == 32 and summary["before"]["n"] == 12


def test_a_killed_team_goes_on_as_if_undisturbed(model, tmp_path):
    whole = run(model, tmp_path / "whole", "run.processes=2")
    assert whole.returncode == 0, whole.stderr
    with subprocess.Popen(
        command(model, tmp_path / "cut", "run.processes=2"),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        for line in process.stderr:
            if line.startswith("step 2"):
                os.killpg(process.pid, signal.SIGKILL)
    done = run(model, tmp_path / "cut", "run.processes=2", "--resume")
    assert done.returncode == 0, done.stderr
    assert small.weights(tmp_path / "cut", 4) == small.weights(tmp_path / "whole", 4)


def test_a_team_of_one_is_nobody_else():
    team = Team()
    assert team.gather([1, 2]) == [1, 2] and team.leads
    parameter = torch.nn.Parameter(torch.ones(2))
    team.sum_gradients([parameter])
    team.wait()
    assert parameter.grad is None


def test_means_are_joined_by_their_tokens():
    parts = [
        {"tokens": 1.0, "entropy": 3.0, "ratio_max": 2.0, "kl_ref": 5.0},
        {},
        {"tokens": 3.0, "entropy": 1.0, "ratio_max": 1.0},
    ]
    # entropy (1 * 3 + 3 * 1) / 4; the distance from the start was measured by one of them
    assert joined(parts) == {"tokens": 4.0, "entropy": 1.5, "ratio_max": 2.0, "kl_start": 5.0}
    assert joined([{}]) == {}
