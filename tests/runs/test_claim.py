"""Manifests of runs from somebody else."""

import os

import pytest

from mapo.errors import InputError
from mapo.runs.claim import read_manifest
from mapo.train.setup import engine_of


def test_a_manifest_that_is_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(InputError, match="not a regular file"):
        read_manifest(tmp_path / "manifest.json")
    assert engine_of(tmp_path) == "local"


def test_a_deeply_nested_manifest_is_refused(tmp_path):
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="nested too deeply"):
        read_manifest(tmp_path / "manifest.json")
    assert engine_of(tmp_path) == "local"
