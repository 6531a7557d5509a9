"""The scripted listener, who says what was written to the test people."""

import random

import pytest

from mapo.domains.empathy.context import EmpathyContext
from mapo.domains.empathy.policies import honest, listener, written_replies
from mapo.models.chat import Request
from mapo.scenarios.sets import load_scenarios
from mapo.types import Message

TEST = load_scenarios("builtin:test")


def lines_of(scenario):
    told = [line for beat in scenario.beats for line in beat.says]
    return [scenario.opening, *told, *scenario.guarded, *scenario.eased]


def context(scenario, lines, used=None):
    messages = []
    for line in lines:
        messages += [Message("user", line), Message("assistant", "...")]
    return EmpathyContext(
        scenario, Request(tuple(messages[:-1])), random.Random(0), {} if used is None else used
    )


@pytest.mark.parametrize("scenario", TEST, ids=lambda scenario: scenario.id)
def test_every_line_of_a_test_person_has_a_reply_of_its_own(scenario):
    for line in lines_of(scenario):
        assert listener(context(scenario, [line])) in [reply for _, reply in written_replies()[line]]


def test_a_line_said_twice_gets_its_other_reply():
    scenario = TEST[0]
    line = next(line for line in lines_of(scenario) if len(written_replies()[line]) > 1)
    used = {}
    first, second = (listener(context(scenario, [line], used)) for _ in range(2))
    assert first != second


def test_deeper_replies_come_later():
    line = next(
        line for line, replies in written_replies().items() if {"ask", "beneath"} <= {k for k, _ in replies}
    )
    kinds = {reply: kind for kind, reply in written_replies()[line]}
    early, late = context(TEST[0], [line]), context(TEST[0], ["Yes."] * 8 + [line])
    assert (kinds[listener(early)], kinds[listener(late)]) == ("ask", "beneath")


def test_other_people_get_what_the_honest_policy_says():
    scenario = load_scenarios("builtin:train")[0]
    assert listener(context(scenario, [scenario.opening])) == honest(context(scenario, [scenario.opening]))
