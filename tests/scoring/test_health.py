"""Simulated people, looked at without a model: every number from lines made by hand."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from mapo import Job, Rubric, Rules, play_all
from mapo.sandbox.domain import scripted_cast
from mapo.sandbox.faults import manners
from mapo.scenarios.scenario import Persona, Scenario, Stage
from mapo.scenarios.sets import load_scenarios
from mapo.scoring import findings as bounds
from mapo.scoring.findings import findings, warnings
from mapo.scoring.health import UserLines, health, health_of, mood_of
from mapo.types import AxisMarks, Dialogue, Direction, Ending, Mark, Reply, StopReason, Turn
from support.attacks import policies_of


def talk(*lines: str, moods=None, scenario="s", ending="timeout") -> UserLines:
    return UserLines(scenario, lines, moods or ["good"] * len(lines), ending)


@pytest.mark.parametrize(
    "line",
    [
        "How can I help you today?",
        "As an AI, I do not have feelings.",
        "I'm a language model, so...",
        "Is there anything else I can do?",
        "Thank you for sharing that with me.",
        "作为一个AI，我没有感情。",
        "有什么我可以帮您的吗？",
    ],
)
def test_lines_of_an_assistant(line):
    assert manners.speaks_as_assistant(line)


@pytest.mark.parametrize(
    "line",
    [
        "I asked my mother how I can help her.",
        "My assistant at work quit.",
        "You cannot help me.",
        "我不知道该怎么办。",
        "I'm sorry, I just can't.",
        "有什么用呢？",
    ],
)
def test_lines_of_a_person(line):
    assert not manners.speaks_as_assistant(line)


def test_warm_lines_and_lines_that_only_look_so():
    for line in (
        "Thanks, that helps.",
        "You're right.",
        "I feel a lot better now.",
        "谢谢你。",
        "心里好多了，嗯，舒服多了",
    ):
        assert manners.warm(line), line
    for line in (
        "No thanks.",
        "It doesn't help, thanks anyway.",
        "Thanks to my boss I lost it.",
        "You left right away.",
        "我没有觉得好多了",
    ):
        assert not manners.warm(line), line


def test_scripts():
    told = {
        "I do not know what to say": "latin",
        "我不知道该怎么说才好": "han",
        "我在 Instagram 上看到他的照片了": "han",
        "どうしたらいいのかわからない": "kana",
        "я не знаю что делать": "cyrillic",
        "나는 정말 잘 모르겠어요": "hangul",
        "لا أعرف ماذا أقول": "arabic",
        "OK.": "",
        "...!?": "",
    }
    assert {line: manners.script_of(line) for line in told} == told


def test_repeated_sentences():
    # three of four words and more; "I don't know" is short and free
    said = talk(
        "I lost my job on Monday. I don't know.",
        "I lost my job on Monday! I don't know.",
        "It was the third one.",
    )
    assert health_of([said]).repeated == 1 / 3
    assert health_of([talk("我上周丢了工作很难过。", "我上周丢了工作很难过！")]).repeated == 1 / 2
    assert health_of([talk("No.", "Yes.")]).repeated is None


def test_words_shared_with_people_of_other_scenarios():
    one = talk("we sat at the kitchen table again", scenario="a")  # runs of five: 3
    other = talk(
        "and we sat at the kitchen sink", scenario="b"
    )  # 3, of which "we sat at the kitchen" is shared
    sibling = talk("we sat at the kitchen table again", scenario="a")
    assert health_of([one, other]).shared == pytest.approx((1 / 3 + 1 / 3) / 2)
    assert health_of([one, sibling]).shared is None  # siblings tell the same story
    assert health_of([talk("no", scenario="a"), talk("no", scenario="b")]).shared is None


def test_another_language_than_the_openings():
    left = talk("I lost my job on Monday", "我不知道该怎么说才好", "ok", "It was the third one")
    assert health_of([left]).other_language == 1 / 2  # "ok" is of no language
    assert health_of([talk("...", "我不知道该怎么说才好")]).other_language is None


def test_warmth_after_replies_that_did_nothing():
    moods = ["harm", "nothing", "good", "mixed", ""]
    lines = ["start", "Thanks, that helps.", "It hurts.", "Thank you.", "Thank you.", "Thank you."]
    found = health_of([UserLines("s", lines, [*moods, "harm"], "timeout")])
    assert (found.warm_after_miss, found.misses, found.warm_after_good) == (1 / 2, 2, 1.0)
    assert found.unscored == 1 / 6
    assert health_of([talk("only one")]).warm_after_miss is None


def test_what_the_judge_made_of_a_reply():
    def form(*levels):
        return {str(i): AxisMarks(Mark(up), Mark(down)) for i, (up, down) in enumerate(levels)}

    told = {
        "good": ((1, 0), (0, 0)),
        "harm": ((0, -1), (0, 0)),
        "nothing": ((0, 0),),
        "mixed": ((1, 0), (0, -1)),
    }
    assert {name: mood_of(form(*levels)) for name, levels in told.items()} == {name: name for name in told}
    assert mood_of(None) == ""


# ---- dialogues

SCENARIO = Scenario(
    "s", Persona("Ann"), "work", "My boss shouted at me.",
    stages=(Stage(("It was about the invoice.",), ("invoice",)),
            Stage(("My boss had shouted before, in Lisbon.",), ("Lisbon", "boss"))),
)  # fmt: skip


def dialogue(*said: tuple[str, Direction | None], **kw) -> Dialogue:
    turns = tuple(
        Turn(line, Reply("hm"), {"C": AxisMarks(Mark(1), Mark(0))}, direction=act) for line, act in said
    )
    made = Dialogue("d", "s", "m", "empathy", "published", {}, (), turns, Ending(StopReason.TIMEOUT))
    return replace(made, **kw)


def test_lines_ahead_of_their_stage():
    first, second = Direction("reveal_stage", "0"), Direction("reveal_stage", "1")
    early = dialogue(
        ("My boss shouted at me.", None), ("He lost it in Lisbon.", first), ("In Lisbon, yes.", second)
    )
    known = {"s": SCENARIO}
    assert health([early], known).told_early == 1 / 2  # of two lines with something left to tell
    fine = dialogue(
        ("My boss shouted at me.", None), ("It was the invoice.", first), ("In Lisbon, yes.", second)
    )
    assert health([fine], known).told_early == 0.0 and health([fine]).told_early is None


WORDS = "My little brother left, and my sister. His daughter came, not his husband. 我哥哥走了。"


@pytest.mark.parametrize(
    "line",
    [
        "I'm 34 years old and I live alone.",
        "I mean, I am 34.",
        "My name is Peter, by the way.",
        "I don't have a brother.",
        "I never had any sister",
        "我今年34岁了。",
        "我的名字是王芳。",
        "我没有哥哥。",
    ],
)
def test_lines_against_the_persona(line):
    assert manners.contradicts(line, "Ann Lee", 52, WORDS)


@pytest.mark.parametrize(
    "line",
    [
        "I'm 52 years old.",
        "I'm 53.",  # a birthday
        "I'm 10 minutes late, and I'm 12 weeks behind.",
        "When I was 12 I ran away.",
        "My name is Annie.",
        "My name is on the door.",
        "I don't have a husband.",  # the one spoken of is another's
        "I have no brother any more.",
        "I don't have a brother who calls.",
        "我12岁那年搬了家。",
        "我没有女儿。",
    ],
)
def test_lines_that_only_look_so(line):
    assert not manners.contradicts(line, "Ann Lee", 52, WORDS)


def test_lines_against_the_persona_are_counted_where_it_is_known():
    person = replace(SCENARIO, persona=Persona("Ann", 52), eased=("I think of my sons.",))
    talked = dialogue(("My boss shouted at me.", None), ("I'm 23 years old.", None), ("I have no son.", None))
    assert health([talked], {"s": person}).off_persona == 2 / 3
    assert health([talked], {"s": SCENARIO}).off_persona == 0.0 and health([talked]).off_persona is None


def test_panels_without_a_member_are_counted():
    whole, torn = {"a": (1, 0), "b": (1, 0)}, {"a": (1, 0), "b": ()}
    one = dialogue(("x", None), ("y", None), ("z", None), ("w", None))
    turns = [
        replace(turn, panel=panel) for turn, panel in zip(one.turns, (whole, torn, torn, None), strict=True)
    ]
    assert health([replace(one, turns=tuple(turns))]).incomplete == 2 / 3
    assert health([one]).incomplete is None


def test_broken_dialogues_are_left_out_and_scripted_ones_known():
    fine = dialogue(("My boss shouted at me.", None), cast={"user": "scripted"})
    broken = dialogue(("Never mind.", None), error="gone", ending=Ending(StopReason.BROKEN))
    found = health([fine, broken, dialogue()])
    assert (found.dialogues, found.lines, found.scripted, found.endings) == (1, 1, True, {"timeout": 1})
    assert not health([fine, dialogue(("Oh no.", None), ending=None)]).scripted
    assert health([]).lines == 0 and warnings(health([]).as_json()) == []


# ---- bounds


def told(**kw) -> dict:
    return {"lines": 100, "misses": 100, "endings": {"success": 30, "failure": 30}, **kw}


@pytest.mark.parametrize("key", [*bounds.BOUNDS])
def test_every_crossed_bound_gives_a_warning(key):
    name, bound, words = bounds.BOUNDS[key]
    assert warnings(told(**{key: bound})) == []
    [said] = warnings(told(**{key: bound + 0.2}))
    assert said.startswith(words) and f"usual maximum {bound:.0%}" in said
    assert warnings(told(**{key: bound + 0.2}, lines=3, misses=3)) == []  # too few to say
    assert name in [finding.name for finding in findings(told())]


def test_bounds_of_plain_code_and_of_endings():
    assert warnings(told(repeated=0.46)) and not warnings(told(repeated=0.46, scripted=True))
    [said] = warnings(told(endings={"failure": 39, "success": 1}))
    assert "failure" in said and "98%" in said
    [said] = warnings(told(warm_after_miss=0.5, warm_after_good=0.6))
    assert "60% after a good reply" in said


def test_numbers_of_a_file_that_anybody_wrote():
    odd = {"lines": "x", "repeated": float("nan"), "shared": True, "misses": -4, "as_assistant": 10**400}
    odd |= {"warm_after_miss": [1], "endings": {"<b>": 50, "broken": 9, "success": "x"}}
    assert {f.value for f in findings(odd)} == {None} and warnings(odd) == []
    json.dumps([f.value for f in findings({})])


def test_the_scripted_world_is_healthy():
    """Whatever the policy: the bounds hold for plain code, but for endings, which are the policy's."""
    scenarios = load_scenarios("builtin:validation", "empathy")[:12]
    known = {s.id: s for s in scenarios}
    jobs = [Job(s, s.id, seed=1) for s in scenarios]
    for name in ("honest", "comforter", "injector"):
        played = asyncio.run(
            play_all(
                jobs,
                policies_of("empathy")[name],
                scripted_cast("empathy"),
                Rules(Rubric.load("empathy")),
            )
        )
        found = health(played, known)
        assert found.scripted and found.told_early == 0.0 and found.as_assistant == 0.0
        assert [w for w in warnings(found.as_json()) if "same ending" not in w] == []


def test_published_people_are_healthy(two_models):
    """Of two models' dialogues, played by a strong model as user (30 each)."""
    for model in two_models.iterdir():
        talks = []
        for file in sorted(model.glob("*_result.json")):
            data = json.loads(file.read_bytes())
            lines = [said["content"] for said in data["history"] if said["role"] == "actor"]
            talks.append(UserLines(data["script_id"], lines, ["good"] * len(lines), "timeout"))
        found = health_of(talks)
        assert found.dialogues == 30 and found.lines > 600
        assert [w for w in warnings(found.as_json()) if "same ending" not in w] == []


def test_a_share_just_above_its_bound_is_shown_with_more_digits():
    [warning] = warnings(told(told_early=0.053))
    assert warning == "users reveal a stage early: 5.3%, usual maximum 5%"


def test_the_turn_limit_is_not_called_a_timeout():
    [warning] = warnings(told(endings={"timeout": 40}))
    assert "(turn limit)" in warning


def test_few_lines_and_few_dialogues_are_not_reported():
    few = findings(told(lines=19, misses=19, endings={"success": 19}))
    assert [f.value for f in few] == [None] * len(few)
