"""Whole runs of `mapo train --engine verl` on two CPU ranks; Ray, FSDP2, queue, checkpoints are verl's."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("verl.protocol")

from mapo import Rubric
from mapo.credit import compute_credit
from mapo.engines.verl.records import dialogues_of
from mapo.local_model.policy import load_policy
from mapo.scenarios.sets import load_scenarios, read_set
from mapo.store import RunDir, read_steps
from mapo.testing.server import LoopbackServer
from mapo.testing.world import world
from mapo.train.setup import load_run_config
from support.local_cast import local_cast_folder

pytestmark = pytest.mark.verl

SMALL = [
    "pocket",
    "roles.judge.model=",
    "optim.kl=0",
    "run.reference=false",
    "verl.rollout=mapo_cpu",
    "verl.gpus=2",
    "verl.workers=2",
    "rollout.siblings=4",
    "rollout.max_turns=6",
    "eval.max_turns=6",
    "rollout.context=1024",
    "rollout.max_tokens=40",
    "optim.updates=2",
    "optim.lr=4e-4",
    "run.trackers=[]",
]


def start(out: Path, *settings: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "mapo",
        "train",
        "--engine",
        "verl",
        *SMALL,
        *settings,
        "--out",
        str(out),
    ]
    with open(out.with_suffix(".txt"), "wb") as said:
        return subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)


def told(out: Path) -> str:
    log = out / "verl" / "log.txt"
    verl = log.read_text(errors="replace")[-5000:] if log.exists() else ""
    return out.with_suffix(".txt").read_text() + "\n" + verl


def finish(run: subprocess.Popen[bytes], out: Path) -> str:
    run.wait(timeout=1500)
    assert run.returncode == 0, told(out)
    return told(out)


def wait_for(run: subprocess.Popen[bytes], out: Path, due: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 1200
    while not due():
        assert run.poll() is None and time.monotonic() < deadline, told(out)
        time.sleep(0.2)


def kill_when(run: subprocess.Popen[bytes], out: Path, due: Callable[[], bool]) -> None:
    """Kill it at that moment; nothing of it may be left, though Ray's agents take their time."""
    wait_for(run, out, due)
    run.send_signal(signal.SIGKILL)
    run.wait()
    deadline = time.monotonic() + 180
    while (left := processes_of(out)) and time.monotonic() < deadline:
        time.sleep(1)
    assert not left


