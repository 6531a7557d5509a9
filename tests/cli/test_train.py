"""mapo train and what goes with it, as typed: a whole run, its words, its refusals, its report."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
import torch

from mapo.cli.training.train import _how_to_save_memory, train
from mapo.config import load_config
from mapo.errors import InputError
from mapo.report import typical_pair, write_report
from mapo.store import read_dialogues
from mapo.types import Dialogue
from support import small_run as small
from support.command import mapo


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small.model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in ("OMP_WAIT_POLICY", "TOKENIZERS_PARALLELISM", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))


@pytest.fixture(scope="module")
def finished(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "mine"
    given = [*small.SMALL, f"model.source={model}", "optim.steps=2", "eval.test_repeats=1"]
    return out, mapo("train", "pocket", *given, 'run.trackers=["tensorboard"]', "--out", out)


def test_a_run_tells_what_came_of_it(finished):
    out, done = finished
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("step")]
    assert len(lines) == 2
    assert re.search(
        r"reward [+-]\d.*score +[\d.]+ .*tokens/s .*turns .*\d:\d\d left .*validation", lines[-1]
    )
    assert "Held-out scenarios" in done.stdout and "95 % interval" in done.stdout
    flat = " ".join(done.stdout.split())
    assert re.search(
        r"Median test dialogue by gain: \S+, final distance to the goal [\d.]+ before, [\d.]+ after", flat
    )
    assert re.search(r"Score \(EPM-Q\) by step .* honest helper .*\* training dialogues: .* \(step 2\)", flat)
    assert re.search(r"before: EPM-Q \d+\.\d, .*after: EPM-Q \d+\.\d, ", flat)
    assert f"report: {out / 'report.html'}" in done.stderr
    assert f"mapo report {out}" in done.stderr and f"mapo view {out}" in done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["before"]["n"] == 12 and summary["steps"] == 2
    assert list((out / "tensorboard").iterdir())


def test_too_little_gpu_memory_is_answered_with_what_needs_less(model, tmp_path, monkeypatch):
    def full(*_args, **_options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("mapo.train.run.load_model", full)
    done = mapo("train", *small.SMALL, f"model.source={model}", "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "memory of the GPU is too small" in done.stderr
    assert "run.shard=true run.processes=N, or --engine verl" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("asked", "each"), [("run.processes=3", "2"), ("run.threads=5", "5"), ("", None)])
def test_processes_share_the_cores_before_torch_counts_them(monkeypatch, tmp_path, asked, each):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr("mapo.train.launch.os.sched_getaffinity", lambda _: range(6), raising=False)
    seen = []

    def engine_there(*_):  # loads torch to look
        seen.append(os.environ.get("OMP_NUM_THREADS"))
        raise InputError("far enough")

    monkeypatch.setattr(sys.modules["mapo.cli.training.train"], "_engine_of_run", engine_there)
    with pytest.raises(InputError, match="far enough"):
        train(["pocket", "run.processes=1", *filter(None, [asked])], tmp_path / "run", resume=True)
    assert seen == [each]


@pytest.mark.slow
def test_two_processes_stopped_and_resumed_end_with_the_same_weights(tmp_path):
    given = ["pocket", "optim.steps=2", "rollout.scenarios=2", "eval.every=0", "eval.test_repeats=0"]
    given += ["roles.judge.model=", "run.checkpoint_every=1", "run.trackers=[]"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"

    def begun(*given):  # not in this process, where torch has counted the cores
        command = [sys.executable, "-m", "mapo", "train", *given]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def finished(process):
        said = process.communicate(timeout=300)[1]
        assert process.returncode == 0, said

    finished(begun(*given, "--out", whole))
    process = begun(*given, "--out", cut)
    while "step 1/2" not in (line := process.stderr.readline()):
        assert line, "it ended too early"
    process.terminate()
    process.communicate(timeout=120)
    assert process.returncode == 143 and not (cut / "checkpoints" / "step_00002").exists()
    assert not (cut / "stopped.txt").exists()  # it holds errors; a run that a signal stopped has none
    finished(begun("--out", cut, "--resume"))
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert small.weights(cut, 2, name) == small.weights(whole, 2, name)


def test_a_judge_is_no_policy(tmp_path):
    done = mapo("train", "pocket", "model.source=pocket-judge", "--out", tmp_path / "run")
    assert done.returncode == 2 and "was trained to be a judge and cannot hold a dialogue" in done.stderr
    assert not (tmp_path / "run").exists()


def test_more_processes_than_scenarios_are_refused_before_one_is_started(tmp_path):
    done = mapo("train", "pocket", "run.processes=1000", "--out", tmp_path / "run")
    assert done.returncode == 2 and "there are 1000 processes for 16 scenarios per step" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_finished_run_scores_resumes_and_exports(finished, tmp_path):
    out, _ = finished
    scored = mapo("score", out / "eval" / "after", "--json")
    after = json.loads((out / "summary.json").read_text())["after"]
    assert json.loads(scored.stdout)[0]["epm_q"] == pytest.approx(after["epm_q"])
    again = mapo("train", "--out", out, "--resume")
    assert again.returncode == 0 and not re.search(r"^step", again.stderr, re.MULTILINE)
    assert mapo("export", out, "--out", tmp_path / "model").returncode == 0
    checked = mapo("doctor", "--model", f"local:{tmp_path / 'model'}")
    assert checked.returncode == 0 and "append-only" in checked.stdout
    played = mapo(
        "eval", "empa", "--model", f"local:{tmp_path / 'model'}", "--out", tmp_path / "eval",
        "--cases", "career-tied-up", "--scenarios", "builtin:all", "--max-turns", 12, "--max-tokens", 6,
        "--concurrency", 2,
    )  # fmt: skip
    assert played.returncode == 0, played.stderr
    (dialogue,) = read_dialogues(tmp_path / "eval" / "dialogues" / "empa.jsonl")
    assert dialogue.turns[0].reply.token_ids and dialogue.system


def test_a_run_is_not_made_longer_but_its_model_trains_further_as_the_refusal_says(finished, tmp_path):
    out, _ = finished
    shorter = mapo("train", "--out", out, "--resume", "optim.steps=1")
    assert shorter.returncode == 2 and "Resume with the same settings" in shorter.stderr
    done = mapo("train", "--out", out, "--resume", "optim.steps=3")
    assert done.returncode == 2 and "The number of steps of a run is fixed (2)" in done.stderr
    exported, further = re.search(r": mapo (export .*), then mapo (train .*)\n", done.stderr).groups()
    model, new = str(tmp_path / "its model"), tmp_path / "further"
    words = [model if word == "DIR" else word for word in shlex.split(exported)]
    assert mapo(*words).returncode == 0
    further = further.replace("=N", "=1").replace("ANOTHER", str(new))
    done = mapo(*(word.replace("DIR", model) for word in shlex.split(further)))
    assert done.returncode == 0, done.stderr
    old, now = (json.loads((run / "summary.json").read_text()) for run in (out, new))
    assert now["steps"] == 1 and now["before"] == old["after"]  # it begins where the other ended


def test_a_run_named_where_a_config_goes_is_pointed_to_its_option(finished):
    out, _ = finished
    done = mapo("train", "--resume", out, "optim.steps=4")
    assert done.returncode == 2 and f"--out {out} --resume" in done.stderr


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["nothing-of-that-name"], "one of: "),
        (["pocket", "smollm2"], "more than one config"),
        (["optim.rate=1"], "optim.rate"),
        (["model.source=/no/such/folder"], "no such folder"),
        (["--engine", "horse"], "--engine is 'horse'"),
        (["--resume"], "needs the folder of the run"),
        (["scenarios.train=builtin:test"], "in both train and test"),
        (["advantage.method=magic"], "unknown method"),
        (["reward.name=gold"], "gold"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_written(given, told, tmp_path):
    out = [] if "--resume" in given else ["--out", tmp_path / "run"]
    done = mapo("train", *small.SMALL, *given, *out)
    assert done.returncode == 2 and told in done.stderr, done.stderr
    assert not (tmp_path / "run").exists()


def test_a_dead_role_endpoint_stops_the_run_before_the_model_is_loaded(model, tmp_path):
    roles = ["roles.agents=llm", "roles.everyone.model=m", "roles.everyone.base_url=http://127.0.0.1:9/v1"]
    done = mapo("train", *small.SMALL, f"model.source={model}", *roles, "--out", tmp_path / "run")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: user, director and judge m at http://127.0.0.1:9/v1: no connection")
    assert not (tmp_path / "run").exists()


def test_a_model_that_is_not_fetched_yet_is_named_at_once(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    done = mapo("train", "smollm2")
    assert done.returncode == 2 and "Run: mapo fetch smollm2" in done.stderr


def test_a_role_is_sampled_as_it_says_or_as_everyone():
    from mapo.players.casting import cast_from_config

    told = ["roles.agents=llm", "roles.everyone.model=m", "roles.everyone.temperature=0.5"]
    told += ["roles.judge.temperature=0", "roles.judge.max_tokens=9", "roles.everyone.top_p=0.8"]
    cast = cast_from_config(load_config(None, told))
    assert {role: str(who) for role, who in cast.items()} == {
        "user": "m (temperature 0.5, top_p 0.8)",
        "director": "m (temperature 0.5, top_p 0.8)",
        "judge": "m (temperature 0, top_p 0.8, max_tokens 9)",
    }


def test_the_processes_of_a_run_share_its_limits(monkeypatch, tmp_path):
    """Four processes together may make as many requests as one alone."""
    from mapo.cli.training.train import train_locally
    from mapo.models.rate_limit import Limits
    from mapo.train.processes import ProcessGroup

    limits = []

    def limits_of_one(*given):
        limits.extend([given] if given else [])  # none are given where an endpoint is only checked
        return Limits(*given)

    async def run(*_, **__):
        return None

    monkeypatch.setattr("mapo.train.processes.join_processes", lambda _: ProcessGroup(rank=1, world_size=4))
    monkeypatch.setattr("mapo.train.processes.ProcessGroup.leave", lambda _: None)
    monkeypatch.setattr("mapo.train.run.run", run)
    monkeypatch.setattr("mapo.models.rate_limit.Limits", limits_of_one)
    given = ["roles.agents=llm", "roles.everyone.model=m", "roles.everyone.base_url=http://127.0.0.1:9/v1"]
    given += ["roles.requests=64", "roles.requests_per_minute=400", "roles.tokens_per_minute=8000"]
    train_locally(load_config(None, given), tmp_path / "run", False)
    assert limits == [(16, 100, 2000)]  # concurrency, requests per minute, tokens per minute


def test_the_doctor_says_what_a_folder_lacks(tmp_path):
    done = mapo("doctor", "--model", f"local:{tmp_path / 'none'}")
    assert done.returncode == 1 and "no such folder" in done.stdout


def test_a_folder_that_is_something_else_is_left_alone(model, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    done = mapo("train", *small.SMALL, f"model.source={model}", "--out", tmp_path)
    assert done.returncode == 2 and "is not empty and not a run" in done.stderr
    file = tmp_path / "letter.txt"
    done = mapo("train", *small.SMALL, f"model.source={model}", "--out", file)
    assert done.returncode == 2 and "this is a file" in done.stderr


def test_what_models_wrote_is_text_in_the_report(finished, tmp_path):
    out, _ = finished
    page = write_report(out).read_text()
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")
    copy = tmp_path / "run"
    (copy / "eval" / "before").mkdir(parents=True)
    (copy / "eval" / "after").mkdir(parents=True)
    for name in ("summary.json", "metrics.jsonl"):
        (copy / name).write_bytes((out / name).read_bytes())
    for label in ("before", "after"):
        text = (out / "eval" / label / "dialogues.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        for line in lines:
            for turn in line["turns"]:
                turn["reply"]["text"] = "<script>alert(1)</script>"
        (copy / "eval" / label / "dialogues.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    page = write_report(copy).read_text()
    assert "<script" not in page and "&lt;script&gt;alert(1)" in page


def test_a_folder_without_a_run_has_no_report(tmp_path):
    from mapo.errors import InputError

    with pytest.raises(InputError, match="no result files"):
        write_report(tmp_path)


def test_there_is_no_pair_without_two_dialogues():
    broken = Dialogue("d", "s", "m", "empathy", "published", {}, (), (), error="gone")
    assert typical_pair([broken], [broken]) is None


@pytest.mark.slow
def test_a_run_that_is_terminated_says_how_to_go_on(model, tmp_path):
    """SIGTERM to a whole team of two, twice: status 143, a command that goes on, and it does."""
    out, said = tmp_path / "run", tmp_path / "said"
    given = [*small.SMALL, f"model.source={model}", "optim.steps=100000", "run.processes=2"]

    def terminated_after(steps: int, *more: str) -> int:
        begin = [sys.executable, "-m", "mapo", "train", "pocket", *given, *more, "--out", str(out)]
        with said.open("w") as file:
            process = subprocess.Popen(begin, stderr=file, stdout=file, start_new_session=True)
            while steps_of(out) < steps:
                assert process.poll() is None, said.read_text()
                time.sleep(0.1)
            os.killpg(process.pid, signal.SIGTERM)
            assert process.wait(120) == 143, said.read_text()
        assert f"resume with: mapo train --out {out} --resume" in said.read_text()
        assert "error" not in said.read_text()
        return steps_of(out)

    first = terminated_after(1)
    assert terminated_after(first + 1, "--resume") > first


def steps_of(out) -> int:
    """The last step whose line is whole; the file may be half written."""
    file = out / "metrics.jsonl"
    text = file.read_text() if file.exists() else ""
    return max((json.loads(line)["step"] for line in text.splitlines(True) if line.endswith("\n")), default=0)


@pytest.mark.parametrize(
    ("settings", "ways"),
    [
        ([], "train with LoRA (model.lora.rank=32), or use several GPUs (run.shard=true run.processes=N"),
        (["run.shard=true"], "or use more GPUs (run.processes, or --engine verl)"),
        (["model.lora.rank=4"], "Lower optim.tokens, set model.checkpointing=true, or use several"),
        (["rollout.sampler=vllm", "run.processes=1"], "Lower rollout.vllm_memory, lower optim.tokens"),
    ],
)
def test_without_memory_only_settings_that_would_be_accepted_are_suggested(settings, ways):
    assert ways in _how_to_save_memory(load_config(None, settings))
