"""What `mapo train` shows while it runs."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import asdict

import pytest

from mapo.show import progress
from mapo.show.progress import DialogueCounts
from mapo.train.callbacks import RunPlan, TrainingDisplay
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


def test_in_a_log_a_test_prints_a_line_at_once_and_every_thirty_seconds(capsys, clock):
    display, turn = TrainingDisplay(9), talk([1]).turns[0]
    display.eval_begins("before", 4, 1)  # one is on disk
    for played in range(1, 61):
        clock[0] += 1
        display.turn_done(turn)
        if played in (20, 40):
            display.dialogue_done(talk([1]))
    display.eval_ends("before")
    display.close()
    test = "held-out test before training"
    assert capsys.readouterr().err.splitlines() == [
        f"{test}: 1/4 dialogues",
        f"{test}: 2/4 dialogues, 30 turns, 0:30 elapsed",
        f"{test}: 3/4 dialogues, 60 turns, 1:00 elapsed",
        f"{test}: 3 dialogues, 60 turns in 1:00",
    ]


def test_in_a_log_the_first_step_prints_a_line_soon_and_a_short_one_none(capsys, clock):
    display, turn = TrainingDisplay(9), talk([1]).turns[0]
    display.step_begins(1, 2)
    for _ in range(12):
        clock[0] += 1
        display.turn_done(turn)
    display.step_begins(2, 2)
    clock[0] += 20
    display.turn_done(turn)
    display.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("step 1/9: 0/2 dialogues, 10 turns, mean reward")


def test_the_heartbeat_prints_although_nothing_is_reported(capsys, monkeypatch):
    """The thread prints the first line after `SOON` seconds, and names the role that is waited for."""
    monkeypatch.setattr(progress, "TICK", 0.01)
    monkeypatch.setattr("mapo.train.callbacks.SOON", 0.02)
    printed = threading.Event()
    waiting = {"calls": 0, "retries": 0, "timeouts": 0, "seconds": 0.0, "waiting": 8, "longest": 75.0}
    display = TrainingDisplay(9, activity=lambda: {"judge": waiting})
    monkeypatch.setattr(display.progress, "print", lambda line: (lines.append(line), printed.set()))
    lines: list[str] = []
    display.step_begins(1, 8)
    assert printed.wait(30)
    display.close()
    assert lines[0].startswith("step 1/9: 0/8 dialogues, 0 turns, 0 calls, waiting for judge (8 calls, 1:15)")


class Others:
    """Other processes that have published these states."""

    def __init__(self, **states):
        self.states = states

    def published(self, topic):
        return [json.dumps(self.states[topic.replace("/", "_")])]


def test_the_display_counts_over_all_processes(capsys, clock):
    calls = {"calls": 7, "retries": 1, "timeouts": 2, "seconds": 40.0, "waiting": 0, "longest": 0.0}
    here = {"counts": {**asdict(DialogueCounts(20)), "turns": 99}, "calls": {"judge": calls}}
    elsewhere = {"counts": asdict(DialogueCounts(1000)), "calls": {}}
    display = TrainingDisplay(
        9, processes=Others(counts_1=here, counts_2=elsewhere), activity=lambda: {"judge": calls}
    )
    display.eval_begins("before", 48, 4)
    clock[0] += 30
    display.turn_done(talk([1]).turns[0])
    display.close()
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.endswith(
        ": 24/48 dialogues, 100 turns, 14 calls, 2 retries, 4 timeouts, slowest judge 5.0 s/call, "
        "0:30 elapsed"
    )


def test_the_time_left_includes_validations_and_the_test(capsys, clock):
    """A test of 60 s, a step of 20 s and a validation of 10 s: after step 1 of 3 there are 2 steps, 1
    validation (after step 3) and 1 test to come, 110 s."""
    display = TrainingDisplay(3)
    sizes = {"step": 2.0, "validation": 1.0, "test": 6.0}
    display.run_begins(RunPlan(3, sizes, frozenset({1, 3}), tested=True))
    display.eval_begins("before", 6)
    clock[0] += 60
    display.eval_ends("before")
    display.step_begins(1, 2)
    clock[0] += 20
    display.eval_begins("validation_00001", 1)
    clock[0] += 10
    display.eval_ends("validation_00001")
    record = dict.fromkeys(("reward", "score", "unscored", "broken")) | {"sampled_per_s": 1.0, "turns": 1.0}
    display.step_ends({"step": 1, **record})
    assert "1:50 left" in capsys.readouterr().err
    display.step_begins(2, 2)
    clock[0] += 5
    assert display._left() == "1:45 left"
    display.close()


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
        (False, 0, "held-out test before training: 0/2 dialogues"),
        (True, 0, "resumed at step 4"),
        (True, 2, "held-out test before training: 2 dialogues, 2 turns in 0:00 resumed at step 4"),
    ],
)
def test_a_resumed_run_announces_only_the_test_it_plays(capsys, resume, played, said):
    display = TrainingDisplay(9, resume=resume)
    display.eval_begins("before", 2)
    for _ in range(played):
        display.turn_done(talk([1]).turns[0])
        display.dialogue_done(talk([1]))
    display.eval_ends("before")
    if resume:
        display.resumes(4)
    for step in (4, 5):
        display.step_begins(step, 2)
        display.dialogue_done(talk([1]))
    display.eval_begins("validation", 2)
    display.dialogue_done(talk([1]))
    display.close()
    assert " ".join(capsys.readouterr().err.split()) == said
