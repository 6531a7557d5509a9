"""Judge and director whose answers are read out: levels, probabilities, acts, and how they are recorded."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from mapo.errors import InputError
from mapo.measure.calibration import Calibration
from mapo.measure.potential import Trajectory
from mapo.measure.rubric import Rubric
from mapo.models.chat import DEFAULT_SAMPLING
from mapo.records import decode_dialogue, encode_dialogue
from mapo.sandbox.cast import Cast, Job, flat_levels, prompts_id, read_probabilities
from mapo.sandbox.intent_user import IntentPrompts
from mapo.sandbox.model_cast import SHIPPED_PROMPTS, model_cast
from mapo.sandbox.panel import PanelJudge, model_judge, with_judges
from mapo.sandbox.reading_roles import ReadDirector, ReadJudge, reader_of, with_readout
from mapo.sandbox.rollout import Rules, play
from mapo.scoring.result import recompute
from mapo.types import Direction
from support.readers import DeadReader, FixedReader
from support.roles import Told, boat_shed, turn_form, turns_of

EMPATHY = Rubric.load("empathy")
TURNS = turns_of(("Hello.", "Hi."), ("It rains.", "Tell me more."))
PATH = Trajectory(EMPATHY, (-9.0, -9.0, -9.0), min_turns=2, max_turns=9)
BOTH = with_readout(SHIPPED_PROMPTS, ("judge", "director"))


def one_up(place, _) -> int:
    """Level 1 for progress, 0 for regression and indicators, the first act."""
    return int("progress" in place.label)


def judge(reader, **settings) -> ReadJudge:
    return ReadJudge(reader, boat_shed(), EMPATHY, "d", **settings)


def director(choose) -> ReadDirector:
    return ReadDirector(FixedReader(choose), boat_shed(), EMPATHY, "d")


def played(steps="likely", prompts=BOTH, reader=None):
    reader = reader or FixedReader(one_up)
    casting = model_cast(Told("Well, so it is."), reader, reader, EMPATHY, prompts=prompts)
    job = Job(boat_shed(), "d")
    rules = Rules(EMPATHY, min_turns=3, max_turns=3, steps=steps)
    return asyncio.run(play(job, Told("Mm."), casting(job), rules))


def test_levels_are_read_out_with_their_probabilities():
    one = judge(FixedReader(one_up))
    levels = asyncio.run(one.judge(TURNS))
    assert flat_levels(levels, EMPATHY) == (1, 0, 1, 0, 1, 0)
    assert one.probabilities[:2] == ((0.1, 0.8, 0.1), (0.8, 0.1, 0.1))


def test_all_judgements_of_a_dialogue_share_a_session():
    reader = FixedReader(one_up)
    one = judge(reader)
    asyncio.run(one.judge(TURNS[:1]))
    asyncio.run(one.judge(TURNS))
    assert [request.session for request in reader.requests] == ["d/judge"] * 2
    first, second = (request.messages for request in reader.requests)
    assert second[: len(first)] == first


def test_the_calibration_decides_the_levels():
    cautious = Calibration((3.0,) * 6, ((1.5, 1.9),) * 6)
    one = judge(FixedReader(one_up), calibration=cautious)
    assert flat_levels(asyncio.run(one.judge(TURNS)), EMPATHY) == (0,) * 6
    assert max(one.probabilities[0]) < 0.6


def test_the_start_form_is_read_out():
    levels = asyncio.run(judge(FixedReader(lambda place, _: 2)).start())
    assert {mark.level for mark in levels.values()} == {2}


def test_a_trained_judge_does_not_guess_start_levels():
    trained = judge(FixedReader(one_up), calibration=Calibration((2.0,) * 6))
    with pytest.raises(InputError, match="cannot fill in start forms"):
        asyncio.run(trained.start())


def test_there_must_be_a_turn_to_judge():
    with pytest.raises(InputError, match="no turn to judge"):
        asyncio.run(judge(FixedReader(one_up)).judge([]))


def test_the_director_takes_the_most_likely_act():
    letter_b = director(lambda place, _: place.options.index("B"))
    assert asyncio.run(letter_b.direct(TURNS, PATH)) == Direction("wait")


def test_revealing_a_stage_means_the_next_one():
    turns = [*TURNS, replace(TURNS[-1], direction=Direction("reveal_stage", "0"))]
    letter_c = director(lambda place, _: place.options.index("C"))
    assert asyncio.run(letter_c.direct(turns, PATH)) == Direction("reveal_stage", "1")


def test_the_director_is_not_offered_what_the_rules_forbid():
    early = Trajectory(EMPATHY, (-9.0, -9.0, -9.0), min_turns=5, max_turns=9)
    one = director(lambda place, _: 0)
    asyncio.run(one.direct(TURNS, early))
    assert "E" not in one.reader.requests[0].places[0].options


def test_a_director_that_fails_lets_the_person_go_on():
    one = ReadDirector(DeadReader(), boat_shed(), EMPATHY, "d")
    direction = asyncio.run(one.direct(TURNS, PATH))
    assert direction.act == "go_on"
    assert "the model is gone" in direction.reason


def test_a_dialogue_with_read_roles_is_recorded_with_probabilities():
    dialogue = played()
    assert dialogue.error is None
    assert dialogue.prompts == prompts_id(BOTH, "empathy")
    assert all(len(turn.probabilities) == 6 for turn in dialogue.turns)
    assert dialogue.turns[0].state.step == (1.0, 1.0, 1.0)
    assert dialogue.steps == ""


def test_a_judge_that_fails_leaves_the_turn_unscored_and_without_probabilities():
    prompts = with_readout(SHIPPED_PROMPTS, ("judge",))
    job = Job(boat_shed(), "d", start_levels={i.key: 1 for i in EMPATHY.indicators})
    casting = model_cast(Told("Well, yes."), Told('{"act": "go_on"}'), DeadReader(), EMPATHY, prompts=prompts)
    dialogue = asyncio.run(play(job, Told("Mm."), casting(job), Rules(EMPATHY, max_turns=1)))
    assert dialogue.turns[0].unscored == "the model is gone"
    assert dialogue.turns[0].probabilities is None


def test_expected_steps_are_expectations_of_the_levels_values():
    """C: 0.1 * 0 + 0.8 * 1 + 0.1 * 3 = 1.1 up and 0.1 * -2 + 0.1 * -4 = -0.6 down; A, P: down -0.7."""
    dialogue = played("expected")
    assert dialogue.steps == "expected"
    assert dialogue.turns[0].state.step == pytest.approx((0.5, 0.4, 0.4))


@pytest.mark.parametrize("steps", ["likely", "expected"])
def test_a_record_replays_to_the_same_states_and_rewards(steps, tmp_path):
    dialogue = decode_dialogue(encode_dialogue(played(steps)))
    assert recompute(dialogue, tmp_path, None, EMPATHY, "d").differences == []


def test_probabilities_that_are_none_are_refused_on_replay(tmp_path):
    dialogue = played("expected")
    bad = replace(dialogue.turns[1], probabilities=((0.9, 0.9, 0.1),) * 6)
    forged = replace(dialogue, turns=(dialogue.turns[0], bad, dialogue.turns[2]))
    with pytest.raises(InputError, match="turn 2.*not the probabilities of 3 levels"):
        recompute(forged, tmp_path, None, EMPATHY, "d")


def test_a_panel_averages_its_members_probabilities():
    members = {
        "sure": judge(FixedReader(one_up, confidence=1 - 1e-9)),
        "unsure": judge(FixedReader(one_up, confidence=0.6)),
    }
    panel = PanelJudge(members)
    asyncio.run(panel.judge(TURNS))
    assert read_probabilities(panel)[0] == (0.1, 0.8, 0.1)


def test_in_a_panel_the_level_of_a_member_that_writes_is_certain():
    reading = with_readout(SHIPPED_PROMPTS, ("judge",))
    reader, writer = FixedReader(one_up), Told(turn_form(EMPATHY, 2))
    members = [
        model_judge(reader, EMPATHY, name="reads", prompts=reading),
        model_judge(writer, EMPATHY, name="writes"),
    ]
    casting = with_judges(lambda _: Cast(None, None, None, {}), members)
    panel = casting(Job(boat_shed(), "d")).judge
    asyncio.run(panel.judge(TURNS))
    assert read_probabilities(panel)[0] == (0.05, 0.4, 0.55)


def test_a_panel_of_judges_that_write_has_no_probabilities():
    writers = {
        name: SHIPPED_PROMPTS.judge(
            Told(turn_form(EMPATHY, 1)), Job(boat_shed(), "d"), EMPATHY, DEFAULT_SAMPLING, member=name
        )
        for name in "ab"
    }
    panel = PanelJudge(writers)
    asyncio.run(panel.judge(TURNS))
    assert read_probabilities(panel) is None


def test_readout_is_part_of_the_prompts_name_and_fingerprint():
    judged = with_readout(SHIPPED_PROMPTS, ("judge",))
    assert judged.name == "mapo+readout"
    assert len({p.fingerprint("empathy") for p in (judged, BOTH, SHIPPED_PROMPTS)}) == 3


def test_prompts_without_a_form_to_read_are_refused():
    class Foreign:
        name = "empa"

    with pytest.raises(InputError, match="'empa' cannot be read out"):
        with_readout(Foreign(), ("judge",))


def test_a_user_cannot_be_read_out():
    with pytest.raises(InputError, match="the user cannot be read out"):
        with_readout(SHIPPED_PROMPTS, ("user",))


def test_without_roles_the_prompts_stay_as_they_are():
    assert with_readout(SHIPPED_PROMPTS, ()) is SHIPPED_PROMPTS


def test_users_with_an_intent_keep_theirs():
    prompts = with_readout(IntentPrompts(SHIPPED_PROMPTS), ("judge",))
    assert prompts.name == "mapo+readout+intent"


def test_roles_that_are_not_read_out_write_as_before():
    prompts = with_readout(SHIPPED_PROMPTS, ("director",))
    dialogue = played(prompts=with_readout(SHIPPED_PROMPTS, ("judge",)), reader=Both())
    assert dialogue.turns[1].direction == Direction("wait")
    job = Job(boat_shed(), "d")
    writer = prompts.judge(Told(turn_form(EMPATHY, 1)), job, EMPATHY, DEFAULT_SAMPLING)
    assert flat_levels(asyncio.run(writer.judge(TURNS)), EMPATHY) == (1, 0, 1, 0, 1, 0)


class Both(FixedReader):
    """Reads levels and writes the director's form."""

    def __init__(self) -> None:
        super().__init__(one_up)
        self.reply = Told('{"act": "wait", "item": "", "reason": ""}').reply


def test_a_model_behind_an_endpoint_cannot_be_read_out():
    with pytest.raises(InputError, match="cannot be read out"):
        reader_of(Told("hello"))


def test_prompts_of_the_policy_are_unchanged():
    assert BOTH.policy_system(boat_shed()) == SHIPPED_PROMPTS.policy_system(boat_shed())
    policy = object()
    assert BOTH.policy(policy) is policy


@pytest.mark.slow
def test_a_tiny_model_plays_judge_and_director_through_the_sampler():
    pytest.importorskip("torch")
    from support.sampled import sampler

    made = sampler(slots=4, context=8192)
    scenario = replace(boat_shed(), stages=(), memories=())

    async def go():
        async with made:
            role = made.role("judge")
            one = ReadJudge(role, scenario, EMPATHY, "d")
            levels = [await one.judge(TURNS[: n + 1]) for n in range(2)]
            act = await ReadDirector(role, scenario, EMPATHY, "d").direct(TURNS, PATH)
            return one, levels, act

    one, levels, act = asyncio.run(go())
    assert [sum(place) for place in one.probabilities] == pytest.approx([1.0] * 6, abs=1e-3)
    assert all(EMPATHY.step(form) for form in levels)
    assert act.reason == ""
