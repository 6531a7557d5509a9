"""The progress of a grid of runs, and where each run is."""

from __future__ import annotations

import json
import re

import pytest

from mapo.evals.ablation.cells import METHOD, REWARD, GridCell
from mapo.evals.ablation.processes import GridProgress
from mapo.evals.processes import last_step
from mapo.show import progress

CELLS = [GridCell.of({METHOD: "mapo", REWARD: "idr"}, seed) for seed in range(4)]


def steps_of(out, cell, *steps, torn=""):
    (out / cell.name).mkdir(exist_ok=True)
    lines = "".join(json.dumps({"step": step, "score": None}) + "\n" for step in steps)
    (out / cell.name / "metrics.jsonl").write_text(lines + torn)


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_the_time_left_goes_by_the_steps_done(tmp_path, clock):
    (tmp_path / CELLS[0].name).mkdir()
    (tmp_path / CELLS[0].name / "summary.json").write_text("{}")
    with GridProgress(tmp_path, CELLS, 2, 10) as grid:
        grid.update()
        assert grid.progress.text == "1/4 done, ? left, 0 running"
        grid.begins(CELLS[1])
        steps_of(tmp_path, CELLS[1], *range(1, 6))
        clock[0] += 60
        grid.update()
        # half a run in 60 s, 2.5 runs to go: 300 s
        at = f", {CELLS[1].name} at step 5/10"
        assert grid.progress.text == f"1/4 done, 5:00 left, 1 running{at}"
        grid.ends(CELLS[1], "broke")
        clock[0] += 3600
        grid.update()
        # one of three over in 3660 s: twice that
        assert grid.progress.text == "1/4 done, 2:02:00 left, 1 failed, 0 running"


def test_a_log_gets_a_line_per_finished_run_and_one_every_thirty_seconds(tmp_path, clock, capsys):
    with GridProgress(tmp_path, CELLS, 2, 10) as grid:
        grid.begins(CELLS[0])
        grid.begins(CELLS[1])
        steps_of(tmp_path, CELLS[0], 1, 2)
        for _ in range(35):
            clock[0] += 2
            grid.update()
        plan, more, *lines = capsys.readouterr().err.splitlines()
        assert plan == "4 runs, 0 of them finished: methods mapo; rewards idr; seeds 0, 1, 2, 3"
        assert more.startswith("2 in parallel, 10 steps each")
        # two tenths of a run in 30 s, then in 60 s; 3.8 to go
        running = "0/4 done, {} left, 2 running, mapo_idr_seed0 at step 2/10, mapo_idr_seed1 at step 0/10"
        assert lines == [running.format("9:30"), running.format("19:00")]
        grid.ends(CELLS[1], None)
        assert capsys.readouterr().err == "mapo_idr_seed1 finished in 1:10; 1/4 done\n"
        grid.ends(CELLS[0], "no [memory]\x1b")
        assert capsys.readouterr().err == "mapo_idr_seed0 failed: no [memory]\ufffd; 1/4 done\n"


def test_on_a_terminal_one_line_is_redrawn(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    with GridProgress(tmp_path, CELLS, 4, 10) as grid:
        for cell in CELLS:
            grid.begins(cell)
        steps_of(tmp_path, CELLS[0], 7)
        grid.update()
        grid.progress.bar.refresh()
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
        for cell in CELLS:
            (tmp_path / cell.name).mkdir(exist_ok=True)
            (tmp_path / cell.name / "summary.json").write_text("{}")
            grid.ends(cell, None)
        assert grid.progress.text == "4/4 done, 0 running"
    assert re.search(r"0/4 done, 0:\d\d left, 4 running\b", text)


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("", 0),
        ('{"step": 3}\n', 3),
        ('{"step": 3}\n{"step": 4}', 3),
        ('{"step": 3}\n{"st', 3),
        ('{"step": 9}\n{"step": 8}\n', 8),  # a resumed run goes back to its checkpoint
        ('{"step": 3}\n{"other": 1}\n[]\n\xff\n\n', 3),
        ("x" * 100_000 + '\n{"step": 5}\n', 5),
    ],
)
def test_the_step_of_a_run_is_in_its_last_complete_line(tmp_path, text, step):
    (tmp_path / "metrics.jsonl").write_bytes(text.encode("latin-1"))
    assert last_step(tmp_path / "metrics.jsonl") == step
    assert last_step(tmp_path / "nothing") == 0
