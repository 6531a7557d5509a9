"""What stands beside a score: judge, world, scenario set, reference values."""

from __future__ import annotations

import json

import pytest

from mapo.domain_folders import SHIPPED
from mapo.errors import RecordError
from mapo.local_model.shipped import POCKET_JUDGE
from mapo.players.identity import fingerprint
from mapo.scenarios.sets import load_scenarios
from mapo.scoring import reference
from mapo.scoring.context import ScoreContext, scenario_set
from mapo.scoring.reference import reference_lines, reference_scores
from mapo.scripted.world import World
from support.command import mapo

SCRIPTED = ScoreContext("empathy", "scripted", "scripted", "scripted", "builtin:test (12 scenarios)")
TEST_IDS = [s.id for s in load_scenarios("builtin:test")]


def test_a_context_names_every_role_and_the_scenarios():
    mixed = ScoreContext("tutoring", "small", "small", "large", "3 scenarios")
    assert SCRIPTED.describe() == (
        "Judge, user and director: scripted; scenarios: builtin:test (12 scenarios)"
    )
    assert mixed.describe() == "Judge: large; user and director: small; 3 scenarios"


@pytest.mark.parametrize(
    ("user", "judge", "notice"),
    [
        (
            "scripted",
            "scripted",
            "Test world, not a measure of empathy: user, director and judge are scripted",
        ),
        (
            "small",
            "scripted or large",
            "Test world, not a measure of empathy: director and judge are scripted",
        ),
        ("small", "large", ""),
    ],
)
def test_scores_of_a_scripted_user_or_judge_carry_a_notice(user, judge, notice):
    context = ScoreContext("empathy", user, "scripted", judge, "")
    assert context.notice.startswith(notice) and bool(context.notice) == bool(notice)


@pytest.mark.parametrize(
    ("prompts", "note"),
    [
        (
            "mapo 0123456789abcdef",
            "Prompts: mapo's own, which judge more mildly than EMPA's, so the score does",
        ),
        (
            "",
            "Prompts: not recorded. mapo's own judge more mildly than EMPA's, so the score does not compare",
        ),
        (
            "my prompts 01234567",
            "Prompts: my prompts, not EMPA's, so the score does not compare with published",
        ),
        ("mapo 0123 or empa 4567", "Prompts: mapo or empa, not EMPA's, so"),
        ("empa 0123456789abcdef", "Prompts: EMPA's own"),
        ("empa", ""),
    ],
)
def test_scores_of_models_say_whose_prompts_they_had(prompts, note):
    context = ScoreContext("empathy", "small", "small", "large", "3 scenarios", prompts)
    assert context.prompts_note.startswith(note) and bool(context.prompts_note) == bool(note)
    assert context.describe().endswith(context.prompts_note)


@pytest.mark.parametrize(("domain", "judge"), [("tutoring", "large"), ("empathy", "scripted")])
def test_other_domains_and_scripted_judges_have_no_note_about_prompts(domain, judge):
    assert ScoreContext(domain, "small", "small", judge, "", "mapo 0123").prompts_note == ""


def test_reference_scores_stand_only_beside_a_fully_scripted_world():
    assert "nothing happens 33.3; honest helper 89.1" in SCRIPTED.reference
    assert ScoreContext("empathy", "small", "scripted", "scripted", "").reference == ""
    judged = ScoreContext("empathy", "scripted", "scripted", "my-judge", "").reference
    assert "nothing happens 33.3" in judged and "honest" not in judged


@pytest.mark.parametrize(
    ("ids", "name"),
    [
        (TEST_IDS, "builtin:test (12 scenarios)"),
        (TEST_IDS[:5], "builtin:test (5 of 12 scenarios)"),
        ([s.id for s in load_scenarios("builtin:all")], "builtin:all (192 scenarios)"),
        (["mine"], "1 scenario"),
        ([], "0 scenarios"),
    ],
)
def test_scenario_sets_are_named(ids, name):
    assert scenario_set("empathy", ids) == name


def test_an_unknown_domain_has_neither_sets_nor_references():
    assert (scenario_set("haggling", ["a", "b"]), reference_scores(World("haggling"))) == ("2 scenarios", ())


@pytest.mark.parametrize("domain", SHIPPED)
def test_shipped_domains_have_reference_scores(domain):
    scores = {score.name: score for score in reference_scores(World(domain))}
    assert list(scores) == ["silent", "no_change", "honest"]  # lowest first
    assert scores["no_change"].epm_q == pytest.approx(100 / 3, abs=0.01)  # RDI 50, Align 50, Tau 100, Pen 100
    assert scores["honest"].command.startswith("mapo eval empa --model scripted:honest")


def test_charts_draw_two_reference_lines_and_none_for_model_roles():
    assert [line.name for line in reference_lines(World("empathy"))] == ["no_change", "honest"]
    assert [line.name for line in reference_lines(World("empathy", "my-judge"))] == ["no_change"]
    assert reference_lines(None) == ()


def test_references_of_the_shipped_judge_belong_to_its_weights():
    """After a change of the judge: python scripts/reference_scores.py."""
    scores = [s for s in reference_scores(World("empathy", "pocket-judge")) if s.judge == "pocket-judge"]
    assert {score.name for score in scores} == {"silent", "honest", "listener"}
    assert {score.judge_weights for score in scores} == {fingerprint(POCKET_JUDGE)}


@pytest.mark.parametrize("text", ["{", '{"schema": "mapo.reference/9", "scores": []}', '{"schema": "x"}'])
def test_a_damaged_reference_file_is_named(tmp_path, monkeypatch, text):
    (tmp_path / "reference.json").write_text(text)
    monkeypatch.setattr(reference, "known_folder", lambda _: tmp_path)
    with pytest.raises(RecordError, match=r"reference\.json"):
        reference_scores(World("empathy"))


def test_the_honest_reference_score_is_what_a_run_measures(tmp_path):
    stored = next(s for s in reference_scores(World("empathy")) if s.name == "honest")
    mapo(*stored.command.split()[1:], "--out", tmp_path / "run")
    [measured] = json.loads(mapo("score", tmp_path / "run", "--json").stdout)
    assert (round(measured["epm_q"], 2), measured["n"]) == (stored.epm_q, stored.dialogues)
