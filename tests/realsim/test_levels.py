"""Start levels filled in several times, and how far they agree."""

from __future__ import annotations

import asyncio
import json

import pytest

from mapo.errors import AnswerError
from mapo.realsim.levels import agreement_of, alpha, fill_start
from mapo.testing.fakes import FakeChat
from support.roles import boat_shed, start_form


def test_alpha_by_hand():
    """Two scenarios, two forms each: (1, 2) and (3, 3); n = 4. Sums of squared differences over ordered
    pairs: 2 inside the first, 0 inside the second, 22 among all (1 + 4 + 4 + 1 + 1 + 0, twice).
    Do = (2 / (2 - 1) + 0) / n, De = 22 / (n (n - 1))."""
    assert alpha([[1, 2], [3, 3]]) == pytest.approx(1 - (2 / 4) / (22 / 12))


def test_alpha_at_its_ends():
    assert alpha([[0, 0, 0], [3, 3, 3]]) == 1
    assert alpha([[0, 3], [3, 0], [0, 3]]) < 0
    assert alpha([[1, 1], [1, 1]]) is None and alpha([[1, 2]]) is None and alpha([[1], [2]]) is None


def test_the_median_is_taken_and_agreement_told(empathy):
    chat = FakeChat([start_form(empathy, level) for level in (3, 1, 1, 2)])
    start = asyncio.run(fill_start(chat, boat_shed(), empathy, forms=4, temperature=0.7))
    assert set(start.levels.values()) == {1} and start.given["C.1"] == [3, 1, 1, 2]
    assert start.agreement["C.1"] == 0.5 and start.missing == 0
    assert len({request.nonce for request in chat.requests}) == 4
    assert {request.temperature for request in chat.requests} == {0.7}
    told = agreement_of([start.given, {key: [0, 0] for key in start.given}], empathy)
    assert told["C.1"]["same"] == 0.75 and told["C.1"]["range"] == 1 and told["C.1"]["alpha"] is not None


def test_some_forms_may_fail_but_not_most(empathy):
    def answers(request):
        return "no form" if request.nonce in bad else start_form(empathy, 2)

    bad = {"attempt 1"}
    start = asyncio.run(fill_start(FakeChat(answers), boat_shed(), empathy, forms=3, temperature=1.0))
    assert start.missing == 1 and start.given["A.1"] == [2, 2]
    bad = {"attempt 1", "attempt 2"}
    retries: dict[str, int] = {}
    with pytest.raises(AnswerError, match="2 of 3 start forms were unusable"):
        asyncio.run(
            fill_start(FakeChat(answers), boat_shed(), empathy, forms=3, temperature=1.0, retries=retries)
        )
    chat = FakeChat(answers)
    again = asyncio.run(fill_start(chat, boat_shed(), empathy, forms=3, temperature=1.0, retries=retries))
    assert again.missing == 0
    # the third was fine and is asked for by the same name
    assert {request.nonce for request in chat.requests} == {"attempt 3", "attempt 4", "attempt 5"}


def test_agreement_of_none(empathy):
    assert agreement_of([], empathy)["C.1"] == {"same": None, "range": None, "alpha": None}
    assert json.dumps(agreement_of([], empathy))
