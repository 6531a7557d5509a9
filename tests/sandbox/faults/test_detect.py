"""Faults of turns and the roles they belong to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mapo import Rubric
from mapo.sandbox.director import DIRECTOR_FAILED
from mapo.sandbox.faults.detect import FaultDetector, role_of
from mapo.types import AxisMarks, Direction, Mark, Reply, Turn
from support.builders import marks
from support.roles import boat_shed

RUBRIC = Rubric.load("empathy")
LEVELS = marks(RUBRIC, 0)
LINE = "I sold the boat shed that my father built with his own hands"
OTHER = "Nobody in the office ever asks me how the winter went for us"


def turn(user: str = LINE, reply: str = "What was it like?", **fields: object) -> Turn:
    return Turn(user, Reply(reply), **{"levels": LEVELS, **fields})


def faults(*turns: Turn, **options: object) -> tuple[str, ...]:
    """Return the faults of the last turn."""
    detector = FaultDetector(**options)
    return [detector.faults(each) for each in turns][-1]


def test_an_ordinary_turn_has_no_faults():
    assert faults(turn(), turn(OTHER, "And then?")) == ()


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("（错误：API调用失败 - Unknown）", "failed call"),
        ("Yes.<|im_end|>", "unreadable"),
        ("I \ufffd\ufffd", "unreadable"),
        ("go home " * 12, "unreadable"),
        ("{}[]=>>&&||{}##;;--{}[]", "unreadable"),
        ("I wanted to tell him because", "cut off"),
        ("And then my brother,", "cut off"),
        ("How can I help you today?", "speaks as an assistant"),
        ("这件事我已经想了很久很久了", "another language"),
    ],
)
def test_a_faulty_line_is_the_users_fault(line, fault):
    assert faults(turn(), turn(line, "And then?")) == (f"user: {fault}",)


@pytest.mark.parametrize("line", ["...", "!!!!!!!!!!!!!!!!!!!!!!!!!!", "no no no", "I don't know"])
def test_what_people_write_is_no_fault(line):
    assert faults(turn("hm"), turn(line, "Hm?"), turn(line, "And now?")) == ()


def test_a_line_that_says_most_of_an_earlier_one_repeats_it():
    again = f"As I said, {LINE}"
    assert faults(turn(), turn(OTHER, "Oh."), turn(again, "I see.")) == ("user: repeats itself",)


def test_a_short_line_repeats_only_its_equal():
    assert faults(turn("We never talked about it"), turn("we never talked, about it!", "Hm.")) == (
        "user: repeats itself",
    )
    assert faults(turn("We never talked about it"), turn("We never talked about him", "Hm.")) == ()


def test_a_line_that_copies_an_earlier_reply():
    reply = "It sounds as if the shed was the last place that was truly yours"
    assert faults(turn(reply=reply), turn(reply, "Hm.")) == ("user: copies the reply",)


def test_a_line_against_the_persona_or_before_its_stage():
    scenario = boat_shed()
    age = scenario.persona.age + 20
    assert faults(turn(f"I am {age} years old."), scenario=scenario) == ("user: contradicts the persona",)
    detail = next(about for stage in scenario.stages[1:] for about in stage.about)
    early = faults(turn(f"It was about {detail}."), scenario=scenario)
    assert early == ("user: tells a later stage",)
    told = [turn(str(n), direction=Direction("reveal_stage", str(n))) for n in range(len(scenario.stages))]
    assert faults(*told, turn(f"It was about {detail}.", "Hm."), scenario=scenario) == ()


def test_a_failed_act_is_the_directors_fault():
    direction = Direction("go_on", reason=f"{DIRECTOR_FAILED}timeout")
    assert faults(turn(direction=direction)) == ("director: failed",)


def test_a_missing_judgement_is_the_judges_fault():
    assert faults(turn(levels=None, unscored="timeout")) == ("judge: failed",)


def test_evidence_that_is_not_in_the_reply_is_the_judges_fault():
    def judged(evidence: str, level: int = 1) -> Turn:
        mark = AxisMarks(Mark(level, evidence), Mark(0))
        return turn(reply="That sounds hard.", levels={**LEVELS, "C": mark})

    assert faults(judged("something else")) == ("judge: evidence is not in the reply",)
    assert faults(judged("something else", level=0)) == ()
    assert faults(judged("sounds HARD")) == ()
    assert faults(judged("")) == ()


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (Reply(""), "empty"),
        (Reply("（错误：API调用失败 - Request timed out.）"), "failed call"),
        (Reply("a b c d e " * 8), "unreadable"),
        (Reply("I see that it", finish="length"), "cut off"),
    ],
)
def test_a_broken_reply_is_the_policys_fault(reply, fault):
    assert faults(replace(turn(), reply=reply)) == (f"policy: {fault}",)


def test_a_policy_that_repeats_itself():
    reply = "It sounds as if the shed was the last place that was truly yours"
    assert faults(turn(reply=reply), turn(OTHER, f"{reply}.")) == ("policy: repeats itself",)


def test_scripted_roles_have_no_faults():
    cast = {"user": "scripted", "director": "scripted", "judge": "scripted"}
    assert faults(turn(levels=None), turn(LINE, "Hm.", levels=None), cast=cast) == ()
    assert faults(turn(), turn(LINE, "", levels=None), cast=cast) == ("policy: empty",)


def test_the_role_of_a_fault():
    assert role_of("user: empty") == "user"
    assert role_of("<b>: empty") == ""
