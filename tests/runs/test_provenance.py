from __future__ import annotations

import json
from pathlib import Path

import pytest

from mapo.runs.claim import check_folder, claim
from mapo.runs.provenance import command_line, git_commit, provenance


@pytest.mark.parametrize(
    ("program", "shown"), [("/usr/bin/mapo", "mapo"), ("/x/mapo/__main__.py", "mapo"), ("/x/a.py", "a.py")]
)
def test_command_line(monkeypatch: pytest.MonkeyPatch, program: str, shown: str) -> None:
    monkeypatch.setattr("sys.argv", [program, "eval", "empa", "--out", "my run"])
    assert command_line() == f"{shown} eval empa --out 'my run'"


def test_no_commit_where_mapo_is_installed_without_its_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mapo.__file__", str(tmp_path / "mapo" / "__init__.py"))
    assert git_commit() == ""
    assert "git_commit" not in provenance()


def test_a_run_resumes_with_another_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(tmp_path / "run", {"schema": "mapo.empa/1", "seed": 1})
    monkeypatch.setattr("sys.argv", ["mapo", "--resume"])
    check_folder(tmp_path / "run", {"schema": "mapo.empa/1", "seed": 1}, resume=True)


def test_manifests_of_private_conversations_hold_no_command(tmp_path: Path) -> None:
    claim(tmp_path / "run", {"schema": "mapo.realsim/1"})
    assert json.loads((tmp_path / "run" / "manifest.json").read_text()) == {"schema": "mapo.realsim/1"}
