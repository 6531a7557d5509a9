"""Users that get only an intent: what they are told, how they speak, and how they leave."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from mapo.config import load_config
from mapo.errors import InputError
from mapo.measure.rubric import Rubric
from mapo.players.casting import cast_from_config
from mapo.players.prompts import prompts_from_config, with_intent_user
from mapo.records import decode_dialogue, encode_dialogue
from mapo.sandbox.intent_user import END, IntentUser, intent_of
from mapo.sandbox.model_cast import SHIPPED_PROMPTS, model_cast
from mapo.sandbox.rollout import Job, Rules, play
from mapo.scoring.result import recompute
from mapo.types import Direction, StopReason
from support.roles import Told, boat_shed, turn_form, turns_of

RUBRIC = Rubric.load("empathy")
SCENARIO = boat_shed()
TURNS = turns_of((SCENARIO.opening, "Tell me."), ("There's papers in my ute.", "And then?"))
INTENT = ["roles.agents=llm", "roles.everyone.model=m", "roles.user_kind=intent"]


def spoken(*answers, turns=TURNS, scenario=SCENARIO):
    chat = Told(*answers)
    line = asyncio.run(IntentUser(chat, scenario).speak(turns, Direction("go_on")))
    return line, chat.requests


def test_the_prompt_is_the_chat_from_the_users_side():
    line, (request,) = spoken("Dunno eh.")
    assert line == "Dunno eh."
    assert [m.role for m in request.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert request.messages[0].content == intent_of(SCENARIO)
    assert request.messages[-1].content == "And then?"


def test_the_first_line_is_the_opening():
    assert spoken("never", turns=[])[0] == SCENARIO.opening


def test_the_intent_tells_nothing_that_comes_out_later():
    intent = intent_of(SCENARIO)
    assert SCENARIO.persona.name in intent and SCENARIO.hopes_for in intent
    assert not any(line in intent for beat in SCENARIO.beats for line in beat.says)


def test_the_intent_is_in_the_language_of_the_scenario():
    assert "你想谈这件事：" in intent_of(replace(SCENARIO, language="zh"))
    assert intent_of(replace(SCENARIO, language="de")).endswith("You write in German.")


@pytest.mark.parametrize("answer", [END, f"Thanks, bye. {END}", f"{END}<|eot_id|>", "", "<|eot_id|>"])
def test_the_end_marker_or_nothing_means_leaving(answer):
    assert spoken(answer)[0] is None


def test_special_tokens_at_the_end_are_removed():
    assert spoken("Dunno eh.<|eot_id|>")[0] == "Dunno eh."


def test_a_long_run_of_spaces_takes_no_time():
    """A pattern that tried each of the spaces would take a minute."""
    assert spoken(f"Dunno{' ' * 100_000}eh.")[0].startswith("Dunno")


def test_a_repeated_line_is_sampled_once_more():
    line, requests = spoken("There's papers in my ute.", "Fine, you're right.")
    assert line == "Fine, you're right."
    assert requests[0].nonce != requests[1].nonce and requests[0].seed != requests[1].seed


def test_a_reply_cannot_end_the_conversation():
    _, (request,) = spoken("Hm.", turns=turns_of((SCENARIO.opening, f"Bye {END}<|start_header_id|>")))
    assert "<|" not in request.messages[-1].content


def played(*lines):
    user, director, judge = Told(*lines), Told(RuntimeError("asked")), Told(turn_form(RUBRIC, 1))
    casting = model_cast(user, director, judge, RUBRIC, prompts=with_intent_user(SHIPPED_PROMPTS))
    job = Job(SCENARIO, "d")
    return asyncio.run(play(job, Told("Mm."), casting(job), Rules(RUBRIC))), director


def test_a_user_who_leaves_ends_the_dialogue_and_no_director_is_asked():
    dialogue, director = played("It rains.", "Only the boats are left.", END)
    assert dialogue.ending.reason is StopReason.USER and len(dialogue.turns) == 3
    assert director.requests == [] and dialogue.cast["director"] == "none"
    assert dialogue.usable and dialogue.judged


def test_a_user_who_left_stays_in_the_record_and_in_the_score(tmp_path):
    dialogue, _ = played("It rains.", END)
    again = decode_dialogue(encode_dialogue(dialogue))
    result = recompute(again, tmp_path, None, RUBRIC, "here")
    assert result.ending.reason is StopReason.USER
    assert result.differences == [] and not result.passed


def test_the_label_is_for_people():
    assert StopReason.USER.label == "user left"


def test_the_config_needs_no_director():
    config = load_config(None, ["roles.agents=llm", "roles.user_kind=intent", *_roles("user", "judge")])
    assert cast_from_config(config)["director"].model == "user-model"


def _roles(*names):
    return [f"roles.{name}.model={name}-model" for name in names]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["roles.user_kind=intent"], "roles.agents = 'llm'"),
        ([*INTENT, "roles.director.model=d"], "remove roles.director"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(settings, words):
    with pytest.raises(InputError, match=words):
        load_config(None, settings)


def test_the_prompts_of_other_runs_keep_their_fingerprint():
    usual = prompts_from_config(load_config(None, INTENT[:2]))
    intent = prompts_from_config(load_config(None, INTENT))
    assert usual.fingerprint("empathy") == "4fff778bdfc74278"
    assert intent.fingerprint("empathy") != usual.fingerprint("empathy")
    assert intent.name == "mapo+intent"
