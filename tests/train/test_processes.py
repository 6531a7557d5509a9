"""Several processes train as one: the same step up to rounding, the same ways to fail."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from datetime import timedelta

import pytest
import torch

from mapo.cli.training.train import train
from mapo.errors import InputError, TrainError
from mapo.measure.rubric import Rubric
from mapo.records import encode_dialogue
from mapo.sandbox.cast import Job
from mapo.scenarios.sets import load_scenarios
from mapo.store import JsonlWriter, read_dialogues, read_jsonl, read_steps
from mapo.train import launch, rollouts
from mapo.train import processes as process_module
from mapo.train.processes import ProcessGroup, join_processes
from mapo.train.rollouts import gather_dialogues, share
from mapo.train.update import merge_stats
from support import small_run as small
from support.builders import dialogue, marks
from support.command import mapo


def words(model, out, *overrides):
    given = [*small.SMALL, f"model.source={model}", "rollout.scenarios=4", "rollout.siblings=2", *overrides]
    return ["train", "pocket", *given, "eval.test_repeats=1", "--out", str(out)]


def command(model, out, *overrides):
    return [sys.executable, "-m", "mapo", *words(model, out, *overrides)]


def run(model, out, *overrides):
    return subprocess.run(command(model, out, *overrides), capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small.model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def alone(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "run"
    done = mapo(*words(model, out))
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def two(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("two") / "run"
    done = run(model, out, "run.processes=2")
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.slow
def test_two_processes_learn_what_one_learns(alone, two):
    a, b = (list(read_jsonl(out / "metrics.jsonl")) for out in (alone, two))
    # the first step has the same weights and noise: the same dialogues, and the same gradient up to rounding
    for key in ("reward", "return", "tokens", "dialogues", "turns"):
        assert a[0][key] == b[0][key], key
    assert a[0]["grad_norm"] == pytest.approx(b[0]["grad_norm"], rel=1e-4)
    assert a[0]["entropy"] == pytest.approx(b[0]["entropy"], rel=1e-4)
    assert len(list((two / "dialogues").glob("step_00001*.jsonl"))) == 2
    summary = json.loads((two / "summary.json").read_text())
    assert summary["dialogues"] == 32 and summary["before"]["n"] == 12


@pytest.mark.slow
def test_a_killed_team_goes_on_as_if_undisturbed(model, two, tmp_path):
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
    assert small.weights(tmp_path / "cut", 4) == small.weights(two, 4)


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.glob("*.jsonl")}


def take_back(out, last):
    """As if the run had been stopped after that step's checkpoint: later ones gone, later dialogues there."""
    for folder in (out / "checkpoints").iterdir():
        if folder.name > f"step_{last:05d}":
            shutil.rmtree(folder)


