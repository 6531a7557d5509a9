"""mapo roles train, from recordings to a folder that can be used as a role."""

from __future__ import annotations

import gzip
import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from mapo.errors import TrainError
from mapo.local_model.role_file import check_role, read_role_file
from mapo.records import encode_dialogue
from mapo.roles.learning import Settings
from mapo.roles.recordings import read_all
from mapo.roles.run import Options, train_role
from mapo.sandbox.readout import BRIEF
from mapo.store import RunDir
from support.command import mapo
from support.recordings import EMPATHY, recordings, scenarios, write_judged_turns

SHIPPED = Path(__file__).parents[2] / "mapo" / "domains" / "empathy" / "scenarios"
FAST = ["--tokens", "3072", "--epochs", "1", "--lr", "1e-3", "--device", "cpu"]


def train(role, source, model, out, *more):
    return mapo(
        "roles",
        "train",
        "--role",
        role,
        "--from",
        str(source),
        "--model",
        str(model),
        "--out",
        str(out),
        *FAST,
        *more,
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_judged_turns(tmp_path_factory.mktemp("from") / "rec.jsonl.gz", recordings(3, 3, turns=3))


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    file = tmp_path_factory.mktemp("from") / "run" / "dialogues" / "empa.jsonl"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"".join(encode_dialogue(r.dialogue) + b"\n" for r in recordings(3, 3, turns=3)))
    return file.parent.parent


@pytest.fixture(scope="module")
def judge_folder(tmp_path_factory, source, model_folder):
    out = tmp_path_factory.mktemp("out") / "judge"
    done = train("judge", source, model_folder, out, "--reasons", "1")
    assert done.returncode == 0, done.stderr
    steps = ("tokenising", "measuring the untrained model", "probing", "writing the model")
    assert [step for step in steps if step not in done.stderr] == []
    return out


def test_a_judge(tmp_path, judge_folder):
    out = judge_folder
    role = read_role_file(out)
    check_role(role, "judge", EMPATHY, str(out))
    assert len(role.calibration.cuts) == 6
    result = json.loads(RunDir(out).role.read_text())
    assert set(result["tests"]) == {"both", "new_scenario", "new_policy"}
    assert result["probes"]["effects"]["length"]["turns"] == 3
    manifest = json.loads(RunDir(out).manifest.read_text())
    assert manifest["splits"][0]["train"]["dialogues"] == 2
    assert (out / "model.safetensors").is_file() and not RunDir(out).checkpoints.exists()
    lines = [json.loads(line) for line in RunDir(out).predictions.read_text().splitlines()]
    assert {len(line["logprobs"]) for line in lines} == {6}
    assert "thorn" not in RunDir(out).predictions.read_text()
    assert "What the role is fit for" in RunDir(out).report.read_text()
    again = mapo("report", str(out), "--out", str(tmp_path / "again.html"))
    assert again.returncode == 0 and "Trained judge" in (tmp_path / "again.html").read_text()


def test_a_brief_judge_of_people_without_scenarios(tmp_path, source, model_folder):
    lines = [json.loads(line) for line in gzip.decompress(source.read_bytes()).splitlines()]
    own = tmp_path / "own.jsonl"
    strangers = [{**line, "case": f"person {line['case']}", "threshold": "low"} for line in lines]
    own.write_text("".join(json.dumps(line) + "\n" for line in strangers))
    out, user = tmp_path / "out", tmp_path / "user"
    refused(train("judge", own, model_folder, out), "only a judge trained with --brief", out)
    done = train("judge", own, model_folder, out, "--brief", "--no-refit")
    assert done.returncode == 0, done.stderr
    role = read_role_file(out)
    check_role(role, "judge", EMPATHY, str(out))
    assert role.layout == BRIEF
    done = train("user", source, model_folder, user, "--judge", f"local:{out}", "--no-refit")
    assert done.returncode == 0, done.stderr


