"""Runs that anybody may have written: what is not a plain file of bounded size is refused and said."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from mapo import Rubric
from mapo.config import Advantage
from mapo.errors import InputError, RecordError
from mapo.models.chat import Usage
from mapo.models.ledger import Ledger
from mapo.records import decode_dialogue, parse
from mapo.report import build
from mapo.report.document.page import html_page
from mapo.runs import contents as run
from mapo.runs import files
from mapo.runs.training import read_training
from mapo.store import BadLine, RunDir
from mapo.types import Ending, StopReason
from support import view_runs

EMPATHY = Rubric.load("empathy")


def bad(path, decode=parse) -> list[str]:
    return [line.problem for line in files.read_lines(path, decode) if isinstance(line, BadLine)]


def test_links_pipes_and_devices_are_refused(tmp_path):
    (tmp_path / "secret").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        assert files.read_object(tmp_path / name)[1].startswith(files.UNREADABLE)
        assert bad(tmp_path / name)[0].startswith(files.UNREADABLE)
    assert files.read_object(tmp_path / "none") == ({}, "") and bad(tmp_path / "none") == []
    with pytest.raises(RecordError, match="cannot be read"):
        files.read_at(tmp_path / "link", 0, 2)


def test_files_and_lines_without_end_are_not_held(tmp_path, monkeypatch):
    for name, most in (("MAX_FILE_BYTES", 10), ("MAX_LINE_BYTES", 40), ("MAX_LINES_BYTES", 100)):
        monkeypatch.setattr(files, name, most)
    file = tmp_path / "a"
    file.write_bytes(b'{"a": 1}\n' + b"x" * 50 + b'\n{"b": 2}\n{"c"')
    assert files.read_bytes(file)[0] is None
    assert bad(file) == ["too long to be read", "torn: the file ends in the middle of this record"]
    assert [line for line in files.read_lines(file, parse) if isinstance(line, dict)] == [{"a": 1}, {"b": 2}]
    file.write_bytes(b'{"a": 1}\n' * 50)
    assert len(list(files.read_lines(file, parse))) == 12 and "skipped" in bad(file)[0]
    file.write_bytes(b'{"a": 1}')
    assert list(files.read_lines(file, parse)) == [{"a": 1}]  # complete but for its newline


def test_a_report_follows_no_link_and_waits_for_no_pipe(tmp_path):
    root = view_runs.training(tmp_path, steps=2)
    secret = tmp_path / "secret.jsonl"
    view_runs.write_lines(secret, [view_runs.talk(EMPATHY, "secret_1", step=1)])
    (root / "dialogues" / "step_00003.jsonl").symlink_to(secret)
    os.mkfifo(root / "dialogues" / "step_00004.jsonl")
    (root / "eval" / "before").rename(tmp_path / "moved")
    (root / "eval" / "before").symlink_to(tmp_path / "moved")
    for name in ("summary.json", "config.toml", "metrics.jsonl"):
        (root / name).rename(tmp_path / name)
        (root / name).symlink_to(tmp_path / name)
    for name in ("rubric.toml", "ledger.json"):
        os.mkfifo(root / name)
    found = read_training(root)
    assert sorted(found.played) == [1, 2] and not found.before and not found.summary and not found.steps
    told = "\n".join(found.problems)
    for name in ("step_00003", "step_00004", "before", "summary", "config", "metrics", "ledger"):
        assert name in told, name
    assert "rubric.toml" not in told and "secret_1" not in html_page(build([str(root)]))


def test_a_result_that_is_no_plain_file_is_refused(tmp_path):
    root = view_runs.questions(tmp_path)
    (root / "result.json").rename(tmp_path / "there.json")
    (root / "result.json").symlink_to(tmp_path / "there.json")
    with pytest.raises(InputError, match="cannot be read"):
        build([str(root)])
    (root / "result.json").unlink()
    os.mkfifo(root / "result.json")
    with pytest.raises(InputError, match="not a regular file"):
        build([str(root)])


def test_without_its_settings_nothing_is_credited(tmp_path):
    assert run.advantage_of({"advantage": {"method": "turn"}, "optim": "nonsense"})[0] == Advantage(
        method="turn",
        endings="cut",  # as in earlier versions, which did not write it
    )
    assert run.advantage_of({})[0] is run.advantage_of({"advantage": {"gamma": 7}})[0] is None
    root = view_runs.training(tmp_path, steps=1)
    good = html_page(build([str(root)]))
    assert "fig_return_by_turn" in good and "discount 0.85 per turn" in good
    (root / "config.toml").write_text("[optim]\nsteps = 3\n")
    page = html_page(build([str(root)]))
    assert "has no [advantage]" in page and "fig_return_by_turn" not in page and "discount 0" not in page
    (root / "config.toml").write_text('[advantage]\nmethod = "turn"\ngamma = 0.5\n[optim]\nsteps = "x"\n')
    page = html_page(build([str(root)]))
    assert "discount 0.5 per turn" in page and "not all settings are valid" in page


def test_a_usable_record_counts_then_the_later_written(tmp_path):
    first = view_runs.talk(EMPATHY, "a_1", turns=3, step=1)
    again = view_runs.talk(EMPATHY, "a_1", turns=4, step=1)
    broken = replace(first, error="endpoint down", ending=Ending(StopReason.BROKEN))
    assert first.usable and not broken.usable
    assert not replace(first, ending=Ending(StopReason.BROKEN)).usable
    folder = tmp_path / "r" / "dialogues"
    early = view_runs.write_lines(folder / "step_00001.w1.jsonl", [first])
    late = view_runs.write_lines(folder / "step_00001.w0.jsonl", [again])
    os.utime(early, (1, 1))
    os.utime(late, (2, 2))
    assert read_training(tmp_path / "r").played[1] == [again]
    os.utime(early, (3, 3))
    assert read_training(tmp_path / "r").played[1] == [first]
    view_runs.write_lines(early, [broken])
    assert read_training(tmp_path / "r").played[1] == [first]
    assert decode_dialogue(early.read_bytes().splitlines()[0]) == first


def test_a_damaged_copy_of_a_rubric_is_said_and_the_shipped_one_taken(tmp_path):
    file = tmp_path / "rubric.toml"
    assert run.read_rubric(file, "empathy") == (EMPATHY, "")
    file.write_text("x = [")
    found, problem = run.read_rubric(file, "empathy")
    assert found == EMPATHY and "TOML" in problem
    assert run.read_rubric(file, "mine")[0] is None


@pytest.mark.parametrize("flushed", [True, False])
def test_entries_after_the_last_snapshot_of_a_killed_run_are_counted(tmp_path, flushed):
    path = tmp_path / "ledger.json"
    ledger = Ledger.load(path, {"m": (1.0, 0.5, 2.0)}, journal=True)
    ledger.add("judge", "m", calls=1, usage=Usage(100, 0, 10), seconds=1.0)
    if flushed:
        ledger.flush(path)
    ledger.add("judge", "m", calls=2, usage=Usage(300, 100, 30), seconds=2.0)
    with open(tmp_path / "ledger.json-journal", "ab") as journal:
        journal.write(b'[9, "judge", "m", {"ca')  # killed while it was written
    rows, problems = run.read_ledger(RunDir(tmp_path).ledgers())
    [row] = rows
    assert problems == [] and (row["calls"], row["prompt"], row["seconds"]) == (3, 400, 3.0)
    assert row["cost"] == (pytest.approx(ledger.total_cost) if flushed else None)
    [loaded] = Ledger.load(path).as_rows()
    assert {name: loaded[name] for name in run.COUNTS} == {name: row[name] for name in run.COUNTS}


def test_a_run_of_an_earlier_version_has_cut_endings(tmp_path):
    old = read_training(view_runs.training(tmp_path, "old"))
    assert old.config.advantage.endings == old.advantage.endings == "cut"
    new = read_training(view_runs.training(tmp_path, "new", advantage='endings = "continued"'))
    assert new.config.advantage.endings == new.advantage.endings == "continued"
