"""What `mapo train` says on the terminal, of outcomes made up for the purpose."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from mapo.cli.training import live
from mapo.cli.training.live import Live
from mapo.cli.training.outcome import print_outcome
from mapo.runs.training import read_training
from mapo.scoring.score import score_dialogues
from support.report_runs import RUBRIC, talk, training


def outcome(before: list, after: list) -> SimpleNamespace:
    told = {"method": "mapo", "model": "pocket", "steps": 4, "dialogues": 32, "seconds": 9.0, "seed": 1}
    scores = [score_dialogues(name, own, RUBRIC) for name, own in (("before", before), ("after", after))]
    return SimpleNamespace(
        summary={**told, "chosen_step": 4},
        before=scores[0],
        after=scores[1],
        before_dialogues=before,
        after_dialogues=after,
    )


@pytest.fixture
def shown(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "160")

    def show(found: SimpleNamespace, caution: str = "") -> str:
        print_outcome(found, tmp_path, caution)
        return " ".join(capsys.readouterr().out.split())

    return show


def test_a_caution_is_said_with_and_without_a_test(shown):
    found = outcome([talk([0, 1])], [talk([1, 1])])
    assert "Beware of [it]." in shown(found, "Beware of [it].") and "Beware" not in shown(found)
    untested = outcome([], [])
    assert "Beware." in shown(untested, "Beware.") and "never trained on" not in shown(untested)


def test_the_difference_is_the_reports(shown, tmp_path):
    from mapo.report import build
    from mapo.report.document.blocks import Tiles

    run = read_training(training(tmp_path / "mine", cases=8))
    told = shown(outcome(run.before, run.after))
    (tiles,) = (b for b in build([str(run.root)]).blocks if isinstance(b, Tiles))
    tile = tiles.tiles[1]
    ends = tile.detail.partition(" (95 %)")[0]
    assert f"paired by scenario: {tile.value} EPM-Q, 95 % interval {ends} (8 scenarios)" in told
    few = shown(outcome([talk([0, 1])], [talk([1, 1])]))
    assert "EPM-Q (1 scenario)" in few and "nan" not in few
    apart = outcome([talk([0, 1], scenario="a")], [talk([1, 1], scenario="b")])
    assert "no paired difference" in shown(apart)


def test_the_pair_says_who_speaks_and_how_much_of_it_is_shown(shown):
    before, after = talk([0] * 8), talk([1, None, 1])
    told = shown(outcome([before], [after]))
    assert "after 8 turns (first 6 of 8 turns)" in told and "of 3 turns" not in told
    assert "user: line 1" in told and "model: reply 1" in told and "line 7" not in told
    assert "reward: +10.00" in told and "reward: unscored" in told


def test_where_a_run_goes_on_is_told_in_a_line(capsys):
    show = Live(9)
    show.resumes(9)
    show.resumes(10)
    show.close()
    assert capsys.readouterr().err == "resumed at step 9\nresumed after step 9, the last\n"


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    return now


def test_a_long_test_has_a_line_now_and_then_and_a_step_has_its_own(capsys, clock):
    show, turn = Live(9), talk([1]).turns[0]
    show.eval_begins("before", 4, 1)  # one is on disk
    for played in range(1, 61):
        clock[0] += 1
        show.turn_done(turn)
        if played in (20, 40):
            show.dialogue_done(talk([1]))
    lines = capsys.readouterr().err.splitlines()
    test = "held-out test, before training"
    assert lines == [test, f"{test}: 2/4 dialogues, 30 turns", f"{test}: 3/4 dialogues, 60 turns"]
    show.step_begins(1, 2)
    for _ in range(100):
        clock[0] += 1
        show.turn_done(turn)
    show.eval_begins("validation_00001", 2)
    for _ in range(100):
        clock[0] += 1
        show.dialogue_done(talk([1]))
    show.close()
    assert capsys.readouterr().err == ""


def test_on_a_terminal_dialogues_and_turns_are_counted_in_place(capsys, clock, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    show, turn = Live(9), talk([1]).turns[0]
    show.bar.refresh()
    assert "dialogues" not in capsys.readouterr().err  # nothing is played yet
    show.eval_begins("after", 4, 1)
    show.dialogue_done(talk([1]))
    for _ in range(7):
        clock[0] += 60
        show.turn_done(turn)
    show.bar.refresh()
    show.close()
    told = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    assert "2/4 dialogues, 7 turns" in told and "training:" not in told


@pytest.mark.parametrize(
    ("resume", "played", "said"),
    [
        (False, 0, "held-out test, before training"),
        (True, 0, "resumed at step 4"),
        (True, 2, "held-out test, before training resumed at step 4"),
    ],
)
def test_a_resumed_run_tells_of_the_test_it_plays_and_of_no_other(capsys, resume, played, said):
    show = Live(9, resume=resume)
    show.eval_begins("before", 2)
    for _ in range(played):
        show.dialogue_done(talk([1]))
    if resume:
        show.resumes(4)
    for step in (4, 5):
        show.step_begins(step, 2)
        show.dialogue_done(talk([1]))
    show.eval_begins("validation", 2)
    show.dialogue_done(talk([1]))
    show.close()
    assert " ".join(capsys.readouterr().err.split()) == said