@pytest.mark.slow
def test_a_run_of_two_goes_on_alone_with_what_both_played(model, two, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(two, out)
    take_back(out, 2)
    cut = out / "dialogues" / "step_00004.1.jsonl"
    lines = cut.read_bytes().splitlines(keepends=True)
    cut.write_bytes(b"".join(lines[:-1]))
    done = mapo(*words(model, out, "run.processes=1", "--resume"))
    assert done.returncode == 0, done.stderr
    was, now = contents(two / "dialogues"), contents(out / "dialogues")
    assert {name: now[name] for name in now if name < "step_00004"} == {
        name: was[name] for name in was if name < "step_00004"
    }
    # a part of a step is played anew, by the one who is there
    jobs = {d.id for name in was if name >= "step_00004" for d in read_dialogues(two / "dialogues" / name)}
    assert {d.id for d in read_dialogues(out / "dialogues" / "step_00004.jsonl")} == jobs
    assert now["step_00004.1.jsonl"] == b""
    assert contents(out / "eval" / "before") == contents(two / "eval" / "before")
    before = [json.loads((folder / "summary.json").read_text())["before"] for folder in (two, out)]
    assert before[0] == before[1] and before[0]["n"] == 12
    a, b = (read_steps(folder / "metrics.jsonl") for folder in (two, out))
    for key in ("reward", "return", "dialogues", "tokens"):
        assert a[2][key] == b[2][key], key
    assert a[2]["grad_norm"] == pytest.approx(b[2]["grad_norm"], rel=1e-4)


@pytest.mark.slow
def test_a_run_of_one_goes_on_as_two_with_what_it_played(model, alone, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(alone, out)
    take_back(out, 3)
    done = run(model, out, "run.processes=2", "--resume")
    assert done.returncode == 0, done.stderr
    for part in ("dialogues", "eval/before"):
        assert contents(out / part) == contents(alone / part)


def talk(job):
    rubric = Rubric.load("empathy")
    return dialogue(rubric, [marks(rubric, 1)], id=job.id, group=job.group)


class Dealt(ProcessGroup):
    """The leading one of two, whose other hands in what it played."""

    def __init__(self, other):
        super().__init__(0, 2)
        self.other = other

    def gather(self, mine):
        return [*mine, *(encode_dialogue(d).decode() for d in self.other)]


def test_dialogues_are_gathered_in_the_order_of_the_jobs():
    scenario = load_scenarios("builtin:train", "empathy")[0]
    jobs = [Job(scenario, id=f"{group}_{k}", group=group) for group in "abc" for k in (0, 1)]
    played = {job.id: talk(job) for job in jobs}
    mine, others = ([played[job.id] for job in share(jobs, ProcessGroup(rank, 2))] for rank in (0, 1))
    assert [d.group for d in others] == ["b", "b"]
    found = gather_dialogues(mine, jobs, Dealt(others))
    assert found == list(played.values())


def test_dialogues_to_be_played_anew_are_dropped_where_nobody_else_uses_or_writes_them(tmp_path):
    scenario = load_scenarios("builtin:train", "empathy")[0]
    jobs = [Job(scenario, id=name, group=name) for name in "ab"]
    files = [tmp_path / name for name in ("step_00001.jsonl", "step_00001.1.jsonl", "step_00001.2.jsonl")]
    for file in files:
        with JsonlWriter(file) as writer:
            for job in jobs:
                writer.write_dialogue(talk(job))
    rollouts._remove_from_disk(files[0], jobs[:1], world_size=2)
    left = [[d.id for d in read_dialogues(file)] for file in files]
    assert left == [["b"], ["a", "b"], ["b"]]
    rollouts._remove_from_disk(tmp_path / "step_00002.jsonl", jobs, world_size=1)
    assert not (tmp_path / "step_00002.jsonl").exists()


def script(text, *given):
    """Python that leads a team; a hang is a failure."""
    return subprocess.run(
        [sys.executable, "-c", text, *map(str, given)], capture_output=True, text=True, timeout=120
    )


LEAD = """
import sys
from pathlib import Path
from mapo.cli.training.train import train_locally
from mapo.config import load_config
from mapo.errors import TrainError
from mapo.train.launch import with_workers
out, other, *given = sys.argv[1:]
config = load_config(None, given)
try:
    with with_workers(2, [*given, other, "--out", out], Path(out)):
        train_locally(config, Path(out), False)
except TrainError as error:
    sys.exit(f"error: {error}")
"""


@pytest.mark.slow
def test_a_member_that_never_comes_ends_the_run(model, tmp_path):
    done = script(LEAD, tmp_path / "run", "optim.rate=1", *small.SMALL, f"model.source={model}")
    assert done.returncode == 2, done.stderr
    assert "process 1 of the run failed" in done.stderr and "optim.rate" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_member_that_breaks_ends_the_run_in_its_own_words(model, tmp_path):
    out = tmp_path / "run"
    done = script(LEAD, out, "model.source=/no/such", *small.SMALL, f"model.source={model}")
    assert done.returncode in (1, 2), done.stderr
    assert re.search(r"error: process 1 of the run failed: .*no such folder.* --resume", done.stderr)
    assert str(out / "others.log") in done.stderr
    assert "no such folder" in (out / "others.log").read_text()


def test_the_others_end_with_the_one_that_leads():
    # the pipe is closed, and `run` returns, when the one left alone has gone too
    done = script(
        "import os, subprocess, sys\n"
        "env = {**os.environ, 'MAPO_LEADER': str(os.getpid())}\n"
        "child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], env=env, stdout=subprocess.PIPE)\n"
        "print(child.stdout.readline().decode(), flush=True)\n"
        "os._exit(0)\n",
        "import pathlib, sys, threading\n"
        "from mapo.train.launch import with_workers\n"
        "with with_workers(1, [], pathlib.Path()):\n"
        "    print('here', flush=True)\n"
        "    print('waiting', file=sys.stderr, flush=True)\n"
        "    threading.Event().wait()\n",
    )
    assert "here" in done.stdout and "waiting" in done.stderr


def test_a_folder_that_is_taken_is_refused_with_nobody_started(model, tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "_start", lambda *_: pytest.fail("started another process"))
    (tmp_path / "manifest.json").write_text("{}")
    given = [*small.SMALL, f"model.source={model}", "run.processes=2"]
    with pytest.raises(InputError, match="holds a run already"):
        train(given, tmp_path, engine="local")


def test_the_others_are_not_waited_for_when_the_one_that_leads_breaks(monkeypatch, tmp_path):
    forever = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    others = []

    def start(*_):
        others.append(launch.Worker(subprocess.Popen(forever), tmp_path / "log"))
        return others[-1]

    monkeypatch.setattr(launch, "_start", start)
    with pytest.raises(InputError, match="no"), launch.with_workers(3, [], tmp_path):
        raise InputError(f"no {os.environ['WORLD_SIZE']}")
    assert [other.process.returncode for other in others] == [-signal.SIGKILL] * 2
    assert "WORLD_SIZE" not in os.environ


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("error: disk full\n[Gloo] Rank 1 is connected\n\n", "failed: disk full"),
        ("Traceback (most recent call last):\n  x\nValueError: no\n", "failed: ValueError: no"),
        ("[W1115 socket.cpp:1] retry\nRuntimeError: [gloo/pair.cc:1] closed\n", "exit status 3"),
        ("", "exit status 3"),
    ],
)
def test_what_a_process_said_last(tmp_path, said, told):
    log = tmp_path / "1.log"
    log.write_text(said)
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    process.wait()
    error = launch._failure([launch.Worker(process, log)], tmp_path)
    assert told in str(error) and not (tmp_path / "others.log").exists()
    (tmp_path / "manifest.json").write_text("{}")
    assert "others.log" in str(launch._failure([launch.Worker(process, log)], tmp_path))
    assert said in (tmp_path / "others.log").read_text()


