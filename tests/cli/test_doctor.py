"""mapo doctor: torch, devices, memory, disk space and endpoints; warnings and failures."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mapo.cli import doctor
from mapo.local_model import requirements
from mapo.local_model.devices import devices
from mapo.testing.server import LoopbackServer
from mapo.testing.thinking import Thinking
from support.command import mapo

GIB = 2**30


def test_unknown_memory_is_no_warning(monkeypatch):
    monkeypatch.setattr("mapo.local_model.memory.host_memory", lambda: None)
    assert doctor._memory() == ("machine", "memory", "ok", "unknown on this system")


@pytest.mark.parametrize(("available", "status"), [(2, "warn"), (4, "ok")])
def test_little_memory_is_a_warning(monkeypatch, available, status):
    monkeypatch.setattr("mapo.local_model.memory.host_memory", lambda: (available * GIB, 16 * GIB))
    check = doctor._memory()
    assert (check.name, check.status) == ("memory", status)
    assert check.message.startswith(f"{available}.0 GiB available of 16.0 GiB")


@pytest.mark.parametrize(("free", "status"), [(4, "warn"), (6, "ok")])
def test_little_disk_space_is_a_warning(tmp_path, monkeypatch, free, status):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free * GIB))
    check = doctor._disk(tmp_path / "runs")
    assert (check.name, check.status) == ("disk", status)
    assert f"{free}.0 GiB free in {tmp_path / 'runs'}" in check.message


def test_disk_space_is_checked_where_runs_go(tmp_path, monkeypatch):
    folders = []
    monkeypatch.setattr(shutil, "disk_usage", lambda at: folders.append(at) or SimpleNamespace(free=9 * GIB))
    (tmp_path / "far" / "disk").mkdir(parents=True)
    (tmp_path / "runs").symlink_to(tmp_path / "far" / "disk")
    doctor._disk(tmp_path / "runs")
    doctor._disk(tmp_path / "far" / "not" / "yet")
    assert folders == [tmp_path / "far" / "disk", tmp_path / "far"]
    (tmp_path / "file").write_text("")
    check = doctor._disk(tmp_path / "file" / "runs")
    assert check.status == "warn" and "is not writable" in check.message and "--out" in check.message

    def broken(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(shutil, "disk_usage", broken)
    assert doctor._disk(tmp_path) == ("machine", "disk", "warn", f"{tmp_path}: Input/output error")


def test_an_unreadable_folder_is_a_warning(tmp_path, monkeypatch):
    def closed(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", closed)
    assert doctor._disk(tmp_path) == ("machine", "disk", "warn", f"{tmp_path}: Permission denied")


def test_missing_torch_is_a_warning(monkeypatch):
    known = requirements.find_spec
    monkeypatch.setattr(requirements, "find_spec", lambda name: None if name == "torch" else known(name))
    done = mapo("doctor")
    assert done.returncode == 0, done.stdout
    (line,) = (line for line in done.stdout.splitlines() if " torch " in line)
    assert line.startswith("warn  machine") and "[train]" in line
    assert "devices" not in done.stdout and "memory" in done.stdout


def test_broken_torch_is_a_warning(monkeypatch):
    monkeypatch.setitem(sys.modules, "mapo.local_model.devices", None)
    (check,) = doctor._torch()
    assert check.name == "torch" and check.status == "warn"
    assert "does not work (ModuleNotFoundError" in check.message


def test_devices_are_listed_with_their_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices() == [f"CPU, {torch.get_num_threads()} threads"]
    card = SimpleNamespace(name="NVIDIA H200", total_memory=140 * GIB)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    assert devices() == ["cuda:0 NVIDIA H200, 140 GiB", "cuda:1 NVIDIA H200, 140 GiB"]
    version, cards = doctor._torch()
    assert version.status == "ok" and version.message == torch.__version__
    assert cards.name == "devices" and cards.message.count("NVIDIA H200") == 2


def test_doctor_without_a_model():
    done = mapo("doctor")
    assert done.returncode == 0 and "192 built-in scenarios" in done.stdout
    checks = [line.split()[:3] for line in done.stdout.splitlines() if line]
    assert [name for _, area, name in checks if area == "machine"] == ["torch", "devices", "memory", "disk"]


def test_a_template_that_rewrites_earlier_turns_is_a_warning(monkeypatch):
    template = SimpleNamespace(append_only=False, description="It rewrites earlier turns.")
    monkeypatch.setattr("mapo.sampling.local.check_template", lambda _: template)
    assert doctor._chat_template("pocket") == ("model", "chat template", "warn", "It rewrites earlier turns.")


def test_a_missing_model_folder_fails(tmp_path):
    done = mapo("doctor", "--model", f"local:{tmp_path / 'absent'}")
    assert done.returncode == 1 and "FAIL  model     chat template" in done.stdout


def capable(body):
    """Answer as a model that can do everything."""
    if "tools" in body:
        call = {"id": "1", "type": "function", "function": {"name": "go_on", "arguments": "{}"}}
        return {"content": None, "tool_calls": [call]}
    return '{"level": 1}' if "response_format" in body else "Hello."


def test_a_capable_endpoint_passes_all_checks():
    with LoopbackServer(capable, models=("m",)) as server:
        done = mapo("doctor", "--model", "m", "--base-url", server.base_url)
    assert done.returncode == 0 and done.stdout.count("ok    endpoint") == 5, done.stdout


def test_missing_features_of_an_endpoint_are_warnings():
    with LoopbackServer(
        lambda _: "Hello.", models=("other",), refuses=("json_schema", "json_object")
    ) as server:
        done = mapo("doctor", "--model", "m", "--base-url", server.base_url)
    assert done.returncode == 0 and "FAIL" not in done.stdout
    assert done.stdout.count("warn  endpoint") == 3, done.stdout
    assert "'m' is not among them" in done.stdout and "answers in JSON instead" in done.stdout


def test_an_endpoint_without_json_schema_is_a_warning():
    with LoopbackServer(lambda _: '{"level": 1}', models=("m",), refuses=("json_schema",)) as server:
        done = mapo("doctor", "--model", "m", "--base-url", server.base_url)
    assert done.returncode == 0 and "JSON is requested as any JSON object" in done.stdout


def thinking_line(thinking, *options):
    """Run doctor on a model that thinks; return its exit status, its line about thinking, and all lines."""
    with LoopbackServer(capable, models=("m",), thinking=thinking) as server:
        done = mapo("doctor", "--model", "m", "--base-url", server.base_url, *options)
    lines = [line for line in done.stdout.splitlines() if "endpoint  thinking" in line]
    return done.returncode, lines[0] if lines else "", done.stdout


@pytest.mark.parametrize("shown", ["reasoning_content", "reasoning", "text", "usage"])
@pytest.mark.parametrize(
    ("switch", "option"),
    [("enable_thinking", "thinking=false"), ("reasoning_effort", "reasoning_effort=none")],
)
def test_a_model_that_thinks_and_what_switches_it_off(shown, switch, option):
    status, line, shown_lines = thinking_line(Thinking(300, shown, switch))
    assert status == 0 and line.startswith("warn")
    assert re.search(r"30\d tokens before one word. As policy it needs at least --max-tokens 2048", line)
    assert f"--body {option} switches it off (--agents-body for the other roles)" in line
    assert shown_lines.count("ok    endpoint") == 4  # with room for thinking, everything else works


def test_thinking_that_nothing_switches_off_needs_higher_limits():
    status, line, _ = thinking_line(Thinking(2500, switch=None))
    assert (
        status == 0 and "2,500 tokens before one word. As policy it needs at least --max-tokens 8192" in line
    )
    assert "in other roles as many (default: 4096; --user-max-tokens" in line
    assert "Nothing that was tried switches it off" in line


def test_thinking_for_which_the_other_roles_have_room():
    _, line, _ = thinking_line(Thinking(1500))
    assert "--max-tokens 4096 (default: 512). --body" in line


def test_thinking_without_an_end_fails_and_says_what_to_do():
    status, line, lines = thinking_line(Thinking(5000))
    assert status == 1 and "FAIL  endpoint  replies" in lines and "json schema" not in lines
    assert "more than 4,096 tokens" in line and "--body thinking=false switches it off" in line


def test_a_model_whose_thinking_is_switched_off_does_not_think():
    status, line, _ = thinking_line(Thinking(300), "--body", "thinking=false")
    assert status == 0 and line.split() == ["ok", "endpoint", "thinking", "none"]


def test_a_server_that_refuses_unknown_fields_can_be_asked_too():
    def fault(_number, body):
        return "400" if "chat_template_kwargs" in body else None

    with LoopbackServer(capable, thinking=Thinking(300, switch="reasoning_effort"), fault=fault) as server:
        done = mapo("doctor", "--model", "m", "--base-url", server.base_url)
    assert "--body reasoning_effort=none switches it off" in done.stdout


def test_doctor_refuses_wrong_body_fields():
    done = mapo("doctor", "--model", "m", "--body", '{"model": "x"}')
    assert done.returncode == 2 and "'model' is set by mapo" in done.stderr


def test_doctor_fails_where_nothing_answers():
    done = mapo("doctor", "--model", "m", "--base-url", "http://127.0.0.1:9/v1")
    assert done.returncode == 1 and "no connection" in done.stdout and "json schema" not in done.stdout
    assert "FAIL  endpoint  replies" in done.stdout and "1 failed check" in done.stdout
