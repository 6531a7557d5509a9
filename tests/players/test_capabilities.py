"""What a local model can play, and how fast."""

import asyncio
import json
import shutil

import pytest

from mapo.players.capabilities import measure_speed, measured_speed, role_capabilities
from support.command import mapo
from support.local_cast import trained_judge
from support.tiny_policy import tiny_folder


def by_name(source) -> dict[str, tuple[str, str]]:
    return {name: (status, message) for name, status, message in role_capabilities(str(source))}


def test_a_model_that_can_play_every_role(cast_model):
    checks = by_name(cast_model)
    assert {status for status, _ in checks.values()} == {"ok"}
    assert checks["roles"][1] == "policy, user, director, judge"
    assert checks["context"][1].startswith("8192 tokens; a judge needs about ")


def test_a_model_trained_for_a_role_is_refused_in_others(cast_model, tmp_path):
    folder = trained_judge(shutil.copytree(cast_model, tmp_path / "judge"))
    assert by_name(folder)["roles"] == (
        "ok",
        "trained as judge for the rubric 'empathy'; refused as user, director",
    )


def test_a_model_trained_for_another_rubric_fails(cast_model, tmp_path):
    folder = trained_judge(shutil.copytree(cast_model, tmp_path / "judge"), rubric_sha="another")
    status, message = by_name(folder)["roles"]
    assert status == "FAIL"
    assert "was trained for the rubric 'empathy' as it was then" in message


def test_a_short_context_is_a_warning_with_what_a_judge_needs(tmp_path):
    status, message = by_name(tiny_folder(tmp_path / "tiny"))["context"]
    assert status == "warn"
    assert message.startswith("128 tokens: a judge needs about ")


def test_levels_that_are_no_single_tokens_cannot_be_read_out(cast_model, tmp_path):
    folder = shutil.copytree(cast_model, tmp_path / "digits")
    data = json.loads((folder / "tokenizer.json").read_text())
    split = {"type": "Replace", "pattern": {"String": "2"}, "content": "two"}
    data["normalizer"] = split
    (folder / "tokenizer.json").write_text(json.dumps(data))
    status, message = by_name(folder)["readout"]
    assert status == "warn"
    assert "cannot be read out" in message


def test_speed_counts_replies_forms_and_readouts(cast_model):
    speed = asyncio.run(measure_speed(str(cast_model), 1, tokens=4))
    assert min(speed.tokens, speed.forms, speed.readouts) > 0


def test_the_speed_of_a_model_that_does_not_fit_is_not_measured(cast_model, monkeypatch):
    monkeypatch.setattr("mapo.local_model.memory.host_memory", lambda: (1 << 20, 1 << 30))
    check = measured_speed(str(cast_model))
    assert check.status == "FAIL"
    assert "can be planned" in check.message


def test_the_speed_of_a_large_model_without_a_gpu_is_not_measured(cast_model, monkeypatch):
    monkeypatch.setattr("mapo.players.capabilities.LARGE", 1)
    monkeypatch.setattr("mapo.local_model.devices.has_gpu", lambda: False)
    assert measured_speed(str(cast_model)).message.startswith("not measured: ")


@pytest.mark.slow
def test_doctor_says_what_a_local_model_can_play(cast_model):
    done = mapo("doctor", "--model", f"local:{cast_model}")
    assert done.returncode == 0
    lines = [line.split()[:3] for line in done.stdout.splitlines() if " model " in line]
    assert [line[0] for line in lines] == ["ok"] * 6