def processes_of(out: Path, name: bytes = b"") -> list[int]:
    """Everything of this name that still runs for this run: its path is in command lines or environments."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            known = (folder / "environ").read_bytes() + command
        except OSError:
            continue
        ours = f"{out}/tensorboard".encode() in known and int(folder.name) != os.getpid()
        if ours and command.startswith(name):
            found.append(int(folder.name))
    return found


def test_it_learns_and_goes_on_after_kills(tmp_path):
    out = tmp_path / "run"
    steps = ["rollout.scenarios=8", "optim.steps=16", "run.checkpoint_every=4", "eval.every=16"]
    steps += ["eval.test_repeats=1"]
    metrics, last = out / "metrics.jsonl", out / "eval" / "validation_00016" / "dialogues.jsonl"
    kill_when(start(out, *steps), out, lambda: len(read_steps(metrics)) >= 6)
    # the last step's checkpoint is there, its validation is not, nor is the test
    kill_when(start(out, *steps, "--resume"), out, lambda: last.exists() and last.stat().st_size > 0)
    assert re.search(r"^resumed at step (5|9)$", told(out), re.MULTILINE)  # a checkpoint every four
    said = finish(start(out, *steps, "--resume"), out)
    assert "resumed after step 16, the last\n" in said

    lines = read_steps(metrics)
    assert [line["step"] for line in lines] == list(range(1, 17))
    assert lines[-1]["validation"]["n"] == 12
    assert (out / "dialogues" / "cut_off").is_dir()  # steps after the checkpoint were played again
    check_curve(RunDir(out))
    check_advantages(RunDir(out), lines)

    summary = json.loads((out / "summary.json").read_bytes())
    assert summary["engine"] == "verl" and summary["steps"] == 16 and summary["dialogues"] == 16 * 32
    assert summary["before"]["n"] == summary["after"]["n"] == 12
    assert "report:" in said and (out / "report.html").exists()
    check_checkpoint(out, tmp_path)


def check_curve(run: RunDir) -> None:
    """The mean reward of a dialogue in the second half is well above that at the start: by more than three
    times the standard error of the difference. The last steps have not fallen back."""
    config = load_run_config(run.root)

    def returns(steps: range) -> np.ndarray:
        played = [d for step in steps for d in dialogues_of(run, config, "train", step)]
        return np.array([np.mean([t.reward for t in d.turns if t.reward is not None]) for d in played])

    early, late, last = returns(range(1, 5)), returns(range(9, 17)), returns(range(14, 17))
    noise = np.sqrt(early.var() / len(early) + late.var() / len(late))
    assert late.mean() - early.mean() > 3 * noise, (early.mean(), late.mean(), noise)
    assert last.mean() - early.mean() > 2 * noise, (early.mean(), last.mean(), noise)


def check_advantages(run: RunDir, lines: list[dict], within: float = 1e-6) -> None:
    """What verl trained on, rows spread over two ranks, is what the record on disk says."""
    config = load_run_config(run.root)
    for line in lines:
        played = [d for d in dialogues_of(run, config, "train", line["step"]) if d.error is None]
        credit = compute_credit(played, config.advantage.resolved(config.reward.name), Rubric.load("empathy"))
        said = np.array([len(turn.reply.token_ids) for d in played for turn in d.turns])
        kept = np.concatenate(credit.mask)
        carried = np.repeat(np.concatenate(credit.mixed)[kept], said[kept])  # one a token
        assert line["advantage_max"] == pytest.approx(carried.max(), abs=within)
        assert line["advantage_min"] == pytest.approx(carried.min(), abs=within)
        assert line["advantage_mean"] == pytest.approx(carried.mean(), abs=within)
        assert line["drift"] < 1e-4  # sampler and trainer agree about every token


def check_checkpoint(out: Path, tmp_path: Path) -> None:
    """A checkpoint is a model that `mapo eval` plays, and `mapo export` makes a folder of."""
    where = tmp_path / "eval"
    model = f"local:{out / 'checkpoints' / 'step_00016'}"
    options = ["--cases", "career-elephant-house", "--max-turns", "3", "--out", str(where)]
    tried = mapo("eval", "empa", "--model", model, *options)
    assert tried.returncode == 0, tried.stdout + tried.stderr
    exported = mapo("export", str(out), "--out", str(tmp_path / "model"))
    assert exported.returncode == 0, exported.stdout + exported.stderr
    assert (tmp_path / "model" / "model.safetensors").exists()


def mapo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mapo", *arguments], capture_output=True, text=True, timeout=300
    )


def test_roles_behind_endpoints_that_fail_one_call_in_ten(tmp_path):
    """With a method that needs more than rewards: the states before each turn, as the positions in bins."""
    out = tmp_path / "run"
    kinds = ("503", "drop", "not-json", "empty", "cut-body")
    fault = lambda number, _: kinds[number // 10 % len(kinds)] if number % 10 == 0 else None  # noqa: E731
    with LoopbackServer(world(lambda n: n % 3), fault=fault) as server:
        roles = [f'roles.{role}={{model="{role}"}}' for role in ("user", "director", "judge")]
        everyone = f'roles.everyone={{model="judge", base_url="{server.base_url}"}}'
        settings = ["roles.agents=llm", everyone, *roles, "roles.timeout=5", "rollout.scenarios=2"]
        settings += ["advantage.method=gigpo", "advantage.endings=cut", "advantage.step_weight=0.5"]
        finish(start(out, *settings, "optim.steps=3", "eval.test_repeats=0", "eval.every=100"), out)
        assert sum(server.faults.values()) > 0.08 * server.calls
    lines = read_steps(out / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert all(line["dialogues"] == 8 for line in lines)
    check_advantages(RunDir(out), lines)
    ledgers = [json.loads(file.read_bytes()) for file in out.glob("ledger*.json")]
    assert ledgers and "OPENAI_API_KEY" not in json.dumps(ledgers)


def test_adapters_are_trained_resumed_and_exported(tmp_path):
    """With weights and optimizer state offloaded between updates."""
    out = tmp_path / "run"
    settings = ["model.lora.rank=8", "model.lora.alpha=16", "verl.offload=true", "optim.lr=2e-3"]
    settings += ["verl.workers=1", "rollout.scenarios=2", "optim.steps=2", "run.checkpoint_every=1"]
    settings += ["eval.test_repeats=0", "eval.every=0"]
    first = out / "checkpoints" / "step_00001" / "adapter_config.json"
    kill_when(start(out, *settings), out, first.exists)
    finish(start(out, *settings, "--resume"), out)
    assert "\nresumed at step 2\n" in out.with_suffix(".txt").read_text()
    lines = read_steps(out / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2]
    check_advantages(RunDir(out), lines)  # and that the sampler has the trainer's adapter

    saved = sorted(out.glob("verl/checkpoints/global_step_*/actor/model_world_size_2_rank_0.pt"))[-1]
    assert all("lora_" in name for name in torch.load(saved, weights_only=True))  # the base is not copied
    adapter, merged = tmp_path / "adapter", tmp_path / "merged"
    for folder, options in ((adapter, ["--adapter"]), (merged, ["--dtype", "float32"])):
        exported = mapo("export", str(out), "--step", "last", *options, "--out", str(folder))
        assert exported.returncode == 0, exported.stdout + exported.stderr
    assert not (adapter / "config.json").exists() and not (merged / "adapter_config.json").exists()
    base, trained, plain = (load_policy(str(m)).model for m in ("pocket", adapter, merged))
    assert trained.peft_config["default"].r == 8 and trained.peft_config["default"].lora_alpha == 16
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        before, after, whole = (model(ids).logits for model in (base, trained, plain))
    assert torch.allclose(after, whole, atol=1e-3) and (after - before).abs().max() > 1e-2


def test_local_roles_are_played_by_processes_whose_loss_stops_the_run(tmp_path):
    """The judge also fills in the start forms, once for the siblings and workers of the whole run."""
    out = tmp_path / "run"
    people, judge = (local_cast_folder(tmp_path / name, n) for n, name in enumerate(("people", "judge")))
    settings = ["roles.agents=llm", "roles.everyone.judging=readout", "roles.user.max_tokens=12"]
    settings += [f"roles.everyone.model=local:{people}", f"roles.judge.model=local:{judge}"]
    settings += [f"scenarios.train={unknown_starts(tmp_path / 'scenarios', 4)}"]
    settings += [f"scenarios.{split}=builtin:{split}" for split in ("validation", "test")]
    settings += ["verl.gpus=1", "verl.roles_gpus=0.5", "rollout.scenarios=2", "rollout.max_turns=3"]
    settings += ["optim.steps=2", "run.checkpoint_every=1", "eval.test_repeats=0", "eval.every=0"]
    run = start(out, *settings)
    wait_for(run, out, (out / "checkpoints" / "step_00001" / "config.json").exists)
    for process in processes_of(out, b"ray::RoleHost"):
        os.kill(process, signal.SIGKILL)
    assert run.wait(timeout=600) == 2, told(out)
    message = out.with_suffix(".txt").read_text().splitlines()[-1]
    assert re.search(r"the process of the (user|director|judge)'s model is gone.* --resume$", message)

    finish(start(out, *settings, "--resume"), out)
    lines = read_steps(out / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2]
    # random weights give nearly equal rewards: dividing by their deviation magnifies verl's rounding
    check_advantages(RunDir(out), lines, within=1e-3)
    forms = [json.loads(file.read_bytes()) for file in (out / "start_levels").iterdir()]
    starts = {f["scenario"]: {key: mark["level"] for key, mark in f["levels"].items()} for f in forms}
    config = load_run_config(out)
    for dialogue in (d for step in (1, 2) for d in dialogues_of(RunDir(out), config, "train", step)):
        assert dialogue.usable
        assert dialogue.cast == {"user": "people", "director": "people", "judge": "judge"}
        assert all(turn.probabilities and turn.reward is not None for turn in dialogue.turns)
        assert {key: mark.level for key, mark in dialogue.start_levels.items()} == starts[dialogue.scenario]


def unknown_starts(folder: Path, count: int) -> Path:
    """Write training scenarios without their start levels."""
    folder.mkdir()
    for scenario in load_scenarios("builtin:train")[:count]:
        text = read_set("builtin:train").files[scenario.id].read_text()
        (folder / f"{scenario.id}.toml").write_text(re.sub(r"\[start_levels\]\n(\".*\n)+", "", text))
    return folder
