"""The second domain: what its world rewards, what comes later, and that it cannot be gamed cheaply."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from mapo import Rubric
from mapo.domains.tutoring.context import sentences
from mapo.domains.tutoring.policies import HONEST, scripted_policy
from mapo.domains.tutoring.scripted import TutorDirector, TutoringWorld, TutorJudge, check_cues, scripted_cast
from mapo.errors import InputError, ScenarioError
from mapo.measure.epmq import composite
from mapo.measure.potential import Trajectory
from mapo.models.chat import Request
from mapo.sandbox.model_cast import policy_system
from mapo.sandbox.prompting import fragment
from mapo.sandbox.rollout import Job, Rules, play_all
from mapo.scenarios.scenario import Persona, Scenario, check_scenario
from mapo.scenarios.sets import load_scenarios
from mapo.scoring.result import recompute
from mapo.scripted.reading import skeleton
from mapo.types import Message, Reply, Turn
from support import small_run as small
from support.attacks import policies_of
from support.command import mapo

RUBRIC = Rubric.load("tutoring")
EVERY_POLICY = policies_of("tutoring")
SCENARIOS = load_scenarios("builtin:all", "tutoring")
PIZZA = next(s for s in SCENARIOS if s.id == "maths-pizza-slices")


def played(policy, scenarios, seeds=(0,)):
    jobs = [Job(s, f"{s.id}-{seed}", seed=seed) for s in scenarios for seed in seeds]
    return asyncio.run(play_all(jobs, EVERY_POLICY[policy], scripted_cast, Rules(RUBRIC)))


def epm_q(dialogues):
    rows = [recompute(d, Path("none"), None, None, d.id) for d in dialogues]
    return composite([r.indices for r in rows]).epm_q, sum(r.passed for r in rows) / len(rows)


@pytest.mark.parametrize(
    "scenarios", [SCENARIOS[::12], pytest.param(SCENARIOS[::3], marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_the_honest_tutor_wins_and_no_game_comes_near(scenarios):
    honest, passes = epm_q(played(HONEST, scenarios))
    assert honest > 80 and passes > 0.85
    games = {name: epm_q(played(name, scenarios)) for name in EVERY_POLICY if name != HONEST}
    assert len(games) >= 8
    for name, (score, passed) in games.items():
        assert score < honest - 45 and passed == 0, (name, score)


def test_there_are_enough_scenarios_of_every_kind_and_all_can_be_played():
    assert len(SCENARIOS) >= 24
    assert len({s.category for s in SCENARIOS}) >= 5 and {s.axis for s in SCENARIOS} == set(RUBRIC.keys)
    for scenario in SCENARIOS:
        assert check_scenario(scenario, RUBRIC) == [] and check_cues(scenario) == []
        shows = Counter(beat.cues["shows"] for beat in scenario.beats)
        assert shows["idea"] and shows["case"] >= 2 and shows["own"] >= 2, scenario.id
        cues = {key for beat in scenario.beats for key in beat.cues}
        assert {"deed", "wish", "answer"} <= cues, scenario.id
        TutoringWorld(scenario, 0)


def test_same_seed_same_dialogue_and_other_seeds_differ():
    def texts(seed):
        return [[(t.user, t.reply.text) for t in d.turns] for d in played(HONEST, [PIZZA], [seed])]

    assert texts(1) == texts(1) != texts(2)


def judged(*replies, world=None, lines=None):
    """The levels of each reply, to the lines of the scenario's stages."""
    world = world or TutoringWorld(PIZZA, 0)
    judge = TutorJudge(world)
    lines = lines or [line for stage in PIZZA.stages for line in stage.says]
    turns, out = [], []
    for line, text in zip(lines, replies, strict=False):
        turns.append(Turn(line, Reply(text)))
        levels = asyncio.run(judge.judge(turns))
        out.append({k: (m.progress.level, m.regression.level) for k, m in levels.items()})
    return out


def world(**state):
    made = TutoringWorld(PIZZA, 0)
    for name, value in state.items():
        setattr(made, name, value)
    return made


IDEA, CASE = PIZZA.stages[0].says, PIZZA.stages[1].says
OWN = PIZZA.memories[0].says


def test_looking_at_the_idea_is_the_first_step():
    here = TutoringWorld(PIZZA, 0)
    [levels] = judged("What do you see when you look at the bottom number?", world=here)
    assert levels["M"] == (1, 0) and here.open
    [levels] = judged("That is how it goes on some days, I think.")
    assert levels["M"] == (0, 0)
    [opening] = judged("So it is about fractions, and about points?", lines=[PIZZA.opening])
    assert opening["M"] == (1, 0)


