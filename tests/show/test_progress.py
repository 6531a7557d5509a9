"""The progress display: one line redrawn on a terminal, a plain line at most every 30 seconds in a log."""

from __future__ import annotations

import re

import pytest

from mapo.models.chat import Usage
from mapo.models.ledger import Ledger
from mapo.show import progress
from mapo.show.progress import Progress, call_status, dialogue_progress, fitting, item_progress
from support.report_runs import talk


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def on_a_terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def test_on_a_terminal_items_calls_and_cost_are_counted_in_place(on_a_terminal, capsys):
    ledger = Ledger({"m": (1e6, 0.0, 0.0)})
    with item_progress(9, 4, lambda: ledger.total_calls, lambda: ledger.total_cost) as item_done:
        ledger.add("policy", "m", calls=3, usage=Usage(prompt=2))
        item_done({"error": None})
        item_done({"error": "no connection"})
    shown = plain(capsys.readouterr().err)
    assert re.search(r"items .* 6/9, 0:00 left, failed 1, 3 calls, cost 2.00", shown)
    assert "items:" not in shown


def test_at_80_columns_the_bar_stays_and_no_value_is_cut(on_a_terminal, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with Progress() as shown:
        shown.begin("dialogues", 100)
        shown.update(50, "140 turns (2.1/s)", "a part that is much too long for what is left", "cost 1.25")
    (line,) = {s for s in plain(capsys.readouterr().err).splitlines() if "50/100" in s}
    assert len(line.rstrip()) <= 80
    assert "━━━━" in line and line.rstrip().endswith("left, 140 turns (2.1/s), cost 1.25")


def test_a_count_that_does_not_fit_is_still_shown():
    assert fitting(["1000/2000 dialogues", "0:10 left"], 5) == "1000/2000 dialogues"
    assert fitting(["1/2", "0:10 left", "3 turns"], 12) == "1/2, 3 turns"


def test_a_log_gets_a_line_every_thirty_seconds_and_the_last_one(clock, capsys):
    calls = 0
    with item_progress(200, 40, lambda: calls, lambda: None) as item_done:
        for _ in range(160):
            clock[0] += 0.5
            calls += 1
            item_done({"error": None})
    # 60 items in 30 s: the 100 that are left take 50 s, then 40 take 20 s
    assert capsys.readouterr().err.splitlines() == [
        "items: 40/200",
        "items: 100/200, 0:50 left, 60 calls",
        "items: 160/200, 0:20 left, 120 calls",
        "items: 200/200, 160 calls",
    ]


def test_where_nothing_is_left_to_do_a_log_says_so_once(clock, capsys):
    with item_progress(3, 3, lambda: 0, lambda: None):
        clock[0] += 60
    assert capsys.readouterr().err == "items: 3/3\n"


def test_dialogues_show_rate_problems_and_cost(clock, capsys):
    good, unscored = talk([1, 1, 1]), talk([None])
    with dialogue_progress(5, 0, lambda: 1.5) as (dialogue_done, turn_done):
        clock[0] += 10
        for turn in (*good.turns, *unscored.turns):
            turn_done(turn)
        dialogue_done(good)
        clock[0] += 20
        dialogue_done(unscored)
    # 4 turns in 30 s; 2 dialogues in 30 s, 3 to go
    expected = "dialogues: 2/5, 0:45 left, 4 turns (0.1/s), unscored 25.0%, cost 1.50"
    assert capsys.readouterr().err.splitlines() == ["dialogues: 0/5", expected]


def test_the_time_left_goes_by_the_work_where_that_is_finer_than_the_count(clock, capsys):
    with Progress() as display:
        display.begin("", 4, 1, unit="done", work=1.5)
        clock[0] += 60
        display.update(1, "2 running", work=2.0)  # half a run in 60 s, two to go
    assert capsys.readouterr().err == "1/4 done, 4:00 left, 2 running\n"


def test_a_long_line_is_shortened_on_a_terminal_and_whole_in_a_log(monkeypatch, capsys):
    names = [f"run_{i} 3/10" for i in range(20)]
    with Progress() as display:
        display.begin("", 20, unit="done", eta=False)
        display.update(0, *names)
        display.log()
    assert capsys.readouterr().err == f"0/20 done, {', '.join(names)}\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    with Progress() as display:
        display.begin("", 20, unit="done", eta=False)
        display.update(0, *names)
        display.bar.refresh()
    shown = [line for line in plain(capsys.readouterr().err).splitlines() if "run_0" in line]
    assert shown
    assert all(len(line.strip()) <= 60 and line.rstrip().endswith(" 3/10") for line in shown)


def test_call_status_names_the_slowest_role():
    """user: 10 s in 5 calls; judge: 24 s in 4 calls and 2 retries, 4 s each."""
    user = {"calls": 5, "retries": 0, "timeouts": 0, "seconds": 10.0, "waiting": 0, "longest": 0.0}
    judge = {"calls": 4, "retries": 2, "timeouts": 1, "seconds": 24.0, "waiting": 1, "longest": 3.0}
    assert call_status([{"user": user}, {"judge": judge}]) == [
        "9 calls",
        "2 retries",
        "1 timeout",
        "slowest judge 4.0 s/call",
    ]
    assert call_status([{}]) == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (67.9, "1:07"), (3600, "1:00:00"), (7325, "2:02:05")]
)
def test_durations(seconds, text):
    assert progress.clock(seconds) == text
