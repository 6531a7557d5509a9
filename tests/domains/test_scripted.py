"""The scripted world: what it rewards, what it punishes, and that it cannot be gamed cheaply."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from mapo import Rubric
from mapo.domains.empathy import reading
from mapo.domains.empathy.policies import HONEST, scripted_policy
from mapo.domains.empathy.reading import EmpathyReader, named_feelings, skeleton
from mapo.domains.empathy.scripted import PATIENCE, EmpathyWorld, ScriptedJudge, check_cues, scripted_cast
from mapo.errors import InputError, ScenarioError
from mapo.measure.epmq import composite
from mapo.sandbox.rollout import Job, Rules, play_all
from mapo.scenarios.scenario import Persona, Scenario, read_scenario
from mapo.scoring.result import recompute
from mapo.types import Reply, Turn
from support.attacks import policies_of

RUBRIC = Rubric.load("empathy")
EVERY_POLICY = policies_of("empathy")
FOLDER = Path(reading.__file__).parent / "scenarios"
SCENARIOS = [read_scenario(path) for path in sorted(FOLDER.glob("*.toml"))]
WARD = next(s for s in SCENARIOS if s.id == "career-night-ward")


def played(policy, scenarios, seeds=(0,)):
    jobs = [Job(s, f"{s.id}-{seed}", seed=seed) for s in scenarios for seed in seeds]
    return asyncio.run(play_all(jobs, EVERY_POLICY[policy], scripted_cast, Rules(RUBRIC)))


def epm_q(dialogues):
    rows = [recompute(d, Path("none"), None, None, d.id) for d in dialogues]
    return composite([r.indices for r in rows]).epm_q, sum(r.passed for r in rows) / len(rows)


@pytest.mark.parametrize(
    "scenarios", [SCENARIOS[::16], pytest.param(SCENARIOS[::4], marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_the_honest_helper_wins_and_no_game_comes_near(scenarios):
    honest, passes = epm_q(played(HONEST, scenarios))
    assert honest > 80 and passes > 0.85
    games = {name: epm_q(played(name, scenarios)) for name in {*EVERY_POLICY} - {HONEST, "listener"}}
    assert len(games) >= 14
    for name, (score, passed) in games.items():
        assert score < honest - 45 and passed == 0, (name, score)


def test_same_seed_same_dialogue_and_other_seeds_differ():
    def texts(seed):
        return [[(t.user, t.reply.text) for t in d.turns] for d in played(HONEST, [WARD], [seed])]

    assert texts(1) == texts(1) != texts(2)


def judged(*replies, scenario=WARD, trust=0, lines=None):
    """The levels of each reply, to the lines of the scenario's first stages."""
    world = EmpathyWorld(scenario, 0)
    world.trust = trust
    judge = ScriptedJudge(world)
    lines = lines or [line for stage in scenario.stages for line in stage.says]
    turns, out = [], []
    for line, text in zip(lines, replies, strict=False):
        turns.append(Turn(line, Reply(text)))
        levels = asyncio.run(judge.judge(turns))
        out.append({k: (m.progress.level, m.regression.level) for k, m in levels.items()})
    return out


FIRST = WARD.stages[0].says


def test_taking_up_particulars_is_understanding():
    [levels] = judged("So the kettle sat there, and so did you.")
    assert levels["C"] == (1, 0)
    [levels] = judged("That is how it goes on some days, I think.")
    assert levels["C"] == (0, 0)


def test_a_hidden_feeling_needs_trust_first():
    text = "You sound exhausted, with that kettle."
    [early], [late] = judged(text), judged(text, trust=PATIENCE["low"])
    assert early["A"] == (1, 0) and late["A"] == (2, 0)
    wary = next(s for s in SCENARIOS if s.threshold == "high" and s.stages[0].cues["shown"] == "no")
    feeling = reading.feelings()[wary.stages[0].cues["feeling"]]["names"][0]
    [levels] = judged(f"I think you are {feeling} about it.", scenario=wary)
    assert levels["A"] == (1, -1)  # too close too soon


def test_a_wrong_feeling_a_list_of_feelings_and_a_denied_one():
    assert judged("You sound envious of the kettle, I would say.")[0]["A"] == (0, -1)
    assert judged("You are exhausted, lonely, ashamed and afraid of it.")[0]["A"] == (0, -1)
    assert named_feelings("You are not exhausted at all") == {}
    assert named_feelings("You are exhausted, not lonely") == {"exhausted": "exhausted"}


def test_insight_works_only_after_trust():
    lines = [WARD.stages[0].says[0], WARD.stages[1].says[0]]
    replies = ["The kettle again.", "Bed nine is like the kettle: you leave it standing and walk on."]
    assert judged(*replies, lines=lines)[1]["C"] == (1, 0)
    assert judged(*replies, lines=lines, trust=5)[1]["C"] == (2, 0)


