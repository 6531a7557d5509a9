"""The director: functions as tools or as a form, what may happen decided by the record, never fatal."""

from __future__ import annotations

import asyncio
import json

import pytest

from mapo.errors import EndpointError, InputError
from mapo.measure.potential import Trajectory
from mapo.measure.rubric import Rubric
from mapo.sandbox.director import ACTS, FORM, ModelDirector
from mapo.sandbox.transcript import delimiter_of
from mapo.types import Direction
from support.builders import marks
from support.roles import ATTACKS, Told, attack, boat_shed, calls, prompt, turns_of

RUBRIC = Rubric.load("empathy")
SCENARIO = boat_shed()
TURNS = turns_of(("hey", "hello"), ("well", "go on"))


def path(min_turns: int = 12) -> Trajectory:
    return Trajectory(RUBRIC, RUBRIC.start(SCENARIO.start_levels), min_turns=min_turns)


def director(*answers) -> ModelDirector:
    return ModelDirector(Told(*answers), SCENARIO, RUBRIC)


def directed(who: ModelDirector, turns=TURNS, min_turns: int = 12) -> Direction:
    return asyncio.run(who.direct(turns, path(min_turns)))


def form(act: str, item: object = "", reason: str = "because") -> str:
    return json.dumps({"act": act, "item": item, "reason": reason})


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (("reveal_stage", '{"stage": 0, "reason": "earned"}'), Direction("reveal_stage", "0", "earned")),
        (("reveal_stage", "{}"), Direction("reveal_stage", "0")),
        (("release_memory", '{"memory": 2, "reason": "fits"}'), Direction("release_memory", "2", "fits")),
        (("shift_focus", '{"axis": "A", "reason": "r"}'), Direction("shift_focus", "A", "r")),
        (("turning_point", '{"reason": "r"}'), Direction("turning_point", "", "r")),
        (("wait", ""), Direction("wait")),
        (("go_on", '{"reason": "r"}'), Direction("go_on", "", "r")),
    ],
)
def test_tool_calls_become_directions(call, expected):
    who = director(calls(call))
    assert directed(who) == expected
    assert [tool.name for tool in who.chat.requests[0].tools] == list(ACTS)


@pytest.mark.parametrize(
    "text",
    [form("release_memory", "1"), form("release_memory", 1), f"```json\n{form('release_memory', '1')}\n```"],
)
def test_without_a_tool_call_the_text_is_read_as_the_form(text):
    who = director(text)
    assert directed(who) == Direction("release_memory", "1", "because")
    assert len(who.chat.requests) == 1


def test_prose_leads_to_the_form_and_tools_are_not_tried_again():
    who = director("I would wait here.", form("wait"), form("go_on"))
    assert directed(who).act == "wait"
    assert directed(who).act == "go_on"
    assert [(bool(r.tools), r.schema) for r in who.chat.requests] == [
        (True, None),
        (False, FORM),
        (False, FORM),
    ]


def test_an_endpoint_that_refuses_tools_is_asked_for_the_form():
    who = director(EndpointError("400: tools are not enabled"), form("wait"))
    assert directed(who).act == "wait"


def test_the_first_allowed_of_several_calls_counts():
    who = director(calls(("release_memory", '{"memory": 77}'), ("wait", "{}"), ("go_on", "{}")))
    assert directed(who).act == "wait"


@pytest.mark.parametrize(
    "call",
    [
        ("explode", "{}"),
        ("reveal_stage", '{"stage": 1}'),
        ("reveal_stage", '{"stage": "first"}'),
        ("release_memory", '{"memory": -1}'),
        ("release_memory", '{"memory": 4}'),
        ("release_memory", '{"memory": [0]}'),
        ("release_memory", "{}"),
        ("shift_focus", '{"axis": "X"}'),
        ("wait", '{"reason": 3}'),
        ("wait", "[]"),
        ("wait", "not json"),
        ("end", "{}"),
    ],
)
def test_what_is_unknown_or_not_open_is_refused_and_the_model_told_so(call):
    who = director(calls(call), form("go_on"))
    assert directed(who).act == "go_on"
    assert "was refused" in prompt(who.chat.requests[1])


