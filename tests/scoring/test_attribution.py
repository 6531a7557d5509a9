"""Whose fault failed dialogues were."""

from __future__ import annotations

import json
from dataclasses import replace

from mapo import Rubric
from mapo.records import decode_dialogue, encode_dialogue
from mapo.scoring.attribution import attribution, attribution_of, role_to_blame
from mapo.scoring.score import score_dialogues
from mapo.scoring.tables import print_scores
from mapo.types import Dialogue, Ending, StopReason
from support.builders import dialogue, marks

RUBRIC = Rubric.load("empathy")
USER, JUDGE, POLICY = ("user: repeats itself",), ("judge: failed",), ("policy: cut off",)
TIMEOUT, SUCCESS = Ending(StopReason.TIMEOUT), Ending(StopReason.SUCCESS)


def with_faults(*faults: tuple[str, ...], **fields: object) -> Dialogue:
    played = dialogue(
        RUBRIC,
        [marks(RUBRIC, 0)] * len(faults),
        **{"ending": TIMEOUT, "min_turns": 1, "max_turns": len(faults), **fields},
    )
    turns = (replace(turn, faults=each) for turn, each in zip(played.turns, faults, strict=True))
    return replace(played, turns=tuple(turns))


def test_a_role_at_fault_in_a_fifth_of_the_turns_is_to_blame():
    assert role_to_blame([USER, (), (), (), ()]) == "user"
    assert role_to_blame([USER, (), (), (), (), ()]) == "policy"


def test_the_role_with_most_faulty_turns_is_to_blame():
    assert role_to_blame([USER, JUDGE, JUDGE]) == "judge"
    assert role_to_blame([(*USER, "user: empty"), JUDGE, JUDGE]) == "judge"  # turns are counted, not faults


def test_a_failure_without_faults_of_the_simulator_is_the_policys():
    assert role_to_blame([(), ()]) == "policy"
    assert role_to_blame([POLICY, POLICY]) == "policy"


def test_only_failed_dialogues_are_attributed():
    found = attribution_of([(TIMEOUT, [USER]), (SUCCESS, [USER]), (None, [USER]), (TIMEOUT, [()])])
    assert found.failed == 2
    assert found.blamed == {"user": 1, "policy": 1}
    assert found.simulator_share == 0.5


def test_shares_of_turns_by_role():
    found = attribution([with_faults(USER, (), (*POLICY, "policy: repeats itself"), ())])
    assert found.turns == {"user": 0.25, "director": 0.0, "judge": 0.0, "policy": 0.25}
    assert found.kinds == {"user: repeats itself": 1, "policy: cut off": 1, "policy: repeats itself": 1}


def test_broken_dialogues_are_not_counted():
    assert attribution([with_faults(USER, error="timeout")]).turns == {}
    assert attribution([]).simulator_share is None


def test_unknown_faults_of_foreign_records_are_ignored():
    found = attribution([with_faults(("<b>x</b>",), ("nobody: did it",))])
    assert (found.kinds, found.blamed) == ({}, {"policy": 1})


def test_records_without_faults_are_written_as_before():
    plain = dialogue(RUBRIC, [marks(RUBRIC, 0)])
    assert b"faults" not in encode_dialogue(plain)
    faulty = with_faults(USER)
    assert decode_dialogue(encode_dialogue(faulty)) == faulty


def test_the_score_names_the_role_at_fault(capsys):
    score = score_dialogues("m", [with_faults(USER), replace(with_faults(()), id="d2")], RUBRIC)
    assert score is not None
    print_scores(score.context, "model", [score])
    assert "Failed dialogues of m by the role at fault: user 1 (50%), policy 1 (50%)." in " ".join(
        capsys.readouterr().out.split()
    )
    assert json.loads(json.dumps(score.as_json()))["faults"]["blamed"] == {"user": 1, "policy": 1}


def test_a_score_without_recorded_faults_says_nothing_about_them(capsys):
    score = score_dialogues("m", [with_faults(())], RUBRIC)
    assert score is not None
    print_scores(score.context, "model", [score])
    assert "at fault" not in capsys.readouterr().out
    assert "faults" not in score.as_json()
