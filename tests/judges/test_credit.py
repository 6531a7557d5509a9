"""By what a judge's levels become credit: as the runs say where they agree; else what was assumed is said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mapo.judges.audit.answers import answers_by_judge
from mapo.judges.audit.measure import measure_judge
from mapo.judges.audit.run import AuditPlan, build_audit
from mapo.judges.credit import CreditSettings, credit_settings
from mapo.judges.sample import RecordedTurn
from mapo.measure.potential import origin_distance
from mapo.testing.judges import JudgeErrors
from support.judging import EMPATHY, faulty, lines_of, recordings

RECORDINGS = recordings()


def trained(folder, text):
    folder.mkdir()
    (folder / "config.toml").write_text(text)
    return folder


def by(reward):
    return [replace(t, dialogue=replace(t.dialogue, reward=reward)) for t in RECORDINGS[:3]]


OWN = "[advantage]\nmethod = 'mapo'\ngamma = 0.5\nturn_weight = 0.25\nhorizon = 'shortest'\n"


def test_the_runs_terms_are_taken_where_they_agree(tmp_path):
    a, b = trained(tmp_path / "a", OWN), trained(tmp_path / "b", OWN.replace("mapo", "grpo"))
    evaluation = tmp_path / "eval"
    evaluation.mkdir()
    terms, talks = credit_settings(by("potential/origin"), [a, b, evaluation])
    assert (terms.reward, terms.distance, terms.assumed) == ("potential", "origin", ())
    assert terms.advantage_options == {
        "gamma": 0.5,
        "turn_weight": 0.25,
        "scope": "group",
        "horizon": "shortest",
        "endings": "cut",  # recordings of earlier versions do not say
        "scale": None,
        "lam": 0.95,
        "step_weight": 1.0,
    }
    assert {(t.reward, t.distance) for t in talks} == {("potential", "origin")}
    assert terms.as_json()["gamma"] == 0.5


@pytest.mark.parametrize("text", ["", "[advantage]\ngamma = 'x'", "[advantage"])
def test_what_no_run_says_is_assumed_and_said(tmp_path, text):
    terms, _ = credit_settings(by("idr/zone"), [trained(tmp_path / "a", text), tmp_path / "none"])
    assert terms.advantage_options == CreditSettings().advantage_options and len(terms.assumed) == 1
    assert (
        terms.assumed[0].startswith("gamma 0.85, turn_weight 0.5")
        and "no run has advantage settings" in terms.assumed[0]
    )


def test_runs_that_differ_are_measured_by_the_defaults(tmp_path):
    roots = [trained(tmp_path / "a", OWN), trained(tmp_path / "b", OWN.replace("0.5", "0.9"))]
    terms, talks = credit_settings([*by("idr/origin"), *by("adr/zone")], roots)
    assert replace(terms, assumed=()) == CreditSettings()
    assert "the records use adr/zone, idr/origin" in terms.assumed[0] and "different" in terms.assumed[1]
    assert {(t.reward, t.distance) for t in talks} == {("idr", "zone")}
    for reward, why in (
        ("mine/zone", "name no known"),
        ("", "name no known"),
        ("outcome/zone", "does not rate single"),
    ):
        found, _ = credit_settings(by(reward), roots[:1])
        assert found.reward == "idr" and why in found.assumed[0]


def test_a_turn_is_worth_what_its_run_pays():
    turn = RecordedTurn(RECORDINGS[0], 2)
    levels = EMPATHY.levels(C=(2, 0))
    before = turn.before
    after = tuple(p + v for p, v in zip(before, EMPATHY.step(levels), strict=True))
    far = [origin_distance(p, EMPATHY) for p in (before, after)]
    origin = replace(turn, recording=replace(turn.recording, distance="origin"))
    assert origin.reward(levels) == pytest.approx(far[0] - far[1])
    assert replace(turn, recording=replace(turn.recording, reward="adr")).reward(levels) < 0
    for name in ("idr", "adr", "potential", "increment"):  # as the record has it
        recording = replace(RECORDINGS[0], reward=name)
        own = [
            RecordedTurn(recording, at).reward(turn.levels)
            for at, turn in enumerate(recording.dialogue.turns, 1)
        ]
        from mapo.judges.audit.answers import rewards, trajectory_of

        assert own == pytest.approx(
            rewards(trajectory_of(recording, [t.levels for t in recording.dialogue.turns]), recording)
        )


def test_terms_change_what_is_found_and_are_written_down():
    terms = CreditSettings(gamma=0.0, turn_weight=1.0, assumed=("gamma 0: nobody said",))
    plan = AuditPlan(("it",), RECORDINGS, turns=1, dialogues=6, repeats=2, pairs=False, credit=terms)
    asked = [question for question in plan.questions() if question.probe == "plain"]
    lines = lines_of(plan, {"it": faulty(JudgeErrors(noise=0.3))}, asked)
    answers = answers_by_judge(asked, lines)["it"]
    usual, other = (
        measure_judge(answers, plan.whole_dialogues(), t).reliability[0].r for t in (CreditSettings(), terms)
    )
    assert other < usual  # single rewards are noisier than sums of them
    audit = build_audit(plan, lines, {})
    assert audit.findings[0].reliability[0].r == other
    data = audit.as_json()
    assert data["terms"]["gamma"] == 0.0 and "assumed gamma 0: nobody said" in data["notes"]


def test_the_method_of_the_runs_is_measured_too(tmp_path):
    new = OWN.replace("mapo", "kevin") + "endings = 'continued'\nscale = 'none'\nlam = 0.5\nstep_weight = 2\n"
    terms, _ = credit_settings(by("idr/zone"), [trained(tmp_path / "a", new)])
    assert terms.methods == ("mapo", "turn", "batch", "grpo", "kevin") and not terms.unmeasured
    options = terms.advantage_options
    assert (options["endings"], options["scale"], options["lam"]) == ("continued", "none", 0.5)
    assert options["step_weight"] == 2
    plan = AuditPlan(("it",), RECORDINGS, turns=1, dialogues=6, repeats=2, pairs=False, credit=terms)
    asked = [question for question in plan.questions() if question.probe == "plain"]
    audit = build_audit(plan, lines_of(plan, {"it": faulty(JudgeErrors(noise=0.3))}, asked), {})
    assert [r.method for r in audit.findings[0].reliability] == list(terms.methods)


def test_a_method_that_needs_more_than_rewards_is_named_as_not_measured(tmp_path):
    terms, _ = credit_settings(by("idr/zone"), [trained(tmp_path / "a", OWN.replace("mapo", "gdpo"))])
    assert terms.unmeasured == ("gdpo",) and "gdpo" not in terms.methods
    plan = AuditPlan(("it",), RECORDINGS, turns=1, dialogues=6, repeats=2, pairs=False, credit=terms)
    asked = [question for question in plan.questions() if question.probe == "plain"]
    audit = build_audit(plan, lines_of(plan, {"it": faulty(JudgeErrors(noise=0.3))}, asked), {})
    assert any("gdpo, used in training, are not measured: they need axes" in note for note in audit.notes)