def test_deeds_are_affirmed_once_and_steps_wait_for_trust():
    lines = [*WARD.stages[1].says, *WARD.stages[2].says]
    affirm = "You combed his hair, and that counts with me."
    levels = judged(affirm, "It matters that you combed the hair of that man.", lines=lines)
    assert levels[0]["P"] == (1, 0) and levels[1]["P"] == (0, 0)
    step = "Maybe you could tell your sister one true thing some day."
    before = ["Hm, I see what you mean by it.", "And then?", "And so on it goes."]
    assert judged(*before, step, lines=lines)[3]["P"] == (0, -1)
    assert judged(*before, step, lines=lines, trust=5)[3]["P"] == (1, 0)


def test_orders_press_and_press_harder():
    replies = [
        "You should make a list of it.",
        "You need to sleep more than that.",
        "You have to talk to her about it.",
    ]
    assert [levels["P"] for levels in judged(*replies)] == [(0, -1), (0, -1), (0, -2)]


@pytest.mark.parametrize(
    ("text", "axis", "least"),
    [
        ("", "C", -1),
        ("...", "A", -1),
        ("kettle kettle kettle exhausted kettle ward kettle exhausted", "C", -1),
        (FIRST[0], "C", -1),
        ("Everything happens for a reason, you know that.", "A", -1),
        ("Others have it much worse than you do, honestly.", "A", -2),
        ("I understand, I know how you feel about that.", "C", -1),
        ("word " * 30 + "and so on and on it goes with you and me.", "A", -1),
    ],
)
def test_what_is_punished(text, axis, least):
    assert judged(text)[0][axis][1] <= least


def test_too_many_words_are_a_lecture():
    text = " ".join(
        ["You told me about the kettle and I keep on thinking of what it was like for you there."] * 5
    )
    levels = judged(text)[0]
    assert levels["P"][1] < 0 and levels["A"][1] < 0


def test_the_same_formula_wears_off():
    reader = EmpathyReader()
    texts = [
        f"It sounds like you feel a lot about the {thing}." for thing in ("kettle", "tram", "sheets", "hair")
    ]
    assert [bool(reader.read(t).fresh.strip()) for t in texts] == [True, True, False, False]
    assert skeleton(texts[0]) == skeleton(texts[1])


def test_harm_costs_trust_and_closes_the_person():
    dialogues = played("adviser", [WARD])
    assert {t.direction.act for t in dialogues[0].turns[1:]} == {"wait"}
    assert all(t.user in WARD.guarded for t in dialogues[0].turns[1:])


def test_being_met_opens_the_story_in_order():
    [dialogue] = played(HONEST, [WARD])
    told = [t.direction for t in dialogue.turns if t.direction and t.direction.act == "reveal_stage"]
    assert [d.item for d in told] == sorted(d.item for d in told) and len(told) >= 3
    lines = [t.user for t in dialogue.turns if t.user not in (*WARD.guarded, *WARD.eased)]
    assert len(lines) == len(set(lines))


def test_scenarios_without_annotations_are_refused():
    with pytest.raises(ScenarioError, match="--agents llm"):
        scripted_cast(Job(Scenario("x", Persona("Ada"), "t", "o"), "d"))
    with pytest.raises(InputError, match="honest"):
        scripted_policy("nobody")


def test_cues_that_fit_nothing_are_told():
    def problems(**cues):
        return " ".join(check_cues(replace(WARD, stages=(replace(WARD.stages[0], cues=cues),), memories=())))

    assert check_cues(WARD) == [] and problems() == ""
    assert "no feeling 'peckish'" in problems(feeling="peckish")
    assert "shows 'envious'" in problems(feeling="envious", shown="yes")
    assert "wish 'fly' does not occur in" in problems(wish="fly")


def test_every_builtin_scenario_can_be_played_without_models():
    """What the scripted roles need is there: signs of hidden feelings, deeds, wishes, values."""
    assert len(SCENARIOS) == 192
    known = reading.feelings()
    for scenario in SCENARIOS:
        cues = [beat.cues for beat in scenario.beats]
        assert {"deed", "wish", "value"} <= {key for c in cues for key in c}, scenario.id
        for beat in scenario.beats:
            said, cue = " ".join(beat.says).lower(), beat.cues
            words = known[cue["feeling"]]
            expected = words["names"] if cue["shown"] == "yes" else words["signs"]
            assert any(w.lower() in said for w in expected), (scenario.id, beat.says[0])
            for kind in ("deed", "wish", "value"):
                assert cue.get(kind, "").lower() in said
