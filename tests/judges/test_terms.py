"""By what a judge's levels become credit: as the runs say where they agree; else what was assumed is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mapo.judges.audit.answers import answers_of
from mapo.judges.audit.measure import findings
from mapo.judges.audit.run import Plan, audited
from mapo.judges.sample import Moment
from mapo.judges.terms import Terms, terms_of
from mapo.measure.potential import origin_distance
from mapo.testing.judges import Habit
from support.judging import EMPATHY, faulty, lines_of, talks

TALKS = talks()


def trained(folder, text):
    folder.mkdir()
    (folder / "config.toml").write_text(text)
    return folder


def by(reward):
    return [replace(t, dialogue=replace(t.dialogue, reward=reward)) for t in TALKS[:3]]


OWN = "[advantage]\nmethod = 'mapo'\ngamma = 0.5\nturn_weight = 0.25\nhorizon = 'shortest'\n"


def test_the_runs_terms_are_taken_where_they_agree(tmp_path):
    a, b = trained(tmp_path / "a", OWN), trained(tmp_path / "b", OWN.replace("mapo", "grpo"))
    evaluation = tmp_path / "eval"
    evaluation.mkdir()
    terms, talks = terms_of(by("potential/origin"), [a, b, evaluation])
    assert (terms.reward, terms.distance, terms.assumed) == ("potential", "origin", ())
    assert terms.credit == {"gamma": 0.5, "turn_weight": 0.25, "scope": "group", "horizon": "shortest"}
    assert {(t.reward, t.distance) for t in talks} == {("potential", "origin")}
    assert terms.as_json()["gamma"] == 0.5


@pytest.mark.parametrize("text", ["", "[advantage]\ngamma = 'x'", "[advantage"])
def test_what_no_run_says_is_assumed_and_said(tmp_path, text):
    terms, _ = terms_of(by("idr/zone"), [trained(tmp_path / "a", text), tmp_path / "none"])
    assert terms.credit == Terms().credit and len(terms.assumed) == 1
    assert terms.assumed[0].startswith("gamma 0.85, turn_weight 0.5") and "no run says" in terms.assumed[0]


def test_runs_that_differ_are_measured_by_the_defaults(tmp_path):
    roots = [trained(tmp_path / "a", OWN), trained(tmp_path / "b", OWN.replace("0.5", "0.9"))]
    terms, talks = terms_of([*by("idr/origin"), *by("adr/zone")], roots)
    assert replace(terms, assumed=()) == Terms()
    assert "the records have adr/zone, idr/origin" in terms.assumed[0] and "differ" in terms.assumed[1]
    assert {(t.reward, t.distance) for t in talks} == {("idr", "zone")}
    for reward, why in (
        ("mine/zone", "none that is known"),
        ("", "none that"),
        ("outcome/zone", "no single"),
    ):
        found, _ = terms_of(by(reward), roots[:1])
        assert found.reward == "idr" and why in found.assumed[0]


def test_a_turn_is_worth_what_its_run_pays():
    moment = Moment(TALKS[0], 2)
    levels = EMPATHY.levels(C=(2, 0))
    before = moment.before
    after = tuple(p + v for p, v in zip(before, EMPATHY.step(levels), strict=True))
    far = [origin_distance(p, EMPATHY) for p in (before, after)]
    origin = replace(moment, talk=replace(moment.talk, distance="origin"))
    assert origin.reward(levels) == pytest.approx(far[0] - far[1])
    assert replace(moment, talk=replace(moment.talk, reward="adr")).reward(levels) < 0
    for name in ("idr", "adr", "potential", "increment"):  # as the record has it
        talk = replace(TALKS[0], reward=name)
        own = [Moment(talk, at).reward(turn.levels) for at, turn in enumerate(talk.dialogue.turns, 1)]
        from mapo.judges.audit.answers import path_of, rewards

        assert own == pytest.approx(rewards(path_of(talk, [t.levels for t in talk.dialogue.turns]), talk))


def test_terms_change_what_is_found_and_are_written_down():
    terms = Terms(gamma=0.0, turn_weight=1.0, assumed=("gamma 0: nobody said",))
    plan = Plan(("it",), TALKS, turns=1, dialogues=6, repeats=2, pairs=False, terms=terms)
    asked = [question for question in plan.questions() if question.probe == "plain"]
    lines = lines_of(plan, {"it": faulty(Habit(noise=0.3))}, asked)
    answers = answers_of(asked, lines)["it"]
    usual, other = (findings(answers, plan.whole(), t).reliability[0].r for t in (Terms(), terms))
    assert other < usual  # single rewards are noisier than sums of them
    audit = audited(plan, lines, {})
    assert audit.findings[0].reliability[0].r == other
    data = audit.as_json()
    assert data["terms"]["gamma"] == 0.0 and "assumed gamma 0: nobody said" in data["notes"]
