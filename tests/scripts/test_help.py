"""Every benchmark and script prints its usage for --help and does nothing else."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = [
    path
    for folder in ("benchmarks", "scripts", "scripts/embedded")
    for path in sorted((ROOT / folder).glob("*.py"))
    if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
]
NEEDS = {"decode": "torch", "talks": "torch", "trl_overhead": "trl", "verl_advantage": "verl"}


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_help_prints_usage(path, monkeypatch, capsys):
    pytest.importorskip(NEEDS.get(path.stem, "mapo"))
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    monkeypatch.syspath_prepend(str(path.parent))
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(path), run_name="__main__")
    assert not stop.value.code
    assert capsys.readouterr().out.startswith(f"usage: {path.name}")


def test_the_shipped_examples_are_what_the_script_writes(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import make_examples

    assert make_examples.main(["--check"]) == 0


def test_an_unknown_shape_lists_the_known_ones(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["talks.py", "--shapes", "tiny"])
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / "benchmarks/talks.py"), run_name="__main__")
    assert stop.value.code == 2
    assert "'tiny' is not a shape; write SHAPE:DIALOGUES, where SHAPE is one of 135M, 1.5B, 7B, 20M, 2M" in (
        capsys.readouterr().err
    )
