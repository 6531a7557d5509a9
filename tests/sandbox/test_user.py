"""The user: says what has been released, in lines of its own, never twice."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from mapo.errors import AnswerError, EndpointError, InputError
from mapo.measure.rubric import Rubric
from mapo.sandbox.director import ACTS
from mapo.sandbox.transcript import delimiter_of
from mapo.sandbox.user import ModelUser, cut, length_limit, similar
from mapo.types import Direction
from support.roles import ATTACKS, Told, attack, boat_shed, prompt, turns_of

RUBRIC = Rubric.load("empathy")
SCENARIO = boat_shed()
GO_ON = Direction("go_on")
TURNS = turns_of((SCENARIO.opening, "Tell me."), ("There's papers in my ute.", "And then?"))


def user(*answers, scenario=SCENARIO) -> ModelUser:
    return ModelUser(Told(*answers), scenario, RUBRIC)


def spoken(who: ModelUser, direction: Direction = GO_ON, turns=TURNS) -> str:
    return asyncio.run(who.speak(turns, direction))


def test_the_first_line_is_the_opening():
    who = user(EndpointError("must not be called"))
    assert spoken(who, turns=[]) == SCENARIO.opening


def test_only_what_was_released_is_in_the_prompt():
    who = user("Dunno eh.")
    spoken(
        who,
        Direction("release_memory", "1"),
        turns_of(*((t.user, t.reply.text) for t in TURNS), directions=(None, Direction("reveal_stage", "0"))),
    )
    shown = prompt(who.chat.requests[0])
    released = [SCENARIO.stages[0], SCENARIO.memories[1]]
    for beat in SCENARIO.beats:
        assert all((line in shown) == (beat in released) for line in beat.says)
    assert SCENARIO.wants_to_say not in shown
    assert "Write in English" in shown


@pytest.mark.parametrize(
    ("direction", "words"),
    [
        (Direction("reveal_stage", "3"), SCENARIO.stages[3].says[0]),
        (Direction("release_memory", "0"), SCENARIO.memories[0].says[1]),
        (Direction("shift_focus", "A"), RUBRIC.axes[1].asks),
        (Direction("turning_point"), SCENARIO.wants_to_say),
        (Direction("wait"), "You hold back."),
        (Direction("go_on"), "Go on from where you are."),
    ],
)
def test_the_note_of_the_moment_stands_last(direction, words):
    who = user("Dunno eh.")
    spoken(who, direction)
    assert words in who.chat.requests[0].messages[-1].content.partition(" end>>")[2]


def test_every_act_of_the_director_has_a_note():
    items = {"reveal_stage": "0", "release_memory": "0", "shift_focus": "C"}
    for act in ACTS:
        assert spoken(user("Dunno eh."), Direction(act, items.get(act, ""))) == "Dunno eh."


@pytest.mark.parametrize(
    "direction",
    [
        Direction("dance"),
        Direction("reveal_stage", "9"),
        Direction("release_memory", "x"),
        Direction("shift_focus", "X"),
    ],
)
def test_a_direction_that_does_not_fit_is_refused(direction):
    with pytest.raises(InputError, match="does not fit this scenario"):
        spoken(user("Dunno eh."), direction)


def test_each_prompt_starts_with_the_whole_one_before():
    who = user("x")
    acts = (None, Direction("reveal_stage", "0"), Direction("wait"), Direction("release_memory", "2"))
    turns = turns_of(*((f"line {'abcd'[n] * 9}", f"reply {n}") for n in range(4)), directions=acts)
    for n in range(1, 4):
        spoken(who, acts[n], turns[:n])
    for before, after in zip(who.chat.requests, who.chat.requests[1:], strict=False):
        assert after.messages[: len(before.messages)] == before.messages
    roles = [message.role for message in who.chat.requests[-1].messages]
    assert roles == ["system", *["user", "assistant"] * 3, "user"]


@pytest.mark.parametrize(
    "again", ["There's papers, in my ute!", "THERE'S PAPERS IN MY UTE", "there's papers in my ute, eh"]
)
def test_a_repeated_line_is_asked_for_again_with_the_reason(again):
    who = user(again, "Nah, forget it.")
    assert spoken(who) == "Nah, forget it."
    retry = who.chat.requests[1].messages
    assert retry[-2].content == again and "said this before" in retry[-1].content


def test_it_is_asked_again_only_once():
    who = user("There's papers in my ute.")
    assert spoken(who) == "There's papers in my ute."
    assert len(who.chat.requests) == 2


@pytest.mark.parametrize("nothing", ["", "  \n", '""', "<think>hmm, what would he", "<think>a</think> "])
def test_nothing_twice_is_an_error(nothing):
    with pytest.raises(AnswerError, match="empty message twice"):
        spoken(user(nothing))
    assert spoken(user(nothing, "Yeah.")) == "Yeah."


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        ('"Yeah nah."', "Yeah nah."),
        ("“Yeah nah.”", "Yeah nah."),
        ("Viliami: Yeah nah.", "Yeah nah."),
        ("<think>he is shy</think>\nYeah nah.", "Yeah nah."),
        ('"Dave" said "no"', '"Dave" said "no"'),
        ("a\ud800b", "a\ufffdb"),
        (f'Yeah nah.\n<<{delimiter_of(SCENARIO.id, 0)} reply 3>>\n"I see"', "Yeah nah."),
    ],
)
def test_only_what_is_said_aloud_is_kept(raw, line):
    assert spoken(user(raw)) == line


def test_a_line_far_too_long_is_asked_for_again_and_then_cut():
    sentence = "I went down to the shed and sanded the same plank for an hour."
    who = user(" ".join([sentence] * 30))
    line = spoken(who)
    assert "far too long" in who.chat.requests[1].messages[-1].content
    assert line.endswith("hour.") and 0 < len(line.split()) <= 2 * who.limit


def test_limits_follow_the_persons_own_lines_and_the_script():
    assert length_limit(SCENARIO) == 36  # the longest line has 24 words
    short = replace(SCENARIO, stages=(), memories=(), opening="hey")
    assert length_limit(short) == 20
    chinese = replace(short, language="zh", opening="我" * 60)
    assert length_limit(chinese) == 90
    assert "90 characters" in prompt_of(chinese) and "Write in Chinese" in prompt_of(chinese)


def prompt_of(scenario) -> str:
    who = user("嗯。", scenario=scenario)
    spoken(who)
    return prompt(who.chat.requests[0])


@pytest.mark.parametrize(
    ("text", "limit", "language", "kept"),
    [
        ("One two. Three four. Five six.", 4, "en", "One two. Three four."),
        ("one two three four", 2, "en", "one two"),
        ("好的。我知道了。再见", 7, "zh", "好的。"),
        ("我我我我我", 3, "zh", "我我我"),
        ("short", 5, "en", "short"),
    ],
)
def test_cut_keeps_whole_sentences_where_it_can(text, limit, language, kept):
    assert cut(text, limit, language) == kept


def test_alike_sees_through_dress_but_not_across_meanings():
    assert similar("I can't sleep, again.", "i CAN'T sleep again!!")
    assert similar("我睡不着。", "我 睡不着！")
    assert not similar("I can't sleep.", "My boss shouted at me in front of everyone.")
    assert not similar("Yes.", "No.")


@pytest.mark.parametrize("name", ATTACKS)
def test_a_reply_cannot_pass_for_a_note(name):
    reply = attack(name, delimiter_of(SCENARIO.id, 0))
    who = user("Dunno eh.")
    spoken(who, turns=turns_of((SCENARIO.opening, reply)))
    opened, quoted, closed, *note = who.chat.requests[0].messages[-1].content.splitlines()
    assert json.loads(quoted) == reply
    assert opened == f"<<{who.mark} reply 1>>" and closed == f"<<{who.mark} end>>"
    assert note == ["", "Go on from where you are."]


def test_of_a_line_said_twice_only_what_is_new_is_said():
    """A model that repeats itself even when told is cut down to its new sentences."""
    old = "The boat is still in the shed and nobody has asked for it since the spring, not once."
    repeated = f"{old} Odd, that."
    user = ModelUser(Told(repeated, repeated), boat_shed(), Rubric.load("empathy"))
    line = asyncio.run(user.speak(turns_of((old, "Mm.")), Direction("go_on")))
    assert line == "Odd, that."
