"""Folders of results from anywhere: no link followed, sizes bounded, the record written last counts."""

from __future__ import annotations

import json
import os

import pytest

from mapo.errors import InputError
from mapo.evals.ablation.analysis import GridCell, read_run
from mapo.evals.compare.comparison import compare
from mapo.report import build
from mapo.report.document.page import html_page
from mapo.runs import files
from mapo.scoring.folders import read_folders
from mapo.scoring.score import score
from mapo.store import RunDir
from mapo.types import Ending, StopReason
from support import report_runs
from support.report_runs import talk, write_lines


def later(path, seconds):
    told = path.stat()
    os.utime(path, (told.st_atime, told.st_mtime + seconds))


def only(folder):
    [found] = read_folders(folder)
    return found


def test_the_record_written_last_counts_whatever_its_file_is_called(tmp_path):
    first, second = talk([1, 1, 1], id="d"), talk([0, 0, 0], id="d")
    new = write_lines(tmp_path / "dialogues" / "a.jsonl", [second])
    write_lines(tmp_path / "dialogues" / "b.jsonl", [first])
    later(new, 60)
    found = only(tmp_path)
    assert [max(m.progress.level for f in r.path.forms for m in f.values()) for r in found.results] == [0]
    assert "recorded twice; the last record counts" in found.bad[0]


def test_the_later_line_of_one_file_counts(tmp_path):
    write_lines(tmp_path / "dialogues" / "a.jsonl", [talk([0, 0], id="d"), talk([2, 2], id="d")])
    [result] = only(tmp_path).results
    assert {m.progress.level for f in result.path.forms for m in f.values()} == {2}


def test_a_dialogue_that_did_not_break_counts_before_one_that_did(tmp_path):
    broken = talk([1], id="d", ending=Ending(StopReason.BROKEN), error="the endpoint died")
    other = talk([1], id="e", ending=Ending(StopReason.BROKEN), error="the endpoint died")
    write_lines(tmp_path / "dialogues" / "a.jsonl", [talk([1, 1], id="d"), broken, other])
    found = only(tmp_path)
    assert [r.id for r in found.results] == ["d"] and found.broken == {("", "e")} and found.bad == []


def test_the_test_of_an_ablations_run_goes_by_the_same_rule(tmp_path):
    run = report_runs.training(tmp_path / "mapo_idr_seed0")
    cell = GridCell.of({"advantage.method": "mapo", "reward.name": "idr"}, 0)
    before = read_run(tmp_path, cell).jobs
    other = write_lines(
        run / "eval" / "after" / "again.jsonl", [talk([-1, -1, -1], id="c0_1", scenario="c0")]
    )
    later(other, 60)
    after = read_run(tmp_path, cell).jobs
    assert after["c0", "c0_1"] < before["c0", "c0_1"] and after["c1", "c1_1"] == before["c1", "c1_1"]


def test_links_are_reported_and_not_followed(tmp_path):
    secret = report_runs.empa(tmp_path / "secret", model="hidden")
    run = report_runs.empa(tmp_path / "run")
    (run / "dialogues" / "more.jsonl").symlink_to(secret / "dialogues" / "empa.jsonl")
    found = only(run)
    assert {r.model for r in found.results} == {"m"}
    assert any("more.jsonl: cannot be read (a link; not followed)" in told for told in found.bad)
    page = html_page(build([str(run)]))
    assert "hidden" not in page and "a link; not followed" in page


def test_a_linked_folder_of_dialogues_holds_none(tmp_path):
    secret = report_runs.empa(tmp_path / "secret", model="hidden")
    run = tmp_path / "run"
    run.mkdir()
    (run / "dialogues").symlink_to(secret / "dialogues")
    found = only(run)
    assert found.results == [] and "a link; not followed" in found.bad[0]


def test_a_linked_model_below_a_folder_is_reported(tmp_path):
    report_runs.empa(tmp_path / "secret")
    report_runs.empa(tmp_path / "all" / "one")
    (tmp_path / "all" / "two").symlink_to(tmp_path / "secret")
    one, two = read_folders(tmp_path / "all")
    assert len(one.results) == 4 and two.results == [] and "pass the folder itself" in two.bad[0]
    assert score(tmp_path / "all").models[0].score.n == 4


def test_the_folder_named_may_be_a_link(tmp_path):
    report_runs.empa(tmp_path / "there")
    (tmp_path / "here").symlink_to(tmp_path / "there")
    assert len(only(tmp_path / "here").results) == 4


def test_pipes_and_huge_files_do_not_hang_or_fill_memory(tmp_path, monkeypatch):
    run = report_runs.empa(tmp_path / "run")
    os.mkfifo(run / "x_result.json")
    os.mkfifo(run / "dialogues" / "pipe.jsonl")
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 100)
    (run / "y_result.json").write_text(json.dumps({"pad": "x" * 200}))
    os.mkfifo(run / "descriptive_statistics.csv")
    told = "\n".join(only(run).bad)
    for words in ("x_result.json: cannot be read (not a regular file)", "pipe.jsonl: cannot be read",
                  "y_result.json: larger than", "categories are unknown"):  # fmt: skip
        assert words in told


def test_what_compare_reads_of_a_training_is_no_link_either(tmp_path):
    run = report_runs.training(tmp_path / "run")
    assert {e.model for e in compare([str(run)]).cells.values()} == {"run, before", "run, after"}
    for name in ("manifest.json", "config.toml", "rubric.toml"):
        kept = (run / name).read_bytes() if (run / name).exists() else None
        (tmp_path / name).write_bytes(kept or b"")
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(tmp_path / name)
        with pytest.raises(InputError, match="a link; not followed"):
            compare([str(run)])
        (run / name).unlink()
        if kept:
            (run / name).write_bytes(kept)


def test_a_damaged_copy_of_the_rubric_is_not_replaced_by_a_shipped_one(tmp_path):
    run = report_runs.empa(tmp_path / "run")
    (run / "rubric.toml").write_text("half a li")
    found = only(run)
    assert found.results == [] and "rubric.toml" in found.bad[0]


def test_no_ledger_is_taken_for_a_result(tmp_path):
    write_lines(tmp_path / "dialogues" / "step_00001.jsonl", [talk([1, 1], id="d")])
    for rank in (0, 1):
        RunDir(tmp_path).ledger_of(rank).write_text("{}")
    assert not only(tmp_path).bad