def test_a_test_set_is_never_trained_on(tmp_path, model_folder):
    own, out = recordings(3, 4, turns=2), tmp_path / "out"
    known, other = own[0].scenario.id, own[-1].scenario.id
    source = write_judged_turns(tmp_path / "a.jsonl", [r for r in own if r.scenario.id != other])
    test = write_judged_turns(tmp_path / "b.jsonl", [r for r in own if r.scenario.id == other])
    refused(train("judge", source, model_folder, out, "--test", source), f"the scenario '{known}' is in", out)
    refused(train("judge", source, model_folder, out, "--test", test, "--folds", "2"), "--folds", out)
    done = train("judge", source, model_folder, out, "--test", test, "--additions", "0")
    assert done.returncode == 0, done.stderr
    assert "training on all 9 dialogues" in done.stderr
    result = json.loads(RunDir(out).role.read_text())
    assert list(result["tests"]) == ["both"] and result["tests"]["both"]["turns"] == 6
    assert result["new_policies"] is False and "all other recordings" in result["measured_on"]
    part = json.loads(RunDir(out).manifest.read_text())["splits"][0]
    assert part["both"]["scenarios"] == [other]
    assert part["train"]["dialogues"] + part["validation"]["dialogues"] == 9
    assert read_role_file(out).trained_on["dialogues"] == 9


def test_a_complete_run_is_not_trained_again(source, model_folder, judge_folder):
    weights = judge_folder / "model.safetensors"
    before = weights.stat().st_mtime_ns
    done = train("judge", source, model_folder, judge_folder, "--reasons", "1", "--resume")
    assert done.returncode == 0, done.stderr
    assert "the run is complete" in done.stderr and "What the role is fit for" in done.stdout
    assert weights.stat().st_mtime_ns == before


def test_a_user_with_adapters_that_is_not_trained_again(tmp_path, run_folder, model_folder):
    out = tmp_path / "user"
    done = train("user", run_folder, model_folder, out, "--lora", "4", "--no-refit")
    assert done.returncode == 0, done.stderr
    assert (out / "adapter_model.safetensors").is_file()
    assert read_role_file(out).role == "user"
    result = json.loads(RunDir(out).role.read_text())
    assert result["tests"]["both"]["perplexity"] < result["before"]["both"]["perplexity"]
    assert "the measured one" in result["measured_on"]
    assert result["replay"]["dialogues"] == 1 and result["replay"]["played"]["lines"] > 0


def test_a_trained_judge_judges_what_a_trained_user_replays(tmp_path, source, model_folder, judge_folder):
    out = tmp_path / "user"
    done = train("user", source, model_folder, out, "--judge", f"local:{judge_folder}", "--no-refit")
    assert done.returncode == 0, done.stderr
    assert "same_ending" in json.loads(RunDir(out).role.read_text())["replay"]


def test_a_director_in_two_folds(tmp_path, run_folder, model_folder):
    out = tmp_path / "director"
    done = train("director", run_folder, model_folder, out, "--folds", "2", "--test-policies", "0")
    assert done.returncode == 0, done.stderr
    result = json.loads(RunDir(out).role.read_text())
    assert len(result["folds"]) == 2 and result["new_policies"] is False
    assert "policies and scenarios unseen" not in done.stdout
    assert result["tests"]["both"]["accuracy"] == sum(f["accuracy"] for f in result["folds"]) / 2


def refused(done, text, out):
    assert done.returncode == 2, done.stderr
    assert text in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not out.exists()


def test_bad_input_is_one_line_and_writes_nothing(tmp_path, source, model_folder):
    out = tmp_path / "out"
    refused(train("clown", source, model_folder, out), "unknown role", out)
    refused(train("judge", tmp_path / "no.jsonl", model_folder, out), "No such file", out)
    refused(train("judge", source, tmp_path / "nothing", out), "no such folder", out)
    refused(train("judge", source, source.parent, out), "config.json", out)
    refused(train("director", source, model_folder, out), "no acts of a director", out)
    refused(train("judge", source, model_folder, out, "--resume"), "no run to resume", out)
    refused(train("judge", source, model_folder, out, "--no-refit", "--folds", "2"), "--no-refit", out)
    refused(train("judge", source, model_folder, out, "--judge", "local:x"), "only for users", out)
    refused(train("user", source, model_folder, out, "--brief"), "only for judges", out)
    refused(
        train("user", source, model_folder, out, "--judge", f"local:{model_folder}"),
        "not a trained judge",
        out,
    )
    done = train("judge", source, model_folder, out, "--tokens", "100")
    assert done.returncode == 2 and "no example of the part" in done.stderr and not out.exists()
    few = write_judged_turns(tmp_path / "few.jsonl", recordings(2, 3, turns=2))
    refused(train("judge", few, model_folder, out), "2 policies, too few", out)
    done = train("judge", source, model_folder, out, "--domain", "tutoring")
    refused(done, "judged on the axes C, A, P", out)


