"""Estimated time left of a run of steps, validations and tests."""

from __future__ import annotations

import pytest

from mapo.show import eta
from mapo.show.eta import PhaseClock


@pytest.fixture
def now(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(eta.time, "monotonic", lambda: now[0])
    return now


def test_nothing_is_known_before_a_phase_has_finished(now):
    clock = PhaseClock({"step": 10, "test": 20})
    clock.begin("test")
    assert clock.left({"step": 3}) is None


def test_a_kind_without_a_finished_phase_is_estimated_by_size(now):
    """A test of 20 units took 40 s: a step of 10 units takes 20 s."""
    clock = PhaseClock({"step": 10, "test": 20})
    clock.begin("test")
    now[0] += 40
    clock.end()
    assert clock.left({"step": 3, "test": 1}) == 3 * 20 + 40


def test_the_current_phase_counts_down_and_not_below_zero(now):
    clock = PhaseClock({"step": 10, "test": 20})
    clock.begin("step")
    now[0] += 20
    clock.begin("step")
    now[0] += 5
    assert clock.left({"step": 1}) == 15 + 20
    now[0] += 60
    assert clock.left({"step": 1}) == 20


def test_a_phase_of_which_a_half_was_done_earlier_counts_as_a_half(now):
    clock = PhaseClock({"step": 10})
    clock.begin("step", share=0.5)
    now[0] += 10
    clock.end()
    assert clock.left({"step": 1}) == 20