def as_rank(monkeypatch, rank, world=2):
    port = launch._free_port()
    for key, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_PORT": port}.items():
        monkeypatch.setenv(key, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")


def test_joining_does_not_wait_for_ever(monkeypatch):
    as_rank(monkeypatch, 0)
    monkeypatch.setattr(process_module, "JOINING", timedelta(seconds=1))
    with pytest.raises(TrainError, match="could not connect"):
        join_processes("cpu")


class Board(dict):
    """The store of processes that have all joined."""

    set = dict.__setitem__

    def wait(self, keys, within):
        del keys, within


def test_each_member_has_its_card_and_hours_to_wait(monkeypatch):
    as_rank(monkeypatch, 1)
    seen, current = {}, []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(process_module, "rendezvous", lambda *_, **__: iter([(Board(), 1, 2)]))
    monkeypatch.setattr(
        torch.distributed, "init_process_group", lambda name, **kw: seen.update(kw, name=name)
    )
    joined = join_processes("auto")
    card = torch.device("cuda", 1)
    assert current == [card] and seen["device_id"] == card and seen["name"] == "nccl"
    assert seen["timeout"] >= timedelta(hours=3)
    assert (joined.rank, joined.world_size, joined.device) == (1, 2, "cuda:1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(InputError, match=r"no GPU for process 2.*has 1"):
        join_processes("auto")


def test_one_process_alone_communicates_with_no_other():
    processes = ProcessGroup()
    assert processes.gather([1, 2]) == [1, 2] and processes.is_leader
    parameter = torch.nn.Parameter(torch.ones(2))
    processes.sum_gradients([parameter])
    processes.wait()
    assert parameter.grad is None


def test_means_are_joined_by_their_tokens():
    parts = [
        {"tokens": 1.0, "entropy": 3.0, "ratio_max": 2.0, "kl_ref": 5.0},
        {},
        {"tokens": 3.0, "entropy": 1.0, "ratio_max": 1.0},
    ]
    # entropy (1 * 3 + 3 * 1) / 4; the distance from the start was measured by one of them
    assert merge_stats(parts) == {"tokens": 4.0, "entropy": 1.5, "ratio_max": 2.0, "kl_start": 5.0}
    assert merge_stats(parts[::-1]) == merge_stats(parts)
    assert merge_stats([{}]) == {}
