"""Estimates of what a run will call."""

from __future__ import annotations

import pytest

from mapo.config import load_config
from mapo.planning.estimate import Estimate, estimate_dialogues, estimate_training

SPLITS = {"train": 40, "validation": 8, "test": 12}


def test_calls_of_a_dialogue():
    """12 turns: the judge every turn, director and user in all but the last, 2 % repeated calls."""
    estimate = estimate_dialogues(1, 12, ["judge", "director", "user"])
    assert estimate.calls == pytest.approx((12 + 11 + 11) * 1.02)


def test_a_panel_multiplies_the_judge():
    one, three = (estimate_dialogues(1, 5, ["judge"], judges=n) for n in (1, 3))
    assert three.calls == pytest.approx(3 * one.calls)


def test_start_forms_are_counted_and_calls_are_rounded_up():
    """4 turns: policy and judge 4 each, director and user 3 each, one start form, 2 % repeated calls."""
    estimate = estimate_dialogues(1, 4, ["policy", "judge", "director", "user"], starts=1)
    assert 15 <= estimate.calls < 16
    assert "1 dialogue of up to 4 turns, up to 16 model calls" in estimate.text
    assert "up to 1,300 model calls" in Estimate(calls=1201).text


def test_dialogues_of_a_training():
    """10 steps x 16 scenarios x 4 siblings, validations after steps 5 and 10, two tests."""
    given = ["optim.steps=10", "eval.every=5", "eval.repeats=2", "eval.test_repeats=4"]
    estimate = estimate_training(load_config("pocket", given), SPLITS)
    assert estimate.dialogues == 10 * 16 * 4 + 2 * 8 * 2 + 2 * 12 * 4
    assert estimate.calls == 0  # scripted roles


def test_finished_steps_are_not_counted_again():
    given = ["optim.steps=10", "eval.every=5", "eval.repeats=2", "eval.test_repeats=4"]
    estimate = estimate_training(load_config("pocket", given), SPLITS, done=5)
    assert estimate.dialogues == 5 * 16 * 4 + 1 * 8 * 2 + 1 * 12 * 4


def test_evaluations_that_are_not_played_do_not_count_for_the_turn_limit():
    given = ["rollout.max_turns=10", "eval.max_turns=45", "eval.every=0"]
    played = estimate_training(load_config("pocket", [*given, "eval.test_repeats=1"]), SPLITS)
    assert played.max_turns == 45
    alone = estimate_training(load_config("pocket", [*given, "eval.test_repeats=0"]), SPLITS)
    assert alone.max_turns == 10 and "of up to 10 turns" in alone.text


def test_limits_give_the_least_time():
    estimate = Estimate(calls=600, prompt=9000, output=1000, requests_per_minute=100, tokens_per_minute=5000)
    assert estimate.least_seconds == 360
    assert "at least 6:00 at the configured rate limits" in estimate.text


def test_no_limits_no_time():
    assert Estimate(calls=10).least_seconds is None