def test_a_step_before_the_idea_is_in_the_open_frustrates():
    ask = "What would you try next with it?"
    assert judged(ask)[0]["G"] == (0, -1)
    assert judged(ask, world=world(open=True))[0]["G"] == (1, 0)
    twice = judged(ask, "How would you check it on your own?", world=world(open=True))
    assert [levels["G"] for levels in twice] == [(1, 0), (0, 0)]  # not every time


def test_a_contradiction_needs_ease_first():
    lines = [*IDEA, CASE[0]]
    replies = [
        "I would like to understand the bottom number as you do.",
        "And what does the third do to your idea?",
        "Put the tray next to the eighth: can they both be so?",
    ]
    assert judged(*replies, lines=lines, world=world(ease=-9))[2]["M"] == (1, 0)
    assert judged(*replies, lines=lines)[2]["M"] == (2, 0)


def test_agency_once_given_makes_explanations_worth_more():
    lines = [OWN[0], CASE[0]]
    replies = ["The dough is something you know well.", "The tray reminds me of the dough you told me about."]
    assert judged(*replies, lines=lines)[1]["U"] == (1, 0)
    assert judged(*replies, lines=lines, world=world(own_steps=1))[1]["U"] == (2, 0)


def test_an_answer_feels_good_and_collapses_at_the_next_case():
    told = "The right answer is that fewer pieces are each larger."
    here = TutoringWorld(PIZZA, 0)
    levels = judged(told, "I would like to see the tray as you do.", lines=[IDEA[0], CASE[0]], world=here)
    assert levels[0]["U"] == (1, 0) and levels[0]["G"] == (0, 0)
    assert levels[1]["U"] == (0, -2) and levels[1]["G"] == (0, -1)
    assert here.unearned is None and here.ease == 0
    [levels] = judged("Think: fewer pieces, and so each one larger.")  # the words themselves, unannounced
    assert levels["U"] == (1, 0)


def test_after_an_answer_the_director_brings_the_next_case():
    here = TutoringWorld(PIZZA, 0)
    director = TutorDirector(here)
    director.next, director.current = 1, PIZZA.stages[0]
    here.story.said.add(IDEA[0])  # its second line is still to be said
    here.unearned = PIZZA.stages[0]
    turn = Turn(IDEA[0], Reply("x"), RUBRIC.levels(U=(1, 0)))
    found = asyncio.run(director.direct([turn], Trajectory(RUBRIC, RUBRIC.start(PIZZA.start_levels))))
    assert (found.act, found.item) == ("reveal_stage", "1") and "next case" in found.reason


def test_praise_counts_only_for_something_done():
    assert judged("Great job, you are so clever.")[0]["S"] == (0, -1)
    deed = "You cut the tray into eight: that is how one finds out."
    levels = judged(deed, f"Again, {deed.lower()}", lines=CASE)
    assert [x["S"][0] for x in levels] == [1, 0]  # each deed once
    assert judged(deed, lines=CASE, world=world(own_steps=1, ease=5))[0]["S"] == (2, 0)
    assert judged("You baked it all: that is how one finds out.", lines=CASE)[0]["S"] == (0, 0)


def test_a_wish_is_taken_up_when_the_idea_is_open():
    line = PIZZA.stages[4].says[1]
    offer = "Perhaps the moment has come to draw a cake for guests, with whatever paper you have there."
    assert judged(offer, lines=[line])[0]["G"] == (0, 0)
    assert judged(offer, offer, lines=[line, line], world=world(open=True))[0]["G"] == (1, 0)
    assert judged(offer, lines=[line], world=world(open=True, own_steps=1, ease=5))[0]["G"] == (2, 0)
    asked = "How would you divide the cake then?"
    assert judged(asked, lines=[line], world=world(open=True, own_steps=1, ease=5))[0]["G"] == (2, 0)


def test_orders_take_over_and_more_so_again():
    replies = [
        "You should learn that by heart.",
        "You need to practise it at home.",
        "You have to do it again.",
    ]
    assert [levels["G"] for levels in judged(*replies)] == [(0, -1), (0, -1), (0, -2)]


@pytest.mark.parametrize(
    ("text", "axis", "level"),
    [
        ("", "U", -1),
        ("...", "S", -1),
        (IDEA[0], "U", -1),
        ("How can you not see that, at your age?", "S", -2),
        ("It is so easy if you look at it.", "S", -1),
        ("Don't worry, you will get there in the end.", "S", -1),
        ("You are bitter about it, I would say.", "S", -1),
        ("I would like to see the eighth and then the", "U", -1),
        ("You are right about that, go on as you do.", "M", -1),
        ("That is wrong, and you know it by now.", "M", -1),
        ("The eighth is one of those things we may well speak of. " * 8, "G", -1),
        ("It has a long history and it goes back to the ones who were there before. " * 6, "U", -1),
    ],
)
def test_what_is_punished(text, axis, level):
    assert judged(text)[0][axis][1] == level


