"""Numbers as text."""

from __future__ import annotations

import pytest

from mapo.show.numbers import signed


@pytest.mark.parametrize(
    ("value", "shown"), [(0.004, "0.00"), (-0.004, "0.00"), (0.005001, "+0.01"), (-2, "−2")]
)
def test_a_number_that_rounds_to_zero_has_no_sign(value, shown):
    assert signed(value) == shown
