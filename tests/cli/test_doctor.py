"""What `mapo doctor` tells of a machine: torch or none, cards, memory within limits, room for runs."""

from __future__ import annotations

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
from support.command import mapo

GIB = 2**30


def system(root: Path, files: dict[str, str]) -> Path:
    """A machine as its /proc and /sys tell of it: 16 GiB, 12 of them available."""
    meminfo = f"MemTotal: {16 * GIB // 1024} kB\nMemAvailable: {12 * GIB // 1024} kB\nHugePages_Total: 0\n"
    for name, text in {"proc/meminfo": meminfo, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def limit(folder: str, names: tuple[str, str, str], most: object, used: int, idle: int) -> dict[str, str]:
    top, now, gone = names
    stat = f"anon 5\n{gone} {idle}\nother 9\n"
    return {
        f"sys/fs/cgroup/{folder}/{top}": f"{most}\n",
        f"sys/fs/cgroup/{folder}/{now}": f"{used}\n",
        f"sys/fs/cgroup/{folder}/memory.stat": stat,
    }


V1, V2 = doctor._CGROUPS["memory"], doctor._CGROUPS[""]


@pytest.mark.parametrize(
    ("files", "available", "total"),
    [
        ({}, 12, 16),
        ({"proc/self/cgroup": "0::/\n"}, 12, 16),
        # 8 GiB may be taken, 5 are, 2 of those are files that could be read again: 5 are left
        ({"proc/self/cgroup": "0::/\n", **limit("", V2, 8 * GIB, 5 * GIB, 2 * GIB)}, 5, 8),
        ({"proc/self/cgroup": "0::/a/b\n", **limit("a/b", V2, 4 * GIB, GIB, 0)}, 3, 4),
        # nothing of its own, but a limit two groups above it
        ({"proc/self/cgroup": "0::/a/b/c\n", **limit("a", V2, 4 * GIB, GIB, 0)}, 3, 4),
        ({"proc/self/cgroup": "0::/\n", **limit("", V2, "max", 5 * GIB, 0)}, 12, 16),
        ({"proc/self/cgroup": "9:cpu:/\n4:memory:/x\n", **limit("memory/x", V1, 6 * GIB, GIB, 0)}, 5, 6),
        ({"proc/self/cgroup": "4:memory:/x\n", **limit("memory", V1, 2**63 - 4096, GIB, 0)}, 12, 16),
    ],
)
def test_memory_is_what_the_machine_and_a_container_leave(tmp_path, files, available, total):
    assert doctor.memory(system(tmp_path, files)) == (available * GIB, total * GIB)


@pytest.mark.parametrize("told", ["", "MemTotal: many kB\n", "MemTotal:\n"])
def test_where_nobody_tells_memory_is_unknown(tmp_path, told, monkeypatch):
    assert doctor.memory(tmp_path) is None
    assert doctor.memory(system(tmp_path, {"proc/meminfo": told})) is None
    monkeypatch.setattr(doctor, "memory", lambda: None)
    assert doctor._memory() == ("memory", True, "unknown on this system")


def test_little_is_said_to_be_little(tmp_path, monkeypatch):
    for free, fine in ((2, False), (4, True)):
        monkeypatch.setattr(doctor, "memory", lambda free=free: (free * GIB, 16 * GIB))
        name, enough, told = doctor._memory()
        assert (name, enough) == ("memory", fine) and told.startswith(f"{free}.0 GiB available of 16.0")
        assert ("; little" in told) is not fine
    for free, fine in ((4, False), (6, True)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free * GIB))
        name, enough, told = doctor._disk(tmp_path / "runs")
        assert (name, enough) == ("disk", fine) and f"{free}.0 GiB free for {tmp_path / 'runs'}" in told
        assert ("; little" in told) is not fine


def test_room_is_looked_for_where_runs_go(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(shutil, "disk_usage", lambda at: asked.append(at) or SimpleNamespace(free=9 * GIB))
    (tmp_path / "far" / "disk").mkdir(parents=True)
    (tmp_path / "runs").symlink_to(tmp_path / "far" / "disk")
    doctor._disk(tmp_path / "runs")
    doctor._disk(tmp_path / "far" / "not" / "yet")
    assert asked == [tmp_path / "far" / "disk", tmp_path / "far"]
    (tmp_path / "file").write_text("")
    _, fine, told = doctor._disk(tmp_path / "file" / "runs")
    assert not fine and "cannot be written to" in told and "--out" in told

    def gone(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(shutil, "disk_usage", gone)
    assert doctor._disk(tmp_path) == ("disk", False, f"{tmp_path}: Input/output error")


def test_a_folder_that_may_not_be_looked_into_is_told_of(tmp_path, monkeypatch):
    def closed(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", closed)
    assert doctor._disk(tmp_path) == ("disk", False, f"{tmp_path}: Permission denied")


def test_without_torch_the_doctor_says_so_and_is_content(monkeypatch):
    known = requirements.find_spec
    monkeypatch.setattr(requirements, "find_spec", lambda name: None if name == "torch" else known(name))
    done = mapo("doctor")
    assert done.returncode == 0, done.stdout
    (line,) = (line for line in done.stdout.splitlines() if " torch " in line)
    assert line.startswith("warn  machine") and "this needs torch" in line and "mapo[train]" in line
    assert "devices" not in done.stdout and "memory" in done.stdout


def test_a_torch_that_is_broken_is_told_of(monkeypatch):
    monkeypatch.setitem(sys.modules, "mapo.local_model.devices", None)
    ((name, fine, told),) = doctor._torch()
    assert name == "torch" and not fine and told.startswith("cannot be used (ModuleNotFoundError")


def test_cards_are_told_with_their_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices() == [f"CPU, {torch.get_num_threads()} threads"]
    card = SimpleNamespace(name="NVIDIA H200", total_memory=140 * GIB)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    assert devices() == ["cuda:0 NVIDIA H200, 140 GiB", "cuda:1 NVIDIA H200, 140 GiB"]
    ((_, fine, version), (name, _, told)) = doctor._torch()
    assert fine and version == torch.__version__
    assert name == "devices" and told.count("NVIDIA H200") == 2


def test_doctor_without_a_model():
    done = mapo("doctor")
    assert done.returncode == 0 and "192 built in" in done.stdout
    told = [line.split()[1:3] for line in done.stdout.splitlines()]
    assert [name for area, name in told if area == "machine"] == ["torch", "devices", "memory", "disk"]


def test_doctor_finds_what_an_endpoint_can_do():
    def answer(body):
        if "tools" in body:
            call = {"id": "1", "type": "function", "function": {"name": "go_on", "arguments": "{}"}}
            return {"content": None, "tool_calls": [call]}
        return '{"level": 1}' if "response_format" in body else "Hello."

    with LoopbackServer(answer, models=("m",)) as server:
        done = mapo("doctor", "--model", "m", "--base-url", server.base_url)
    assert done.returncode == 0 and done.stdout.count("ok    endpoint") == 4, done.stdout


def test_doctor_tells_what_is_missing():
    with LoopbackServer(
        lambda _: "Hello.", models=("other",), refuses=("json_schema", "json_object")
    ) as server:
        done = mapo("doctor", "--model", "m", "--base-url", server.base_url)
    assert done.returncode == 0
    assert "'m' is not among them" in done.stdout and "JSON form instead" in done.stdout
    assert done.stdout.count("FAIL") == 3


def test_doctor_fails_where_nothing_answers():
    done = mapo("doctor", "--model", "m", "--base-url", "http://127.0.0.1:9/v1")
    assert done.returncode == 1 and "no connection" in done.stdout and "json schema" not in done.stdout
