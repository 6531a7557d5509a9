"""Disks that fill up and folders that turn read-only under `mapo train`: it says so, stops, and can go on.

The full disk is a small one that a process of the test's own has mounted for itself; it is gone when that
process is. A read-only folder stops root only where root's rights over other people's files are taken away.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support import small_run as small
from support.command import mapo

STEPS = 4
SMALL = (*small.SMALL, f"optim.steps={STEPS}", 'run.trackers=["tensorboard"]', "eval.test_repeats=1")
OF_ITS_OWN = ["unshare", "--user", "--map-root-user", "--mount"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return small.model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def undisturbed(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    assert mapo("train", *SMALL, f"model.source={model}", "--out", out).returncode == 0
    return out


@pytest.fixture
def disk():
    """A folder on a disk of 16 MB."""
    if not shutil.which("unshare"):
        pytest.skip("no `unshare` here to mount a small disk with")
    script = "mount -t tmpfs -o size=16m tmpfs /tmp && echo mounted && exec sleep 3600"
    with subprocess.Popen(
        [*OF_ITS_OWN, "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as holder:
        try:
            if holder.stdout.readline() != "mounted\n":
                pytest.skip(f"a small disk cannot be mounted here: {holder.stderr.read().strip()}")
            yield Path(f"/proc/{holder.pid}/root/tmp")
        finally:
            holder.kill()


def fill(disk, leave):
    """Take all space but `leave` pages; deleting the file gives it back."""
    found = os.statvfs(disk)
    (disk / "filler").write_bytes(b"x" * (found.f_bavail - leave) * found.f_frsize)


def check_refusal(done, out, told):
    """Exit status 2; the last line says which file and why; no traceback."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"error: {out}") and told in last, done.stderr


def check_same(out, undisturbed):
    for step in (STEPS - 1, STEPS):
        assert small.weights(out, step) == small.weights(undisturbed, step)
    assert (out / "best.json").read_text() == (undisturbed / "best.json").read_text()
    assert (out / "summary.json").is_file() and (out / "report.html").is_file()
    assert not list(out.rglob("*.tmp"))


def start(model, out, *more, before=()):
    """The console script in a process of its own."""
    command = [*before, sys.executable, "-m", "mapo", "train", *SMALL, f"model.source={model}"]
    return subprocess.Popen(
        [*command, "--out", str(out), *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process):
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.parametrize(
    "pages", [7, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 4, 14, 40, 300))]
)
def test_a_full_disk_stops_the_run_and_it_goes_on_when_there_is_space(model, undisturbed, disk, pages):
    """From nothing at all to a checkpoint that does not fit."""
    out, given = disk / "run", ("train", *SMALL, f"model.source={model}", "--out")
    fill(disk, leave=pages)
    check_refusal(mapo(*given, out), out, "No space left on device")
    (disk / "filler").unlink()
    done = mapo(*given, out, *(["--resume"] if out.exists() else []))
    assert done.returncode == 0, done.stderr
    check_same(out, undisturbed)


@pytest.mark.slow
def test_a_disk_that_fills_up_half_way(model, undisturbed, disk):
    out = disk / "run"
    running = start(model, out)
    appears(out / "dialogues" / "step_00002.jsonl", running)
    fill(disk, leave=3)
    check_refusal(ended(running), out, "The disk is full. Free some space")
    assert (out / "checkpoints" / "step_00001" / "state.json").is_file()  # what is there is whole
    (disk / "filler").unlink()
    again = ended(start(model, out, "--resume"))
    assert again.returncode == 0, again.stderr
    check_same(out, undisturbed)


def appears(path, process):
    while not path.exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.005)


@pytest.fixture
def stripped():
    """What goes before a command so that it may not write to a read-only folder even as root."""
    if os.geteuid() != 0:
        return []
    before = ["unshare", "--user"]
    if not shutil.which("unshare") or subprocess.run([*before, "true"], capture_output=True).returncode:
        pytest.skip("root ignores modes, and its rights cannot be taken away here (unshare --user)")
    return before


def set_modes(out, mode):
    for folder in [out, *(path for path in out.rglob("*") if path.is_dir())]:
        folder.chmod(mode)


@pytest.mark.slow
def test_a_folder_that_turns_read_only_half_way(model, undisturbed, tmp_path, stripped):
    out = tmp_path / "run"
    running = start(model, out, before=stripped)
    appears(out / "dialogues" / "step_00002.jsonl", running)
    set_modes(out, 0o555)
    check_refusal(ended(running), out, "Permission is denied. Choose another folder")
    still = ended(start(model, out, "--resume", before=stripped))
    check_refusal(still, out, "Permission is denied. Choose another folder")
    set_modes(out, 0o755)
    again = ended(start(model, out, "--resume", before=stripped))
    assert again.returncode == 0, again.stderr
    check_same(out, undisturbed)


@pytest.mark.slow
def test_a_folder_that_is_read_only_from_the_start(model, tmp_path, stripped):
    tmp_path.chmod(0o555)
    try:
        check_refusal(
            ended(start(model, tmp_path / "run", before=stripped)), tmp_path / "run", "Permission is denied"
        )
    finally:
        tmp_path.chmod(0o755)
