"""What `mapo train` shows while it runs."""

from __future__ import annotations

import re

import pytest

from mapo.show import progress
from mapo.train.callbacks import TrainingDisplay
from support.report_runs import talk


def test_a_resumed_run_prints_its_first_step(capsys):
    display = TrainingDisplay(9)
    display.resumes(9)
    display.resumes(10)
    display.close()
    assert capsys.readouterr().err == "resumed at step 9\nresumed after step 9, the last\n"


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_in_a_log_only_the_held_out_tests_print_their_progress(capsys, clock):
    display, turn = TrainingDisplay(9), talk([1]).turns[0]
    display.eval_begins("before", 4, 1)  # one is on disk
    for played in range(1, 61):
        clock[0] += 1
        display.turn_done(turn)
        if played in (20, 40):
            display.dialogue_done(talk([1]))
    lines = capsys.readouterr().err.splitlines()
    test = "held-out test, before training"
    assert lines == [test, f"{test}: 2/4 dialogues, 30 turns", f"{test}: 3/4 dialogues, 60 turns"]
    display.step_begins(1, 2)
    for _ in range(100):
        clock[0] += 1
        display.turn_done(turn)
    display.eval_begins("validation_00001", 2)
    for _ in range(100):
        clock[0] += 1
        display.dialogue_done(talk([1]))
    display.close()
    assert capsys.readouterr().err == ""


@pytest.fixture
def on_a_terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


def shown(capsys, display) -> str:
    display.progress.bar.refresh()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)


def test_on_a_terminal_dialogues_and_turns_are_counted_in_place(capsys, clock, on_a_terminal):
    display, turn = TrainingDisplay(9), talk([1]).turns[0]
    assert "dialogues" not in shown(capsys, display)  # nothing is played yet
    display.eval_begins("after", 4, 1)
    display.dialogue_done(talk([1]))
    for _ in range(7):
        clock[0] += 60
        display.turn_done(turn)
    text = shown(capsys, display)
    display.close()
    assert "2/4 dialogues, 7 turns" in text and "training:" not in text and "reward" not in text


def test_on_a_terminal_a_step_shows_its_mean_turn_reward(capsys, on_a_terminal):
    display = TrainingDisplay(9)
    talks = talk([1, None]), talk([0])
    display.step_begins(1, 2)
    for dialogue in talks:
        for turn in dialogue.turns:
            display.turn_done(turn)
    rewards = [turn.reward for dialogue in talks for turn in dialogue.turns if turn.reward is not None]
    mean = sum(rewards) / len(rewards)
    text = shown(capsys, display)
    assert len(rewards) == 2 and f"3 turns, mean reward {mean:+.2f}, unscored 33.3%" in text
    display.step_begins(2, 2)
    assert "mean reward" not in shown(capsys, display).rpartition("step 2")[2]
    display.close()


@pytest.mark.parametrize(
    ("resume", "played", "said"),
    [
        (False, 0, "held-out test, before training"),
        (True, 0, "resumed at step 4"),
        (True, 2, "held-out test, before training resumed at step 4"),
    ],
)
def test_a_resumed_run_announces_only_the_test_it_plays(capsys, resume, played, said):
    display = TrainingDisplay(9, resume=resume)
    display.eval_begins("before", 2)
    for _ in range(played):
        display.dialogue_done(talk([1]))
    if resume:
        display.resumes(4)
    for step in (4, 5):
        display.step_begins(step, 2)
        display.dialogue_done(talk([1]))
    display.eval_begins("validation", 2)
    display.dialogue_done(talk([1]))
    display.close()
    assert " ".join(capsys.readouterr().err.split()) == said
