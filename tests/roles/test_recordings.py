"""Recorded dialogues from runs, EMPA result files and files of judged turns."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mapo.errors import InputError, RecordError
from mapo.evals.empa.result_files import write_result
from mapo.measure.rubric import Rubric
from mapo.records import encode_dialogue
from mapo.roles.recordings import read_all
from mapo.types import Reply
from support.recordings import EMPATHY, recordings, scenarios, write_judged_turns

OWN = recordings(2, 2)


def forms(read):
    return [[turn.levels for turn in r.dialogue.turns] for r in read.dialogues]


def test_judged_turns_plain_and_compressed(tmp_path):
    for name in ("a.jsonl", "b.jsonl.gz"):
        read = read_all([write_judged_turns(tmp_path / name, OWN)], scenarios(), EMPATHY)
        assert forms(read) == forms(type("Own", (), {"dialogues": OWN}))
        assert [r.dialogue.model for r in read.dialogues] == ["p0", "p0", "p1", "p1"]
        assert read.problems == () and read.rubric == EMPATHY


def test_a_run_directory(tmp_path):
    file = tmp_path / "run" / "dialogues" / "empa.jsonl"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"".join(encode_dialogue(r.dialogue) + b"\n" for r in OWN))
    read = read_all([tmp_path / "run"], scenarios(), EMPATHY)
    assert [r.dialogue for r in read.dialogues] == [r.dialogue for r in OWN]


def test_empa_result_files(tmp_path):
    for r in OWN:
        write_result(r.dialogue, EMPATHY, tmp_path / r.dialogue.model)
    (tmp_path / "p0" / "broken_result.json").write_text("{}")
    read = read_all([tmp_path], scenarios(), EMPATHY)
    assert forms(read) == forms(type("Own", (), {"dialogues": OWN}))
    assert [r.dialogue.turns[0].user for r in read.dialogues] == [r.dialogue.turns[0].user for r in OWN]
    assert len(read.problems) == 1 and "broken_result.json" in read.problems[0]


def test_result_files_that_are_not_judged_every_turn_are_skipped(tmp_path):
    write_result(OWN[0].dialogue, EMPATHY, tmp_path / "p0")
    write_result(OWN[1].dialogue, EMPATHY, tmp_path / "p0")
    file = sorted(tmp_path.rglob("*_result.json"))[0]
    data = json.loads(file.read_text())
    data["epj"]["K"] = 3
    file.write_text(json.dumps(data))
    read = read_all([tmp_path], scenarios(), EMPATHY)
    assert len(read.dialogues) == 1 and "judged every 3 turns" in read.problems[0]


def test_other_dialogues_of_the_same_names_are_skipped_with_a_warning(tmp_path):
    first = write_judged_turns(tmp_path / "a.jsonl", OWN)
    shorter = [replace(r, dialogue=replace(r.dialogue, turns=r.dialogue.turns[:2])) for r in OWN]
    second = write_judged_turns(tmp_path / "b.jsonl", shorter)
    assert read_all([first, first], scenarios(), EMPATHY).problems == ()
    read = read_all([first, second], scenarios(), EMPATHY)
    assert [len(r.dialogue.turns) for r in read.dialogues] == [4, 4, 4, 4]
    assert read.problems == (f"{second}: dialogues with the names of earlier ones are skipped",)


def test_failed_calls_are_not_judged(tmp_path):
    first, *rest = OWN[0].dialogue.turns
    lost = replace(first, reply=Reply("（错误：API调用失败）"))
    own = replace(OWN[0], dialogue=replace(OWN[0].dialogue, turns=(lost, *rest)))
    read = read_all([write_judged_turns(tmp_path / "a.jsonl", [own])], scenarios(), EMPATHY)
    assert [turn.levels is None for turn in read.dialogues[0].dialogue.turns] == [True, False, False, False]


def test_lines_that_are_no_dialogues_are_skipped_with_their_place(tmp_path):
    path = write_judged_turns(tmp_path / "a.jsonl", OWN[:1])
    level = json.loads(path.read_text())
    level["turns"][0]["levels"]["C"]["progress"]["level"] = 9
    bad = ["[]", "{torn", '{"model": "m"}', json.dumps(level), json.dumps({**level, "start": [1]})]
    path.write_text("\n".join([path.read_text().strip(), *bad]) + "\n")
    read = read_all([path], scenarios(), EMPATHY)
    assert len(read.dialogues) == 1
    assert [f"line {n}" in problem for n, problem in enumerate(read.problems, 2)] == [True] * 5


def test_a_missing_level_leaves_the_turn_unjudged(tmp_path):
    path = write_judged_turns(tmp_path / "a.jsonl", OWN[:1])
    data = json.loads(path.read_text())
    data["turns"][1]["levels"]["P"]["regression"]["level"] = None
    path.write_text(json.dumps(data))
    [own] = read_all([path], scenarios(), EMPATHY).dialogues
    assert [turn.levels is None for turn in own.dialogue.turns] == [False, True, False, False]


def test_bad_sources_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        read_all([tmp_path / "nothing"], scenarios(), EMPATHY)
    with pytest.raises(InputError, match="no recorded dialogue"):
        read_all([tmp_path], scenarios(), EMPATHY)
    with pytest.raises(InputError, match="was not found"):
        read_all([write_judged_turns(tmp_path / "a.jsonl", OWN)], {}, EMPATHY)
    (tmp_path / "cut.jsonl.gz").write_bytes(
        write_judged_turns(tmp_path / "b.jsonl.gz", OWN).read_bytes()[:50]
    )
    with pytest.raises(RecordError, match="cannot be read"):
        read_all([tmp_path / "cut.jsonl.gz"], scenarios(), EMPATHY)


STRANGER = {
    "model": "m",
    "case": "a neighbour",
    "turns": [
        {
            "user": "It rains.",
            "reply": "Go on.",
            "levels": {key: {"progress": {"level": 1}, "regression": {"level": 0}} for key in EMPATHY.keys},
        }
    ],
}


def write_lines(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_brief_judge_needs_no_scenarios(tmp_path):
    more = {"id": "second", "threshold": "high", "language": "zh"}
    file = write_lines(tmp_path / "a.jsonl", STRANGER, {**STRANGER, **more})
    first, second = read_all([file], scenarios(), EMPATHY, brief=True).dialogues
    assert [r.dialogue.id for r in (first, second)] == ["m/a neighbour", "second"]
    assert first.dialogue.start == EMPATHY.start({item.key: 2 for item in EMPATHY.indicators})
    assert (first.scenario.id, first.scenario.threshold) == ("a neighbour", "medium")
    assert (second.scenario.threshold, second.scenario.language) == ("high", "zh")
    with pytest.raises(InputError, match="was not found.*--brief"):
        read_all([file], scenarios(), EMPATHY)


def test_a_brief_judge_knows_the_threshold_of_a_scenario(tmp_path):
    scenario = replace(next(iter(scenarios().values())), threshold="high")
    known = {**STRANGER, "case": scenario.id}
    file = write_lines(tmp_path / "a.jsonl", known, {**known, "id": "b", "threshold": "low"})
    read = read_all([file], {scenario.id: scenario}, EMPATHY, brief=True)
    assert [r.scenario for r in read.dialogues] == [scenario, replace(scenario, threshold="low")]


def test_an_unknown_threshold_is_reported(tmp_path):
    file = write_lines(tmp_path / "a.jsonl", STRANGER, {**STRANGER, "id": "b", "threshold": ["x"]})
    read = read_all([file], {}, EMPATHY, brief=True)
    assert len(read.dialogues) == 1
    assert "line 2" in read.problems[0] and "low, medium, high" in read.problems[0]


def test_another_rubric_is_refused(tmp_path):
    file = tmp_path / "run" / "dialogues" / "empa.jsonl"
    file.parent.mkdir(parents=True)
    file.write_bytes(encode_dialogue(OWN[0].dialogue) + b"\n")
    with pytest.raises(InputError, match="another rubric"):
        read_all([tmp_path / "run"], scenarios(), Rubric.load("tutoring"))
