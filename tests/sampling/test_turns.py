"""Time of the samplers, divided among the roles."""

import pytest

from mapo.sampling.turns import Work


def test_the_time_of_a_pass_is_divided_by_ids():
    work = Work()
    work.add("read", 3.0, [("judge", 100), ("director", 40), ("judge", 10)])
    work.add("read", 1.0, [("judge", 7)])
    # 3 * 110 / 150 + 1, 3 * 40 / 150
    assert work.seconds["judge"]["read"] == pytest.approx(3.2)
    assert work.seconds["director"]["read"] == pytest.approx(0.8)
    assert work.ids == {"judge": {"read": 117}, "director": {"read": 40}}


def test_a_pass_without_ids_counts_for_nobody():
    work = Work()
    work.add("decode", 1.0, [("user", 0)])
    work.add("prefill", 1.0, [])
    assert work.seconds == {} and work.ids == {}
