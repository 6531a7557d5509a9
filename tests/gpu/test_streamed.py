"""Streamed weights on a real card (make test-gpu): what they say, in all sizes of a step."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from support import streamed_checks as streamed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # drivers and compilers have their own
    pytest.mark.skipif(bool(streamed.why_not()), reason=streamed.why_not() or "-"),
]


@pytest.mark.parametrize("rows", streamed.ROWS)
@pytest.mark.parametrize("name", streamed.MODELS)
def test_they_say_what_the_model_says_and_follow_its_weights(name, rows):
    streamed.check(name, rows)


@pytest.mark.parametrize(("name", "rows"), streamed.LONG)
def test_long_rows_beside_short_ones(name, rows):
    streamed.check_long(name, rows)