def test_a_name_that_is_not_a_folder_is_refused_without_asking_a_hub(tmp_path, source):
    out = tmp_path / "out"
    refused(
        train("judge", source, "no-such-model", out), "--model no-such-model: there is no such folder", out
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_noticed_first(tmp_path, source, model_folder):
    out = tmp_path / "out"
    refused(train("judge", source, model_folder, out, "--device", "cuda"), "torch finds no GPU here", out)


def test_recordings_without_judgements_are_refused(tmp_path, model_folder):
    path = write_judged_turns(tmp_path / "rec.jsonl", recordings(3, 3, turns=2))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        for turn in line["turns"]:
            turn["levels"] = None
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    refused(train("judge", path, model_folder, tmp_path / "out"), "no judgements", tmp_path / "out")


def test_too_little_memory_is_one_clear_line(tmp_path, source, model_folder, monkeypatch):
    def fail(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr("mapo.roles.run.train", fail)
    read = read_all([source], scenarios(3), EMPATHY)
    options = Options("judge", str(model_folder), tmp_path / "out", Settings(tokens=3072), device="cpu")
    with pytest.raises(TrainError, match="lower --tokens to 1536 or less"):
        train_role(read, options, lambda _: None)


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path, source, model_folder):
    (tmp_path / "note.txt").write_text("mine")
    done = train("judge", source, model_folder, tmp_path)
    assert done.returncode == 2 and "not empty" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["note.txt"]


def test_the_benchmark_collects_trained_judges(tmp_path, judge_folder, monkeypatch, capsys):
    file = tmp_path / "roles-judge.json"
    script = Path(__file__).parents[2] / "benchmarks" / "roles_judge.py"
    monkeypatch.setattr(sys, "argv", [str(script), f"tiny={judge_folder}", "--out", str(file)])
    runpy.run_path(str(script), run_name="__main__")
    content = json.loads(file.read_text())
    assert [row["judge"] for row in content["rows"]] == ["untrained", "tiny", "tiny", "tiny"]
    assert "3" in content["rows"][1]["attacks"] and str(file) in capsys.readouterr().out


def test_a_trained_judge_keeps_recorded_start_levels_in_a_swap(tmp_path, judge_folder):
    run = tmp_path / "old"
    RunDir(run).dialogues.mkdir(parents=True)
    played = [encode_dialogue(r.dialogue) + b"\n" for r in recordings(1, 3, turns=3)]
    (RunDir(run).dialogues / "empa.jsonl").write_bytes(b"".join(played))
    cards = tmp_path / "cards"
    cards.mkdir()
    for name in scenarios(3):
        text = (SHIPPED / f"{name}.toml").read_text()
        (cards / f"{name}.toml").write_text(re.sub(r"\[start_levels\]\n(\S.*\n)*", "", text))
    out = tmp_path / "swap"
    more = ["--judge", f"local:{judge_folder}", "--scenarios", cards, "--out", out]
    done = mapo("judge", "swap", run, *more)
    assert done.returncode == 0, done.stderr
    assert "recorded start levels are kept" in done.stderr


def test_a_trained_judge_is_audited(tmp_path, run_folder, judge_folder):
    sample = ["--turns", "3", "--dialogues", "2", "--repeats", "2"]
    done = mapo(
        "judge", "audit", run_folder, "--judge", f"local:{judge_folder}", "--out", tmp_path / "audit", *sample
    )
    assert done.returncode == 0, done.stderr
    audit = json.loads(RunDir(tmp_path / "audit").audit.read_text())
    assert "unscored" in str(audit) and RunDir(tmp_path / "audit").audit_markdown.is_file()
