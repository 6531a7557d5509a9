"""A cast of models plays a whole dialogue; prompts are files, complete, and mostly repeat themselves."""

from __future__ import annotations

import asyncio
import runpy
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from string import Template

import pytest

from mapo.measure.rubric import Rubric
from mapo.models.chat import Sampling
from mapo.sandbox.model_cast import model_cast, policy_system
from mapo.sandbox.prompting import DEFAULT_PROMPTS, fragment, language_of
from mapo.sandbox.rollout import Job, Rules, play
from support.roles import Told, boat_shed, start_form, turn_form

EMPATHY, TUTORING = Rubric.load("empathy"), Rubric.load("tutoring")
SCENARIO = boat_shed()
PROMPTS = Path(str(files("mapo") / "sandbox" / "prompts"))


def numbered(request) -> str:
    return f"{'abcdefghijklmnopqrst'[len(request.messages) // 2] * 12} is all I can say."


@pytest.mark.parametrize("rubric", [EMPATHY, TUTORING], ids=lambda r: r.name)
def test_models_play_a_dialogue_to_its_end(rubric):
    user, director, judge = Told(numbered), Told('{"act": "reveal_stage"}'), Told(turn_form(rubric, 1))
    judge.answers.insert(0, start_form(rubric))
    casting = model_cast(user, director, judge, rubric)
    scenario = replace(SCENARIO, start_levels={}, priorities={}, domain=rubric.name)
    rules = Rules(rubric, min_turns=6, max_turns=6, system=policy_system)
    dialogue = asyncio.run(play(Job(scenario, "d"), Told("Mm."), casting(Job(scenario, "d")), rules))
    assert dialogue.error is None and len(dialogue.turns) == 6
    assert dialogue.cast == {"user": "told", "director": "told", "judge": "told"}
    assert all(turn.levels and turn.unscored is None for turn in dialogue.turns)
    assert [turn.direction.item for turn in dialogue.turns[1:]] == ["0", "1", "2", "3", "4"]
    assert len({turn.user for turn in dialogue.turns}) == 6


def test_every_role_is_sampled_as_told_or_in_its_own_way():
    """(temperature, top_p, max_tokens) of every request, those that show a mistake again included."""

    def asked(sampling=None):
        chats = (
            Told("", "Well, yes, it is so."),
            Told('{"act": "fly"}'),
            Told("no form", turn_form(EMPATHY, 1)),
        )
        casting = model_cast(*chats, EMPATHY, sampling)
        rules = Rules(EMPATHY, min_turns=2, max_turns=2, top_p=0.9)
        policy = Told("Mm.")
        asyncio.run(play(Job(SCENARIO, "d"), policy, casting(Job(SCENARIO, "d")), rules))
        assert {r.top_p for r in policy.requests} == {0.9}
        ways = [{(r.temperature, r.top_p, r.max_tokens) for r in chat.requests} for chat in chats]
        assert len(chats[0].requests) > 1 and len(chats[2].requests) > 2
        return ways

    assert asked() == [{(1.0, 1.0, 4096)}, {(0.0, 1.0, 4096)}, {(0.0, 1.0, 4096)}]
    told = {"user": Sampling(0.0, 0.5), "judge": Sampling(temperature=0.3, max_tokens=99)}
    assert asked(told) == [{(0.0, 0.5, 4096)}, {(0.0, 1.0, 4096)}, {(0.3, 1.0, 99)}]


def test_a_cast_is_made_for_one_dialogue_and_follows_its_seed():
    casting = model_cast(Told(""), Told(""), Told(""), EMPATHY)
    one, again, other = (*(casting(Job(SCENARIO, "d", seed=n)) for n in (1, 1, 2)),)
    assert one.director is not again.director
    assert one.judge.mark == one.user.mark == one.director.mark == again.judge.mark != other.judge.mark


def test_the_policy_is_told_its_part_and_nothing_about_the_person():
    system = policy_system(SCENARIO)
    assert "English" in system and fragment("empathy", "policy") in system
    assert SCENARIO.persona.name not in system and SCENARIO.topic not in system
    assert "Chinese" in policy_system(replace(SCENARIO, language="zh"))
    assert "'sw'" in language_of(replace(SCENARIO, language="sw"))


@pytest.mark.parametrize("domain", ["no_such_domain", "../sandbox", ""])
def test_a_domain_without_fragments_adds_nothing(domain):
    assert fragment(domain, "policy") == ""
    assert DEFAULT_PROMPTS.fill("policy", domain, language="English").startswith("You are in a chat")


def test_what_is_about_empathy_stays_in_its_folder():
    for path in PROMPTS.iterdir():
        text = path.read_text(encoding="utf-8").lower()
        assert not [
            word for word in ("empath", "cognitive", "affective", "proactive", "comfort") if word in text
        ], path


def test_templates_are_well_formed_and_fragments_have_a_template():
    for path in PROMPTS.glob("*.md"):
        assert Template(path.read_text(encoding="utf-8")).is_valid(), path
    for path in (PROMPTS.parents[1] / "domains").glob("*/prompts/*.md"):
        template = PROMPTS / path.name
        assert "$domain" in template.read_text(encoding="utf-8"), path
    assert set(DEFAULT_PROMPTS.table("director_acts")) == set(DEFAULT_PROMPTS.table("user_notes"))


def test_most_of_each_prompt_repeats_the_one_before():
    measured = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "prefix.py"))["measure"](20)
    shares = {role: share for role, (_, _, share) in measured.items()}
    assert shares["judge"] >= 0.90
    assert min(shares["user"], shares["director"]) >= 0.85
