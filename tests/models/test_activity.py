"""Model calls of a session by role."""

from __future__ import annotations

from mapo.models import activity
from mapo.models.activity import Activity


def test_calls_in_flight_are_counted_with_the_age_of_the_oldest(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(activity.time, "monotonic", lambda: now[0])
    calls = Activity()
    calls.add("judge", calls=2, retries=1, seconds=3.5)
    with calls.waiting("judge"):
        now[0] += 5
        with calls.waiting("judge"):
            judge = calls.snapshot()["judge"]
    assert (judge["calls"], judge["waiting"], judge["longest"]) == (2, 2, 5.0)
    assert calls.snapshot()["judge"]["waiting"] == 0