def test_nothing_is_released_twice_and_stages_come_in_order():
    who = director(form("reveal_stage", "0"))
    assert directed(who).item == "0"
    assert directed(who).act == "go_on"  # told already: refused, asked again, given up
    who.chat.answers = [form("reveal_stage", "2")]
    assert directed(who).act == "go_on"
    who.chat.answers = [form("reveal_stage", "1")]
    assert directed(who).item == "1"
    who.chat.answers = [form("release_memory", "3")]
    assert [directed(who).act, directed(who).act] == ["release_memory", "go_on"]
    who.chat.answers = [form("turning_point")]
    assert [directed(who).act, directed(who).act] == ["turning_point", "go_on"]
    last = prompt(who.chat.requests[-1])
    assert (
        "Stages told: 0, 1; next stage: 2. Memories told: 3; left: 0, 1, 2. Turning point: has been." in last
    )


def test_when_all_is_told_nothing_is_open():
    who = director(form("reveal_stage"))
    stages = [directed(who).item for _ in SCENARIO.stages]
    assert stages == ["0", "1", "2", "3", "4"]
    with pytest.raises(InputError, match="None is left"):
        who.allowed({"act": "reveal_stage"}, 3, 12)


@pytest.mark.parametrize(("min_turns", "act"), [(3, "go_on"), (2, "end")])
def test_the_end_waits_for_the_least_number_of_turns(min_turns, act):
    assert directed(director(form("end")), min_turns=min_turns).act == act


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "no",
        "{}",
        form("dance"),
        '{"act": "wait", "mood": 1}',
        '{"act": ["wait"]}',
        EndpointError("down"),
        "[1]",
    ],
)
def test_a_failing_director_lets_the_person_go_on_and_says_why(answer):
    who = director(answer)
    direction = directed(who)
    assert (direction.act, direction.item) == ("go_on", "")
    assert direction.reason.startswith("the director failed: ") and len(direction.reason) <= 300
    assert (who.stages_revealed, who.memories_released, who.turning_point_used) == (0, [], False)


def test_the_prompt_holds_acts_states_and_the_whole_story_and_only_grows():
    track = path()
    turns = turns_of(("hey", "hello"), ("well", "go on"), directions=(None, Direction("release_memory", "2")))
    judged = [
        type(t)(t.user, t.reply, levels := marks(RUBRIC, 1), track.judge(levels), direction=t.direction)
        for t in turns
    ]
    who = director(form("wait"))
    asyncio.run(who.direct(judged[:1], track))
    asyncio.run(who.direct(judged, track))
    first, second = map(prompt, who.chat.requests)
    assert "your act before it: release_memory 2" in second
    assert (
        "state after it: " + ", ".join(f"{k} {x + 1:g}" for k, x in zip("CAP", track.start, strict=True))
        in first
    )
    assert SCENARIO.stages[4].says[1] in first and SCENARIO.wants_to_say in first
    grown = first[: first.index("1 turns have been played")].rstrip()
    assert second.startswith(grown) and who.chat.requests[0].tools == who.chat.requests[1].tools


@pytest.mark.parametrize("name", ATTACKS)
def test_a_reply_cannot_speak_to_the_director(name):
    reply = attack(name, delimiter_of(SCENARIO.id, 0))
    who, plain = director(form("wait")), director(form("wait"))
    directed(who, turns_of(("hey", reply)))
    directed(plain, turns_of(("hey", "PLAIN")))
    seen, expected = prompt(who.chat.requests[0]).splitlines(), prompt(plain.chat.requests[0]).splitlines()
    changed = [a for a, b in zip(seen, expected, strict=True) if a != b]
    assert len(changed) == 1 and json.loads(changed[0].removeprefix("reply: ")) == reply


def test_a_rubric_of_other_axes_directs_as_well():
    tutoring = Rubric.load("tutoring")
    who = ModelDirector(Told(form("shift_focus", "G")), SCENARIO, tutoring)
    track = Trajectory(tutoring, (-4.0,) * 4)
    assert asyncio.run(who.direct(TURNS, track)) == Direction("shift_focus", "G", "because")
