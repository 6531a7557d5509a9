"""Training with every role played by a local model, without a network; killed, resumed and refused."""

import json
import multiprocessing
import shutil
from pathlib import Path

import pytest

from mapo.errors import StoreError
from mapo.store import JsonlWriter
from support import small_run
from support.command import mapo
from support.local_cast import LIMITS, block_network

STEPS = 2
FORMS = ("roles.judge.judging=form", "roles.director.judging=form")


def settings(model: Path, *changes: str) -> list[str]:
    """Return a config in which one model plays all four roles in very short dialogues."""
    limits = [f"roles.{role}.max_tokens={limit}" for role, limit in LIMITS.items()]
    return [
        *small_run.SMALL,
        f"model.source={model}",
        "model.device=cpu",
        "roles.agents=llm",
        f"roles.everyone.model=local:{model}",
        f"roles.judge.model=local:{model}",
        *limits,
        "roles.context=4096",
        "roles.everyone.judging=readout",
        "rollout.scenarios=2",
        "rollout.siblings=2",
        "rollout.max_turns=2",
        "rollout.at_once=4",
        f"optim.steps={STEPS}",
        "eval.every=0",
        *changes,
    ]


@pytest.fixture(scope="module")
def trained(cast_model, tmp_path_factory) -> tuple[Path, str]:
    """A finished run and what it printed."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        block_network(patch)
        done = mapo("train", *settings(cast_model), "--out", out)
    assert done.returncode == 0, done.stderr
    return out, done.stderr


def test_one_model_trains_with_itself_as_cast(trained):
    out, _ = trained
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    dialogue = json.loads((out / "dialogues" / "step_00001.jsonl").read_text().splitlines()[0])
    assert dialogue["cast"] == dict.fromkeys(("user", "director", "judge"), "tiny-cast")
    assert "+readout" in dialogue["prompts"]
    assert all(len(turn["probabilities"]) == 6 for turn in dialogue["turns"])


def test_the_time_of_a_step_is_divided_among_the_roles(trained):
    for line in (json.loads(line) for line in (trained[0] / "metrics.jsonl").read_text().splitlines()):
        time = line["time"]
        assert {role: set(time[role]) for role in ("policy", "user", "director", "judge")} == {
            "policy": {"prefill", "decode"},
            "user": {"prefill", "decode"},
            "director": {"read"},
            "judge": {"read"},
        }
        assert line["ids"]["policy"]["decode"] == line["sampled_tokens"]
        roles = sum(sum(time[role].values()) for role in ("policy", "user", "director", "judge"))
        assert roles + time["rest"] == pytest.approx(line["rollout_s"])
        update = sum(time[part] for part in ("reference", "forward", "backward", "optimizer"))
        assert 0 < update < line["update_s"]
        assert line["rollout_s"] + line["credit_s"] + line["update_s"] <= line["step_s"]


def test_expected_steps_move_the_state_in_training_and_scores_reproduce_them(cast_model, tmp_path):
    out = tmp_path / "run"
    changes = ("reward.steps=expected", "optim.steps=1", "eval.test_repeats=0")
    done = mapo("train", *settings(cast_model, *changes), "--out", out)
    assert done.returncode == 0, done.stderr
    dialogue = json.loads((out / "dialogues" / "step_00001.jsonl").read_text().splitlines()[0])
    assert dialogue["steps"] == "expected"
    assert any(x != round(x) for x in dialogue["turns"][0]["state"]["step"])
    [score] = json.loads(mapo("score", out, "--json").stdout)
    assert score["differences"] == []


def test_expected_steps_of_a_judge_that_writes_forms_are_refused(cast_model, tmp_path):
    changes = ("reward.steps=expected", "roles.everyone.judging=form")
    done = mapo("train", *settings(cast_model, *changes), "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "no judge is read out" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_the_memory_is_planned_and_printed_first(trained):
    out, printed = trained
    first = printed.splitlines()
    (roles,) = [line for line in first if line.startswith("memory: tiny-cast")]
    assert "(user, director, judge): weights shared with the policy, 12 slots of 4096 tokens" in roles
    planned = json.loads((out / "manifest.json").read_text())["memory"]
    assert [model["roles"] for model in planned["models"]] == [["policy"], ["user", "director", "judge"]]


def test_the_manifest_identifies_the_weights_of_every_role(trained):
    weights = json.loads((trained[0] / "manifest.json").read_text())["weights"]
    assert set(weights) == {"user", "director", "judge"}


def test_a_run_that_is_killed_within_a_step_resumes_to_the_same_weights(
    trained, cast_model, tmp_path, monkeypatch
):
    written = 0
    write = JsonlWriter.write_dialogue

    def fail_in_step_two(self, dialogue):
        nonlocal written
        written += 1
        if written == 6:
            raise StoreError("the disk is full")
        write(self, dialogue)

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(JsonlWriter, "write_dialogue", fail_in_step_two)
        assert mapo("train", *settings(cast_model), "--out", out).returncode == 2
    done = mapo("train", "--out", out, "--resume")
    assert done.returncode == 0, done.stderr
    assert small_run.weights(out, STEPS) == small_run.weights(trained[0], STEPS)


def test_other_weights_of_a_role_are_refused(trained, cast_model, tmp_path):
    out = shutil.copytree(trained[0], tmp_path / "run")
    (out / "summary.json").unlink()
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["weights"]["judge"] = "another"
    (out / "manifest.json").write_text(json.dumps(manifest))
    done = mapo("train", "--out", out, "--resume")
    assert done.returncode == 2
    assert "the run was started with other settings: the weights of the judge" in done.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("roles.judge.model=local:./none", "there is no such folder"),
        ("roles.judge.model=local:pyproject.toml", "this is a file, not the folder of a model"),
        ("roles.judge.model=local:tests", "this folder holds no model: it has no config.json"),
        (
            "roles.judge={model='m', judging='readout'}",
            "the answers of the judge cannot be read out: 'm' is not a local model",
        ),
    ],
)
def test_a_model_that_is_none_is_one_clear_line(cast_model, tmp_path, change, message):
    done = mapo("train", *settings(cast_model, change), "--out", tmp_path / "run")
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_models_that_do_not_fit_are_refused_before_anything_is_written(cast_model, tmp_path, monkeypatch):
    monkeypatch.setattr("mapo.local_model.memory.host_memory", lambda: (1 << 22, 1 << 30))
    done = mapo("train", *settings(cast_model), "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "can be planned" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_adapters_leave_the_roles_the_weights_under_them(cast_model, tmp_path):
    """With LoRA, policy and roles use the same base weights in memory, and those do not change."""
    from mapo.config import Lora
    from mapo.local_model.policy import load_policy, start_of

    policy = load_policy(str(cast_model), device="cpu", lora=Lora(rank=2), keep_base=True)
    start = start_of(policy)
    shared = {p.data_ptr() for p in policy.model.parameters()}
    assert all(p.data_ptr() in shared for p in start.model.parameters())
    assert not any("lora" in name for name, _ in start.model.named_modules())
    out = tmp_path / "run"
    done = mapo("train", *settings(cast_model, "model.lora.rank=2", "optim.steps=1", *FORMS), "--out", out)
    assert done.returncode == 0, done.stderr
    assert "weights shared with the policy" in done.stderr


FORKS = multiprocessing.get_context("forkserver")


def _train(arguments: list[str]) -> None:
    raise SystemExit(mapo(*arguments).returncode)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [4.0, 7.0, 10.0])
def test_killed_processes_resume_to_the_same_weights(trained, cast_model, tmp_path, seconds):
    out = tmp_path / "run"
    process = FORKS.Process(target=_train, args=(["train", *settings(cast_model), "--out", str(out)],))
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    again = ["--resume"] if (out / "manifest.json").exists() else []
    done = mapo("train", *settings(cast_model), "--out", out, *again)
    assert done.returncode == 0, done.stderr
    assert small_run.weights(out, STEPS) == small_run.weights(trained[0], STEPS)