def test_confirming_an_idea_that_is_in_the_open_is_worse():
    assert judged("I agree with you on that, it is so.", world=world(open=True))[0]["M"] == (0, -2)
    own = judged("I agree with you on the dough, it is so.", lines=OWN)
    assert own[0]["M"] == (0, 0) and own[0]["U"] == (1, 0)  # what they know well may be confirmed


def test_scenarios_without_annotations_are_refused():
    with pytest.raises(ScenarioError, match="--agents llm"):
        scripted_cast(Job(Scenario("x", Persona("Ada"), "t", "o", domain="tutoring"), "d"))
    with pytest.raises(InputError, match="honest"):
        scripted_policy("nobody")


def test_cues_that_fit_nothing_are_told():
    def problems(**cues):
        return " ".join(
            check_cues(replace(PIZZA, stages=(replace(PIZZA.stages[0], cues=cues),), memories=()))
        )

    assert problems(shows="idea") == "" == problems()
    assert "shows is 'wisdom'" in problems(shows="wisdom")
    assert "deed 'flew away' does not" in problems(shows="idea", deed="flew away")
    assert "said by the learner" in problems(shows="idea", answer="the bottom number")


def test_every_sentence_of_the_tutor_has_its_own_formula():
    good = [s for kind in ("look", "contrast", "tie", "affirm", "step", "offer") for s in sentences()[kind]]
    filled = [s.format(a="tray", e="dough", d="drew it", w="draw it") for s in good]
    assert len({skeleton(s) for s in filled}) > 0.9 * len(filled)


def test_a_policy_without_an_answer_to_give_gives_none():
    chat = scripted_policy("answer-giver")(Job(PIZZA, "d"))
    answer = asyncio.run(chat.reply(Request((Message("user", PIZZA.opening),))))
    assert "in the book" in answer.text


def test_the_honest_tutor_takes_up_a_wish():
    chat = scripted_policy(HONEST)(Job(PIZZA, "d"))
    told = tuple(Message("user", line) for stage in PIZZA.stages for line in stage.says)
    assert "cake for three guests" in asyncio.run(chat.reply(Request(told))).text


def test_too_many_words_overload_and_lecture():
    text = (
        "The eighth is one thing and the third is another, and before we come to either of them I would say "
        "that it depends on what you mean. When people first met this they did not agree, and for long "
        "each of them had a way of their own to put it down. Some began with the tray and others with the "
        "knife, while a few would not begin at all. In the end it came out as we have it now, that is "
        "to say late."
    )
    [levels] = judged(text)
    assert levels["U"] == (0, -1) and levels["G"] == (0, -1) and levels["S"] == (0, 0)


def test_the_start_form_is_the_scenarios_own():
    found = asyncio.run(TutorJudge(TutoringWorld(PIZZA, 0)).start())
    assert {key: mark.level for key, mark in found.items()} == PIZZA.start_levels


def test_prompts_are_there_for_every_role():
    for name in ("policy", "user", "director", "judge_start", "judge_turn"):
        assert len(fragment("tutoring", name)) > 80
    assert "what does not fit" in policy_system(PIZZA)


def test_training_takes_the_same_way_as_in_the_first_domain(tmp_path):
    model = small.model_folder(tmp_path / "model")
    given = [*small.SMALL, f"model.source={model}", "optim.steps=1", "eval.test_repeats=1", "eval.every=1"]
    done = mapo("train", "tutoring", *given, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert Rubric.load(tmp_path / "run" / "rubric.toml") == RUBRIC
    lines = [json.loads(x) for x in (tmp_path / "run/dialogues/step_00001.jsonl").read_text().splitlines()]
    assert lines and all(d["rubric"] == "tutoring" and len(d["start"]) == 4 for d in lines)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["before"]["n"] == summary["after"]["n"] == 12
    for page in (("score", tmp_path / "run/eval/after", "--by", "axis"), ("report", tmp_path / "run")):
        assert mapo(*page).returncode == 0


def test_the_splits_hold_every_scenario_once():
    folder = Path(scripted_cast.__code__.co_filename).parent
    splits = json.loads((folder / "splits.json").read_text(encoding="utf-8"))
    ids = [case for cases in splits.values() for case in cases]
    assert sorted(ids) == sorted(s.id for s in SCENARIOS) and len(set(ids)) == len(ids)
    assert len(splits["test"]) >= 8
