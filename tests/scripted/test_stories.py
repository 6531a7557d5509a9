"""Telling a story without models, in any domain."""

from __future__ import annotations

import asyncio

import pytest

from mapo import Rubric
from mapo.errors import InputError
from mapo.measure.potential import Trajectory
from mapo.models.chat import Request
from mapo.sandbox.cast import Job
from mapo.scenarios.scenario import Memory, Persona, Scenario, Stage
from mapo.scripted.policies import PolicyContext, longest, make_policy, second_person
from mapo.scripted.story import Story, StoryDirector, StoryUser
from mapo.types import Direction, Message, Reply, Turn

RUBRIC = Rubric.load("empathy")
FERRY = Scenario(
    "ferry",
    Persona("Marit"),
    "A ferry",
    "They cancelled the ferry.",
    stages=tuple(Stage((f"Stage {i} of it.", f"More of stage {i}."), ("quay",)) for i in range(3)),
    memories=(Memory(("I held the wheel once.",), ("wheel",), {"deed": "held my wheel"}),),
    start_levels={i.key: 1 for i in RUBRIC.indicators},
    guarded=("No.", "Never mind."),
    eased=("Yes.", "True."),
)
GOOD, NOTHING, HARM = RUBRIC.levels(C=(1, 0)), RUBRIC.levels(), RUBRIC.levels(A=(1, -1))


def told(*steps):
    """What is said when replies earn these levels one after the other."""
    story = Story(FERRY, 0)
    director, user = StoryDirector(story), StoryUser(story)
    path = Trajectory(RUBRIC, RUBRIC.start(FERRY.start_levels))
    turns, acts = [Turn(FERRY.opening, Reply("x"), steps[0])], []
    for levels in (*steps[1:], None):
        direction = asyncio.run(director.direct(turns, path))
        acts.append(direction.act)
        turns.append(Turn(asyncio.run(user.speak(turns, direction)), Reply("x"), levels))
    return [t.user for t in turns[1:]], acts


def test_the_story_goes_on_while_replies_meet_the_person():
    lines, acts = told(*[GOOD] * 9)
    assert lines[:7] == [
        "Stage 0 of it.",
        "More of stage 0.",
        "Stage 1 of it.",
        "More of stage 1.",
        "I held the wheel once.",
        "Stage 2 of it.",
        "More of stage 2.",
    ]
    assert set(lines[7:]) <= set(FERRY.eased) and acts[4] == "release_memory" and acts[-1] == "go_on"


def test_it_is_held_back_after_harm_and_trickles_after_nothing():
    lines, acts = told(HARM, NOTHING, NOTHING, NOTHING)
    assert acts == ["wait", "wait", "wait", "reveal_stage"]
    assert set(lines[:3]) <= set(FERRY.guarded) and lines[3] == "Stage 0 of it."


def test_a_turn_nobody_judged_holds_nothing_back():
    assert told(None)[1] == ["reveal_stage"]


def test_a_user_who_has_nothing_to_tell_is_at_ease():
    user = StoryUser(Story(FERRY, 0))
    assert asyncio.run(user.speak([], Direction("go_on"))) in FERRY.eased


def test_what_was_told_is_known_beat_by_beat():
    story = Story(FERRY, 0)
    lines = [FERRY.opening, "Stage 0 of it.", "More of stage 0.", "No.", "I held the wheel once."]
    assert story.told([Turn(line, Reply("x")) for line in lines]) == [FERRY.stages[0], FERRY.memories[0]]


def said_by(speak, *lines):
    made = make_policy(
        "p", {"p": speak}, lambda s, request, rng, used: PolicyContext(s, request, rng, used, BANK)
    )
    chat = made(Job(FERRY, "d"))
    messages = tuple(Message("user", line) for line in lines)
    return asyncio.run(chat.reply(Request(messages))).text, chat.name


BANK = {"take": ["The {a}.", "Oh, the {a}!"]}


def test_a_puppet_speaks_of_what_was_told_and_nothing_else():
    assert said_by(lambda t: t.phrase("take", a=t.about()), "Stage 0 of it.")[0] in (
        "The quay.",
        "Oh, the quay!",
    )
    assert said_by(lambda t: t.about(), FERRY.opening)[0] in longest(FERRY.opening)
    text, name = said_by(lambda t: f"{t.once('deed')}|{t.once('deed')}|{t.met}", "I held the wheel once.")
    assert text == "held your wheel||True" and name == "scripted:p"
    assert second_person("I am mine") == "you are yours"
    with pytest.raises(InputError, match="Use one of: p"):
        make_policy("q", {"p": longest}, PolicyContext)
