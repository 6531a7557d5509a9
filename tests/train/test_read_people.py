"""Training among scripted people whose judge is a trained local model."""

import json
import shutil

import pytest

from mapo.report import write_report
from mapo.runs.training import read_training
from mapo.sandbox.readout import BRIEF
from mapo.scripted.world import World
from support import small_run
from support.command import mapo
from support.local_cast import trained_judge


@pytest.fixture(scope="module")
def judge(cast_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("judges") / "reader"
    return trained_judge(shutil.copytree(cast_model, folder), layout=BRIEF)


@pytest.fixture(scope="module")
def run(cast_model, judge, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "read"
    settings = (
        *small_run.SMALL,
        f"model.source={cast_model}",
        "model.device=cpu",
        f"roles.judge.model=local:{judge}",
        "rollout.scenarios=2",
        "rollout.siblings=2",
        "rollout.max_turns=2",
        "rollout.at_once=4",
        "optim.steps=1",
        "eval.every=0",
        "eval.test_repeats=1",
        "eval.max_turns=2",
    )
    done = mapo("train", *settings, "--out", out)
    assert done.returncode == 0, done.stderr
    return out, done.stdout + done.stderr


def test_the_judge_is_recorded_beside_scripted_people(run):
    out, _ = run
    files = [out / "dialogues" / "step_00001.jsonl", *out.glob("eval/*/dialogues.jsonl")]
    assert len(files) == 3
    for file in files:
        dialogue = json.loads(file.read_text().splitlines()[0])
        assert dialogue["cast"] == {"user": "scripted", "director": "scripted", "judge": "reader"}
        assert all(len(turn["probabilities"]) == 6 for turn in dialogue["turns"])


def test_no_text_calls_the_judge_scripted(run):
    out, printed = run
    notice = "user and director are scripted"
    assert notice in " ".join(printed.split())
    assert "judge are scripted" not in " ".join(printed.split())
    report = write_report(out).read_text(encoding="utf-8")
    assert notice in report and "judge are scripted" not in report


def test_the_run_is_not_taken_for_the_scripted_world(run):
    read = read_training(run[0])
    assert read.world == World("empathy", "reader")
