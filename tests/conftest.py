"""Fixtures shared by all tests."""

from __future__ import annotations

import gzip
import json
import os
import signal
import tarfile
from pathlib import Path

import pytest
from hypothesis import settings

from mapo import Rubric
from support.published import published

# Set before torch is imported, here or in a process that a test starts: test processes run side by side, and
# more threads in each only compete for the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("COLUMNS", None)  # set in the processes of pytest-xdist

settings.register_profile("default", deadline=None, derandomize=bool(os.environ.get("CI")), max_examples=25)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=100)  # make test-slow
settings.load_profile("default")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a script has put us into the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _unrendered_figures(request, monkeypatch):
    """Draw report panels on their axes, but render them (0.1 s each) only in tests marked `figures`."""
    empty = {"svg": b'<svg viewBox="0 0 1 1"></svg>', "png": b"\x89PNG\r\n\x1a\n", "pdf": b"%PDF-1.4\n"}
    if "figures" not in request.keywords:
        monkeypatch.setattr("mapo.show.figures._encoded", lambda _, kind: empty[kind])


@pytest.fixture(scope="session")
def empathy() -> Rubric:
    return Rubric.load("empathy")


@pytest.fixture(scope="session")
def cast_model(tmp_path_factory) -> Path:
    """The folder of a tiny model of random weights that can play every role."""
    from support.local_cast import local_cast_folder

    return local_cast_folder(tmp_path_factory.mktemp("models") / "tiny-cast")


@pytest.fixture(scope="session")
def replay() -> list[dict]:
    with gzip.open(published("replay.jsonl.gz"), "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="session")
def two_models(tmp_path_factory) -> Path:
    """Complete published result files of two models, unpacked."""
    folder = tmp_path_factory.mktemp("two_models")
    with tarfile.open(published("results_two_models.tar.gz")) as archive:
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder
